"""Picks the fastest engine that trains the given network exactly."""

from __future__ import annotations

from torch import nn

from sequester.core.errors import UsageError
from sequester.federated.engine.base import Engine, layout_of
from sequester.federated.engine.batched import BatchedEngine
from sequester.federated.engine.kernel import KernelEngine, kernel_available
from sequester.federated.engine.loop import LoopEngine
from sequester.federated.engine.lstm import BatchedLstm
from sequester.federated.engine.recurrent import lay, recognise
from sequester.models.tasks import Task
from sequester.sampling import Lot

ENGINES = ("auto", "kernel", "batched", "loop")


def choose_engine(
    model: nn.Module, task: Task, lot: Lot, *, engine: str = "auto", threads: int = 1
) -> Engine:
    """An engine for the clients of `lot` (a client is the lot's person).

    Args:
        model: The network; the loop trains it in place, the others read its shape alone.
        task: What it predicts.
        lot: All enrolled clients' windows.
        engine: "auto", or one of "kernel", "batched" and "loop" to insist.
        threads: Of the compiled kernel; the result does not depend on it.

    Raises:
        UsageError: SQ-615 for an unknown name, or one that cannot train this network.
    """
    if engine not in ENGINES:
        raise UsageError(615, f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    network = None if engine == "loop" else recognise(model, task, lot)
    if engine == "kernel" and (network is None or network.kind != "gru"):
        raise UsageError(
            615, "engine 'kernel' trains a one-layer GRU over numeric features; use 'auto'"
        )
    if network is None:
        if engine == "batched":
            raise UsageError(
                615,
                "engine 'batched' trains a one-layer GRU or LSTM over numeric features; use "
                "'auto' or 'loop' for other networks",
            )
        return LoopEngine(model, task.loss, lot)
    if network.kind == "lstm":
        return BatchedLstm(network, lay(lot), layout_of(model))
    if engine == "kernel" or (engine == "auto" and kernel_available()):
        return KernelEngine(network, lay(lot), layout_of(model), threads=threads)
    return BatchedEngine(network, lay(lot), layout_of(model))
