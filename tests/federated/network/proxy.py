"""Frames over real sockets, and a proxy between that loses, holds, doubles, cuts, alters."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from sequester.federated.network.node import Node
from sequester.federated.network.transport import Reply

_LENGTH = struct.Struct(">I")
_RESET = struct.pack("ii", 1, 0)


def read(stream: socket.socket) -> bytes | None:
    """One frame; None when the stream ends before it does."""
    size = _exactly(stream, _LENGTH.size)
    return None if size is None else _exactly(stream, _LENGTH.unpack(size)[0])


def _exactly(stream: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        got = stream.recv(min(65536, count - len(parts)))
        if not got:
            return None
        parts += got
    return bytes(parts)


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


@dataclass
class Listener:
    """Accepts connections on the loopback, a thread for each, until closed."""

    handle: object
    sock: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.settimeout(0.1)
        self.open = True
        self.threads: list[threading.Thread] = []
        self.main = threading.Thread(target=self._serve, daemon=True)
        self.main.start()

    @property
    def port(self) -> int:
        return self.sock.getsockname()[1]

    def _serve(self) -> None:
        while self.open:
            try:
                stream, _ = self.sock.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._one, args=(stream,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _one(self, stream: socket.socket) -> None:
        stream.settimeout(None)
        with stream, contextlib.suppress(OSError):
            self.handle(stream)

    def close(self) -> None:
        self.open = False
        self.main.join()
        self.sock.close()
        for thread in self.threads:
            thread.join(timeout=5)


@dataclass
class SocketNode:
    """A node behind a socket: every frame that comes in is answered on the same stream."""

    node: Node

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.listener = Listener(self.handle)

    def handle(self, stream: socket.socket) -> None:
        while (body := read(stream)) is not None:
            with self.lock:
                answer = self.node.answer(body)
            stream.sendall(framed(answer))


@dataclass
class Proxy:
    """Between the server and one node.

    Attributes:
        to: The node's port.
        fault: What it does; "none" passes everything.
        spare: Frames to let through unharmed first.
    """

    to: int
    fault: str = "none"
    spare: int = 0
    stale: bytes = b""

    def __post_init__(self) -> None:
        self.closing = threading.Event()
        self.listener = Listener(self.handle)

    def handle(self, client: socket.socket) -> None:
        question = read(client)
        if question is None:
            return
        fault = self.fault
        if self.spare > 0:
            self.spare, fault = self.spare - 1, "none"
        if fault == "drop":
            return
        if fault == "blackhole":
            self.closing.wait(60)
            return
        if fault == "alter question":
            middle = len(question) // 2
            question = question[:middle] + bytes([question[middle] ^ 4]) + question[middle + 1 :]
        with socket.create_connection(("127.0.0.1", self.to)) as node:
            answers = []
            for _ in range(2 if fault == "duplicate" else 1):
                node.sendall(framed(question))
                answers.append(framed(read(node) or b""))
        self.give(client, fault, answers)

    def give(self, client: socket.socket, fault: str, answers: list[bytes]) -> None:
        whole = b"".join(answers)
        match fault:
            case "delay":
                self.closing.wait(60)
            case "truncate":
                client.sendall(whole[: len(whole) // 2])
                return
            case "reset":
                client.sendall(whole[: len(whole) // 2])
                time.sleep(0.05)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return
            case "alter":
                middle = len(whole) // 2
                whole = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
            case "reorder":
                whole, self.stale = self.stale + whole, whole
            case "trickle":
                for start in range(0, len(whole), 512):
                    client.sendall(whole[start : start + 512])
                    time.sleep(0.005)
                return
        client.sendall(whole)

    def close(self) -> None:
        self.closing.set()
        self.listener.close()


@dataclass
class Sockets:
    """The server's transport: one connection for each question."""

    ports: dict[int, int]
    inbox: queue.Queue = field(default_factory=queue.Queue)
    patience: float = 90.0

    def nodes(self):
        return sorted(self.ports)

    def send(self, parcels, seconds):
        for parcel in parcels:
            threading.Thread(target=self._ask, args=(parcel,), daemon=True).start()

    def _ask(self, parcel) -> None:
        with contextlib.suppress(OSError):
            address = ("127.0.0.1", self.ports[parcel.node])
            with socket.create_connection(address, timeout=self.patience) as stream:
                stream.sendall(framed(parcel.body))
                stream.shutdown(socket.SHUT_WR)
                while (body := read(stream)) is not None:
                    self.inbox.put(Reply(parcel.ticket, body, final=False))
        self.inbox.put(Reply(parcel.ticket, None))

    def receive(self):
        replies = []
        with contextlib.suppress(queue.Empty):
            while True:
                replies.append(self.inbox.get_nowait())
        return replies

    def forget(self):
        """Late answers stay in the inbox: the next round must refuse them."""

    def wait(self):
        time.sleep(0.01)

    def now(self):
        return time.monotonic()
