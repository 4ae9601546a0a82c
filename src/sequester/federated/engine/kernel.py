"""The compiled engine: `native/cohort.cpp` through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from sequester import native
from sequester.core.errors import SequesterError, UsageError
from sequester.federated.engine.base import Job, Trained, visits
from sequester.federated.engine.recurrent import POOLS, Cell, Laid
from sequester.federated.messages import Layout


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("steps", "features", "hidden", "outputs")),
        *((name, ctypes.c_int32) for name in ("logistic", "pool", "batch", "threads")),
        ("learning_rate", ctypes.c_float),
        ("proximal", ctypes.c_float),
        ("momentum", ctypes.c_float),
    )


class _Data(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("x", "lengths", "target"))


class _Work(ctypes.Structure):
    _fields_ = (
        ("clients", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("order", "visits", "passes", "start")),
        ("start_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("anchor", "correction", "delta")),
    )


@functools.cache
def _library() -> Any:
    """The compiled kernel, or None where it was not built."""
    path = Path(native.__file__).with_name("cohort.so")
    if os.environ.get("SEQUESTER_NO_NATIVE") or not path.is_file():
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.sequester_cohort_train.restype = ctypes.c_int32
    except (OSError, AttributeError):  # built for another machine or another version
        return None
    return library


def kernel_available() -> bool:
    """Whether the compiled engine can be used here."""
    return _library() is not None


class KernelEngine:
    """One client at a time, all of its steps inside one call, its weights in cache."""

    name = "kernel"

    def __init__(self, network: Cell, data: Laid, layout: Layout, *, threads: int = 1) -> None:
        """Keep the clients' data; nothing is copied.

        Raises:
            UsageError: SQ-613 if the kernel is not built.
        """
        if _library() is None:
            raise UsageError(
                613,
                "the compiled cohort kernel is not here; install with a C++ compiler present, or "
                "let the engine be chosen",
            )
        self.layout = layout
        self._network, self._data, self._threads = network, data, max(1, threads)

    def train(self, job: Job) -> Trained:
        """Train every client of the job."""
        plan = visits(job, self._data.offsets)
        network, cohort = self._network, len(job.clients)
        start = np.ascontiguousarray(job.start, dtype=np.float32)
        anchor = np.ascontiguousarray(job.anchor, dtype=np.float32)
        correction = (
            None
            if job.correction is None
            else np.ascontiguousarray(job.correction, dtype=np.float32)
        )
        deltas = np.zeros((cohort, self.layout.size), dtype=np.float32)
        windows = np.ascontiguousarray(plan.windows)
        shape = _Shape(
            self._data.x.shape[1],
            network.features,
            network.hidden,
            network.outputs,
            network.logistic,
            POOLS.index(network.pool),
            job.work.batch,
            min(self._threads, max(cohort, 1)),
            job.work.learning_rate,
            job.work.proximal,
            job.work.momentum,
        )
        data = _Data(
            self._data.x.ctypes.data, self._data.lengths.ctypes.data, self._data.target.ctypes.data
        )
        work = _Work(
            cohort,
            plan.order.ctypes.data,
            plan.offsets.ctypes.data,
            windows.ctypes.data,
            start.ctypes.data,
            0 if start.ndim == 1 else self.layout.size,
            anchor.ctypes.data,
            None if correction is None else correction.ctypes.data,
            deltas.ctypes.data,
        )
        call = _library().sequester_cohort_train
        if call(ctypes.byref(shape), ctypes.byref(data), ctypes.byref(work)) != 0:
            raise SequesterError(614, "the cohort kernel ran out of memory; use fewer threads")
        return Trained(deltas, job.work.epochs * -(-windows // job.work.batch), windows)
