"""What a codec is, and the frame of its messages."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sequester.federated.messages import Layout, Reason, Rejection, Vector

HEADER = struct.Struct("<2sBI")
MAGIC = b"SQ"


@dataclass(frozen=True)
class Address:
    """What both ends know about a message, and derive shared seeds from.

    Attributes:
        run: The run's name.
        round: From 0.
        client: Position of the client; codecs whose coordinates are the same for the whole
            cohort do not use it.
    """

    run: str
    round: int
    client: int

    def seed(self, purpose: str, *, per_client: bool) -> int:
        """A public seed both ends compute; never used for anything secret."""
        text = f"{purpose}|{self.run}|{self.round}|{self.client if per_client else '*'}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class Codec(Protocol):
    """Turns a vector into bytes and back."""

    @property
    def number(self) -> int:
        """Identifies the codec on the wire, one byte."""
        ...

    def encode(self, vector: Vector, layout: Layout, address: Address) -> bytes:
        """The message's bytes."""
        ...

    def decode(self, data: bytes, layout: Layout, address: Address) -> Vector:
        """The vector the server sees, `(size,)` float32.

        Raises:
            Rejection: `malformed` for bytes of a wrong length, codec or size. Every length is
                checked against the layout before anything is allocated, so a small message
                cannot make the server allocate much.
        """
        ...


def header(number: int, size: int) -> bytes:
    """The first bytes of every message."""
    return HEADER.pack(MAGIC, number, size)


def body(data: bytes, number: int, layout: Layout) -> bytes:
    """What follows a valid header."""
    if len(data) < HEADER.size:
        raise Rejection(Reason.MALFORMED)
    magic, found, size = HEADER.unpack_from(data)
    if magic != MAGIC or found != number or size != layout.size:
        raise Rejection(Reason.MALFORMED)
    return data[HEADER.size :]


def floats(data: bytes, count: int) -> Vector:
    """Exactly `count` little-endian float32 numbers."""
    if len(data) != 4 * count:
        raise Rejection(Reason.MALFORMED)
    return np.frombuffer(data, dtype="<f4").astype(np.float32)
