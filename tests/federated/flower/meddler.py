"""Somebody between server and nodes who alters and repeats what Flower carries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sequester.federated.network.transport import Parcel, Reply

PLACE = 1
"""The site whose messages are meddled with."""
MEDDLED = {
    "question altered": {"malformed": 1},
    "answer altered": {"malformed": 1},
    "question of before": {"malformed": 1},
    "answer of before": {"malformed": 1},
    "question doubled": {},
}
"""What is done in round 0, in round 1 and so on, and what that round then rejects."""


def meddle(folder: Path) -> None:
    """Let the server of this process speak through a `Meddler`."""
    from sequester.federated.flower import server

    real = server.GridTransport
    server.GridTransport = lambda grid: Meddler(real(grid), folder)


def altered(body: bytes) -> bytes:
    """With one bit of it turned."""
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


@dataclass
class Meddler:
    """A transport whose messages somebody else has had in hand.

    Attributes:
        inner: Carries them.
        folder: Where the true ones are kept, also when the server's process is another.
    """

    inner: Any
    folder: Path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, parcels: list[Parcel], seconds: float) -> None:
        self.inner.send([sent for parcel in parcels for sent in self._asked(parcel)], seconds)

    def receive(self) -> list[Reply]:
        return [self._told(reply) for reply in self.inner.receive()]

    def _asked(self, parcel: Parcel) -> Iterator[Parcel]:
        kind, before = self._meet("question", parcel)
        match kind:
            case "question altered":
                yield replace(parcel, body=altered(parcel.body))
            case "question of before":
                yield replace(parcel, body=before)
            case "question doubled":
                yield from (parcel, parcel)
            case _:
                yield parcel

    def _told(self, reply: Reply) -> Reply:
        kind, before = self._meet("answer", reply)
        match kind:
            case "answer altered":
                return replace(reply, body=altered(reply.body))
            case "answer of before":
                return replace(reply, body=before)
            case _:
                return reply

    def _meet(self, what: str, item: Parcel | Reply) -> tuple[str, bytes]:
        """What is done in its round; and the last true one of a round before."""
        number, _, place = item.ticket.rpartition("-")[0].partition("-")
        if not number.isdecimal() or place != str(PLACE) or item.body is None:
            return "", b""
        (self.folder / f"{what}-{number}").write_bytes(item.body)
        past = [self.folder / f"{what}-{earlier}" for earlier in range(int(number))]
        before = [file.read_bytes() for file in past if file.exists()]
        return list(MEDDLED)[int(number)], before[-1] if before else b""
