"""Sparse codecs: the k largest coordinates, or k coordinates both ends know.

Sources: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression" (2018), for top-k with error
feedback; Konečný et al., "Federated Learning: Strategies for Improving Communication Efficiency"
(2016), section 2, for the random mask from a shared seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.federated.compression.codecs import Address, body, floats, header
from sequester.federated.messages import Layout, Reason, Rejection, Vector


def _kept(share: float, size: int) -> int:
    return max(1, round(share * size))


def _check_share(share: float) -> None:
    if not 0.0 < share <= 1.0:
        raise UsageError(609, f"the kept share of coordinates must lie in (0, 1], got {share}")


@dataclass(frozen=True)
class TopK:
    """The `share` largest coordinates in magnitude.

    The message holds gaps between coordinates as variable-length integers (about one byte each
    at one per cent), then the values. Coordinates depend on the data, so this codec does not
    compose with secure aggregation.
    """

    share: float = 0.01
    number = 1

    def __post_init__(self) -> None:
        """Check the share."""
        _check_share(self.share)

    def encode(self, vector: Vector, layout: Layout, address: Address) -> bytes:
        """Header, gaps, values."""
        count = _kept(self.share, layout.size)
        # A stable order: equal magnitudes are kept by position, on every machine alike.
        chosen = np.sort(np.argsort(-np.abs(vector), kind="stable")[:count])
        gaps = np.diff(chosen, prepend=-1) - 1
        return (
            header(self.number, layout.size)
            + varints(gaps)
            + vector[chosen].astype("<f4").tobytes()
        )

    def decode(self, data: bytes, layout: Layout, address: Address) -> Vector:
        """Zeros but for what was sent."""
        count = _kept(self.share, layout.size)
        raw = body(data, self.number, layout)
        split = len(raw) - 4 * count
        if split < count:
            raise Rejection(Reason.MALFORMED)
        positions = np.cumsum(parse_varints(raw[:split], count) + 1) - 1
        if positions[-1] >= layout.size:
            raise Rejection(Reason.MALFORMED)
        vector = np.zeros(layout.size, dtype=np.float32)
        vector[positions] = floats(raw[split:], count)
        return vector


@dataclass(frozen=True)
class RandomK:
    """A `share` of coordinates from a seed both ends know; only values travel.

    All clients of a round send the same coordinates, so their messages can be added: this is
    the codec that composes with secure aggregation.
    """

    share: float = 0.01
    number = 2

    def __post_init__(self) -> None:
        """Check the share."""
        _check_share(self.share)

    def coordinates(self, layout: Layout, address: Address) -> NDArray[np.int64]:
        """The coordinates of this round, ascending."""
        generator = public_generator(address.seed("random-k", per_client=False))
        chosen = generator.choice(layout.size, self.kept(layout.size), replace=False)
        return np.sort(chosen)

    def kept(self, size: int) -> int:
        """How many of `size` coordinates travel."""
        return _kept(self.share, size)

    def encode(self, vector: Vector, layout: Layout, address: Address) -> bytes:
        """Header and values."""
        values = vector[self.coordinates(layout, address)]
        return header(self.number, layout.size) + values.astype("<f4").tobytes()

    def decode(self, data: bytes, layout: Layout, address: Address) -> Vector:
        """Zeros but for what was sent."""
        chosen = self.coordinates(layout, address)
        vector = np.zeros(layout.size, dtype=np.float32)
        vector[chosen] = floats(body(data, self.number, layout), len(chosen))
        return vector


def varints(values: NDArray[np.int64]) -> bytes:
    """Unsigned integers, seven bits a byte, low bits first (LEB128)."""
    out = bytearray()
    for value in values.tolist():
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def parse_varints(data: bytes, count: int) -> NDArray[np.int64]:
    """Exactly `count` integers below 2³⁵ and nothing else.

    Raises:
        Rejection: `malformed`.
    """
    values: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift > 28:
                raise Rejection(Reason.MALFORMED)
            continue
        values.append(value)
        value = shift = 0
    if shift or len(values) != count:
        raise Rejection(Reason.MALFORMED)
    return np.array(values, dtype=np.int64)
