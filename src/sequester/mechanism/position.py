"""The next unused step of a noise stream, on disk before the step's noise exists."""

from __future__ import annotations

import os
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sequester.core.errors import SequesterError, UsageError
from sequester.core.files import sync_folder

_RECORD = struct.Struct("<Q")


class Position:
    """A counter that only rises and survives a crash at any instruction.

    `advance(step)` returns once `step + 1` is on disk, so that after a crash nobody can draw
    the noise of `step` a second time: at worst a drawn step is lost, and stays charged.
    Without a file the counter lives in memory alone (tests and simulations).
    """

    def __init__(self, file: Path | None = None) -> None:
        """Open or create the counter at `file`.

        Raises:
            UsageError: SQ-503 if the file holds no position.
        """
        self._file = file
        self._early: tuple[int, Future[None]] | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._process = os.getpid()  # threads do not follow into a fork
        self.next = 0
        if file is None:
            return
        if file.exists():
            raw = file.read_bytes()
            if len(raw) != _RECORD.size:
                raise UsageError(
                    503, "the position of the noise is damaged; start a new run", where=str(file)
                )
            self.next = _RECORD.unpack(raw)[0]
        else:
            self._write(0)
            sync_folder(file.parent)

    def prepare(self, step: int) -> None:
        """Begin to mark `step` as used, so that the disk works while the gradients are computed.

        A crash before `advance` loses the step's noise undrawn; it stays charged all the same.

        Raises:
            SequesterError: SQ-232 if `step` was used before.
        """
        self._check(step)
        if self._file is None or self._early is not None or os.getpid() != self._process:
            return
        self._writer = self._writer or ThreadPoolExecutor(1, "position")
        self._early = step, self._writer.submit(self._write, step + 1)

    def advance(self, step: int) -> None:
        """Mark `step` as used, durably.

        Raises:
            SequesterError: SQ-232 if `step` was used before.
        """
        self._check(step)
        early, self._early = self._early, None
        if os.getpid() != self._process:
            early = None
        if early is not None:
            early[1].result()
        if self._file is not None and (early is None or early[0] != step):
            self._write(step + 1)
        self.next = step + 1

    def _check(self, step: int) -> None:
        if step < self.next:
            raise SequesterError(
                232,
                f"noise of step {step} was already drawn (next unused step: {self.next}); using "
                "it twice would cancel it out. Resume from the newest checkpoint",
            )

    def _write(self, value: int) -> None:
        # Eight bytes inside one sector: a power cut leaves the old or the new value.
        handle = os.open(str(self._file), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, _RECORD.pack(value), 0)
            os.fdatasync(handle)
        finally:
            os.close(handle)
