"""Exact bulk sampling of integers: alias tables whose weights are multiples of 2⁻¹²⁷.

A table holds a distribution on consecutive integers. One 64-bit word picks a cell and the
first bits of a threshold test; only when those tie (about once in 2⁵⁰ draws) a second word
decides. The distance to the true distribution is computed while the table is built and is
below 5·10⁻³⁴, which δ absorbs: (1 + e^ε)·clients·coordinates·rounds·distance.
Sources: Walker 1977 (alias method); Canonne, Kamath & Steinke 2020 (discrete Gaussian);
Abramowitz & Stegun 9.12 (backward recurrence for Bessel functions). Proof note:
`proofs/distributed-noise.md`.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.core.rng import Keystream

WEIGHT_BITS = 127
TIE_BITS = 63
CHUNK = 1 << 15
MAX_DEVIATION = float(1 << 20)
_FIXED = 320  # Fractional bits of the probabilities before they are cut to the weights.
_REACH = 13.5  # Standard deviations kept: the tails beyond weigh less than 2⁻¹³⁰.


@dataclass(frozen=True)
class Table:
    """An alias table.

    Attributes:
        low: The smallest integer.
        index_bits: log₂ of the number of cells.
        high: First part of each cell's threshold, shape `(cells,)`.
        rest: The other 63 bits of it.
        alias: The integer a draw above the threshold becomes.
        distance: Bound on the total variation distance to the true distribution.
    """

    low: int
    index_bits: int
    high: NDArray[np.uint64]
    rest: NDArray[np.uint64]
    alias: NDArray[np.int32]
    distance: float

    def draw(self, count: int, stream: Keystream, step: int) -> NDArray[np.int32]:
        """`count` integers from the stream's block `step`; the same block gives the same."""
        out = np.empty(count, np.int32)
        shift, mask = np.uint64(64 - self.index_bits), np.uint64((1 << (64 - self.index_bits)) - 1)
        for chunk, start in enumerate(range(0, count, CHUNK)):
            size = min(CHUNK, count - start)
            word = np.frombuffer(stream.bytes(step, 8 * size, rank=2 * chunk), "<u8")
            cell = (word >> shift).view(np.int64)
            test, threshold = word & mask, self.high[cell]
            keep = test < threshold
            ties = np.flatnonzero(test == threshold)
            if ties.size:
                more = np.frombuffer(stream.bytes(step, 8 * size, rank=2 * chunk + 1), "<u8")
                keep[ties] = (more[ties] >> np.uint64(1)) < self.rest[cell[ties]]
            part = out[start : start + size]
            np.add(cell, self.low, out=part, casting="unsafe")
            np.copyto(part, self.alias[cell], where=~keep)
        return out


@lru_cache(maxsize=32)
def discrete_gaussian(deviation: float) -> Table:
    """The distribution proportional to exp(−k²/(2σ²)) on the integers.

    Raises:
        UsageError: SQ-726 for σ that is not in (0, 2²⁰].
    """
    _check(deviation)
    reach = math.ceil(deviation * _REACH) + 2
    with decimal.localcontext(prec=120, Emin=-(10**9), Emax=10**9):
        base = (-1 / (2 * decimal.Decimal(deviation) ** 2)).exp()
        ratio = int(base * (1 << _FIXED))  # e^(−(2k+1)/(2σ²)) for k = 0, 1, …
    step = ratio * ratio >> _FIXED
    weights = [1 << _FIXED]
    for _ in range(reach):
        weights.append(weights[-1] * ratio >> _FIXED)
        ratio = ratio * step >> _FIXED
    return _build(weights)


@lru_cache(maxsize=32)
def skellam(variance: float) -> Table:
    """The difference of two Poisson variables of mean variance/2.

    Raises:
        UsageError: SQ-726 for a variance that is not in (0, 2⁴⁰].
    """
    _check(math.sqrt(variance) if variance > 0 else variance)
    reach = math.ceil(math.sqrt(variance) * _REACH) + 40
    with decimal.localcontext(prec=100, Emin=-(10**9), Emax=10**9):
        # I_{k−1} = I_{k+1} + (2k/μ)·I_k, from far out inwards, where it is stable.
        factor = 2 / decimal.Decimal(variance)
        values = [decimal.Decimal(0), decimal.Decimal(1)]
        for order in range(reach + 200, 0, -1):
            values.append(values[-2] + factor * order * values[-1])
        values.reverse()
        top = values[0]
        weights = [int(value / top * (1 << _FIXED)) for value in values[: reach + 1]]
    return _build(weights)


def _check(deviation: float) -> None:
    if not 0 < deviation <= MAX_DEVIATION:
        raise UsageError(
            726,
            f"a noise share's standard deviation lies in (0, 2^20] grid units, got {deviation}; "
            "change the granularity",
        )


def dyadic(weights: list[int]) -> tuple[list[int], float]:
    """Symmetric weights (k = 0, 1, …) as multiples of 2⁻¹²⁷ for −reach … reach.

    Each is rounded down and what is left goes to 0, so the distance is at most the number
    of cells times 2⁻¹²⁷, plus the tail.
    """
    total = weights[0] + 2 * sum(weights[1:])
    whole = 1 << WEIGHT_BITS
    half = [(weight << WEIGHT_BITS) // total for weight in weights]
    scaled = half[:0:-1] + half
    left = whole - sum(scaled)
    scaled[len(half) - 1] += left
    return scaled, left / whole + 2.0**-130


def _build(weights: list[int]) -> Table:
    """Walker's construction in whole numbers: the table's weights are exactly `dyadic`'s."""
    scaled, distance = dyadic(weights)
    low = -(len(weights) - 1)
    index_bits = max(1, (len(scaled) - 1).bit_length())
    cells = 1 << index_bits
    cell = 1 << (WEIGHT_BITS - index_bits)
    left = scaled + [0] * (cells - len(scaled))
    threshold, alias = [cell] * cells, list(range(cells))
    small = [i for i, weight in enumerate(left) if weight < cell]
    large = [i for i, weight in enumerate(left) if weight >= cell]
    while small and large:
        poor, rich = small.pop(), large[-1]
        threshold[poor], alias[poor] = left[poor], rich
        left[rich] -= cell - left[poor]
        if left[rich] < cell:
            small.append(large.pop())
    return Table(
        low,
        index_bits,
        np.array([t >> TIE_BITS for t in threshold], np.uint64),
        np.array([t & ((1 << TIE_BITS) - 1) for t in threshold], np.uint64),
        np.array(alias, np.int32) + np.int32(low),
        distance,
    )
