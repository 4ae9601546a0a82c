"""The lock in front of SQLite's own: fair, and let go by the kernel when a process dies."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from sequester.core.errors import LedgerRefusal


class FileLock:
    """An exclusive `flock` with a time limit; the kernel releases it when a process dies."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout = timeout_s
        self._handle: int | None = None

    def take(self) -> None:
        """Wait for it.

        Raises:
            LedgerRefusal: SQ-305 after the time limit.
        """
        if self._handle is None:
            self._handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._handle = self._wait(self._handle)

    def release(self) -> None:
        """Let the next one in."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _wait(self, handle: int) -> int:
        """Queue in the kernel, which is fair; polling would lose to whoever asks again at once."""
        got = threading.Event()
        state = {"given_up": False}
        mutex = threading.Lock()

        def queue() -> None:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with mutex:
                if state["given_up"]:
                    os.close(handle)  # Closing releases what came too late.
                got.set()

        threading.Thread(target=queue, daemon=True).start()
        if not got.wait(self._timeout):
            with mutex:
                if not got.is_set():
                    state["given_up"] = True
                    self._handle = None
                    raise LedgerRefusal(
                        305,
                        f"another process has held the ledger for {self._timeout:g} s; nothing "
                        "was charged. Try again, or find out who holds it",
                        where=str(self._path),
                    )
        return handle

    def close(self) -> None:
        """Let go for good."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
