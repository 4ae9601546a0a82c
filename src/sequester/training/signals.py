"""Ctrl-C and SIGTERM finish the step; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ClassVar, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While active, remembers that the run was asked to stop.

    Attributes:
        asked: True after the first signal.
        exit_code: What a shell calls a process that the last signal ended: 130 for Ctrl-C, 143
            for SIGTERM. Signals come to the process, so all runs share it.
    """

    exit_code: ClassVar[int] = 128 + signal.SIGINT

    def __init__(self) -> None:
        """Nothing asked yet."""
        self.asked = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        """Take over the signals; only the main thread can, elsewhere `asked` stays False."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        Interruption.exit_code = 128 + number
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
