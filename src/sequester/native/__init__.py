"""Compiled kernels behind a plain C interface; where they are absent, PyTorch does the work.

Each `name.cpp` beside this file is compiled to `name.so` at installation when a C++ compiler is
there (`build_native.py`). `load` opens one with ctypes; calls release the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path


@cache
def _open(name: str) -> ctypes.CDLL | None:
    path = Path(__file__).with_name(f"{name}.so")
    try:
        return ctypes.CDLL(str(path)) if path.is_file() else None
    except OSError:  # built for another machine
        return None


def wanted() -> bool:
    """Whether kernels of our own may run: not where SEQUESTER_NO_NATIVE is set."""
    return not os.environ.get("SEQUESTER_NO_NATIVE")


def load(name: str) -> ctypes.CDLL | None:
    """The compiled library `name`, None if it was not built or SEQUESTER_NO_NATIVE is set."""
    return _open(name) if wanted() else None
