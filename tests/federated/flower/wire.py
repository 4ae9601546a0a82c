"""A raw TCP proxy between a SuperNode and the SuperLink that delays, cuts, half-closes, throttles.

It knows nothing of what it carries. A seed decides what each connection suffers and after how many
bytes, so that a cut falls into a request, an answer, or the gap between them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

FAULTS = ("none", "delay", "cut", "half-close", "throttle")


@dataclass
class Wire:
    """One node's wire to the server.

    Attributes:
        to: The server's port.
        seed: Decides everything.
        seen: Connections by what they suffered.
    """

    to: int
    seed: int
    seen: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.settimeout(0.2)
        self.port = self.sock.getsockname()[1]
        self.open = True
        self.threads = [threading.Thread(target=self._serve)]
        self.threads[0].start()

    def close(self) -> None:
        """Stop; call it when one end of every connection is gone."""
        self.open = False
        for thread in self.threads:
            thread.join()

    def _serve(self) -> None:
        with self.sock:
            while self.open:
                try:
                    near, _ = self.sock.accept()
                except TimeoutError:
                    continue
                thread = threading.Thread(target=self._carry, args=(near, *self._weather()))
                thread.start()
                self.threads.append(thread)

    def _weather(self) -> tuple[str, int]:
        fault = FAULTS[int(self.draw.integers(0, len(FAULTS)))]
        self.seen[fault] += 1
        return fault, int(self.draw.integers(0, 20_000))

    def _carry(self, near: socket.socket, fault: str, after: int) -> None:
        near.settimeout(None)
        with near, contextlib.suppress(OSError):  # the server may be down
            far = socket.create_connection(("127.0.0.1", self.to))
            with far:
                back = threading.Thread(target=self._pump, args=(far, near, fault, after))
                back.start()
                self._pump(near, far, fault, after)
                back.join()

    def _pump(self, one: socket.socket, other: socket.socket, fault: str, after: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while chunk := one.recv(1024 if fault == "throttle" else 65536):
                passed += len(chunk)
                late = passed > after
                if late and fault in ("cut", "half-close"):
                    other.sendall(chunk[: len(chunk) // 2])
                    break
                if late and fault == "delay":
                    time.sleep(1.0)
                if fault == "throttle":
                    time.sleep(0.005)
                other.sendall(chunk)
        for end in (other,) if fault == "half-close" else (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR if fault == "half-close" else socket.SHUT_RDWR)
