"""Stochastic quantisation to b bits.

Source: Suresh, Yu, Kumar, McMahan, "Distributed Mean Estimation with Limited Communication"
(2017), section 2.2 (stochastic k-level quantisation): each tensor's range [lo, hi] is cut into
2^b − 1 equal steps and a value is rounded up with the probability of its distance from the
lower level, so that the mean over the coins is the value itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.federated.compression.codecs import Address, body, floats, header
from sequester.federated.messages import Layout, Reason, Rejection, Vector


@dataclass(frozen=True)
class Quantise:
    """`bits` for each number, and two float32 for each tensor's range."""

    bits: int = 4
    number = 3

    def __post_init__(self) -> None:
        """Check the width."""
        if not 1 <= self.bits <= 16:
            raise UsageError(610, f"quantisation takes 1 to 16 bits, got {self.bits}")

    def encode(self, vector: Vector, layout: Layout, address: Address) -> bytes:
        """Header, ranges, packed levels."""
        coins = public_generator(address.seed("quantise", per_client=True)).random(layout.size)
        levels = np.empty(layout.size, dtype=np.uint32)
        ranges = np.empty((len(layout.names), 2), dtype="<f4")
        top = 2**self.bits - 1
        for place, name in enumerate(layout.names):
            where = layout.slice(name)
            part = vector[where].astype(np.float64)
            low, high = (float(part.min()), float(part.max())) if part.size else (0.0, 0.0)
            ranges[place] = low, high
            width = float(ranges[place, 1]) - float(ranges[place, 0])
            scaled = (part - float(ranges[place, 0])) * (top / width) if width > 0 else part * 0
            levels[where] = np.clip(np.floor(scaled + coins[where]), 0, top)
        return header(self.number, layout.size) + ranges.tobytes() + pack(levels, self.bits)

    def decode(self, data: bytes, layout: Layout, address: Address) -> Vector:
        """Levels back in their ranges."""
        raw = body(data, self.number, layout)
        head = 8 * len(layout.names)
        if len(raw) != head + -(-layout.size * self.bits // 8):
            raise Rejection(Reason.MALFORMED)
        ranges = floats(raw[:head], 2 * len(layout.names)).reshape(-1, 2).astype(np.float64)
        levels = unpack(raw[head:], layout.size, self.bits)
        vector = np.empty(layout.size, dtype=np.float32)
        top = 2**self.bits - 1
        for name, (low, high) in zip(layout.names, ranges, strict=True):
            where = layout.slice(name)
            with np.errstate(all="ignore"):  # a hostile range may be infinite; the gate counts it
                vector[where] = low + levels[where] * ((high - low) / top)
        return vector


def pack(levels: NDArray[np.uint32], bits: int) -> bytes:
    """`bits` low bits of each level, tightly, low bit first."""
    planes = (levels[:, None] >> np.arange(bits, dtype=np.uint32)) & 1
    return np.packbits(planes.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def unpack(data: bytes, count: int, bits: int) -> NDArray[np.int64]:
    """The inverse of `pack`."""
    flat = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits, bitorder="little")
    weights = 1 << np.arange(bits, dtype=np.int64)
    result: NDArray[np.int64] = flat.reshape(count, bits).astype(np.int64) @ weights
    return result
