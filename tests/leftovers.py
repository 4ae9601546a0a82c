"""A file that a killed process leaves half written, made by such a process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sequester.core.files import write_atomic


def killed_while_writing(path: Path) -> Path:
    """Kill a process inside `write_atomic(path)`, between disk and name; what is left of it."""
    before = set(path.parent.iterdir())
    child = os.fork()
    if not child:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        write_atomic(path, b"an exact sum", private=True)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (left,) = set(path.parent.iterdir()) - before
    assert left.read_bytes() == b"an exact sum"
    return left
