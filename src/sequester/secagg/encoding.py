"""From a float update to masked words and from their sum back to floats.

    clip ─▶ rotate ─▶ ÷ granularity ─▶ round to integers ─▶ + noise share ─▶ mod 2^bits

Whatever the update holds, the integers that leave have an L2 norm of at most
`Encoding.sensitivity` before noise, so the privacy statement rests on integer arithmetic
alone and not on floats. Source: Kairouz, Liu & Steinke 2021 (2102.06387), algorithm 1.

Four 32-bit words travel beside the vector and are masked like it: a count of 1 (their sum
must be the number of survivors, or masks did not cancel), a weight, and two random linear
checksums of the integers modulo 2³² (they disagree with the opened sum if any coordinate
wrapped around modulo 2^bits). The checksums are functions of the noised sum, so they cost no
privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError, VerificationError
from sequester.core.rng import Keystream
from sequester.secagg import sampler
from sequester.secagg.masks import Words
from sequester.secagg.rotation import padded_length, rotate, rotate_back

WIDE = 4
COUNT, WEIGHT, CHECKS = 0, 1, slice(2, 4)
ROUNDING_BETA = math.exp(-0.5)
MAX_TRIES = 64
NOISES = ("discrete-gaussian", "skellam", "none")


@dataclass(frozen=True)
class Encoding:
    """How a round's updates become integers.

    Attributes:
        length: Coordinates of an update.
        clip: L2 bound of one member's update.
        granularity: The grid's step, in units of the update.
        bits: Width of a word.
        noise: "discrete-gaussian", "skellam" or "none".
        noise_share: Standard deviation of one member's share, in grid units; 0 for none.
    """

    length: int
    clip: float
    granularity: float
    bits: int
    noise: str = "none"
    noise_share: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that no round can use."""
        for name in ("clip", "granularity"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(719, f"{name} must be a finite number > 0, got {value}")
        if self.noise not in NOISES:
            raise UsageError(719, f"noise is one of {NOISES}, got {self.noise!r}")
        if (self.noise == "none") != (self.noise_share == 0):
            raise UsageError(719, "a noise share is given exactly when there is noise")

    @property
    def is_noisy(self) -> bool:
        """Whether members add noise."""
        return self.noise != "none"

    @property
    def words(self) -> int:
        """Words per vector: padded for the rotation, which only noise needs."""
        return padded_length(self.length) if self.is_noisy else self.length

    @property
    def sensitivity(self) -> float:
        """Largest L2 norm of one member's integers, in grid units.

        Source: Kairouz, Liu & Steinke 2021, eq. (1) and proposition 22: the norm after
        stochastic rounding, conditioned on an event of probability ≥ 1 − β, β = e^−½.
        """
        clip, step, size = self.clip, self.granularity, self.words
        worst = clip + step * math.sqrt(size)
        spread = math.sqrt(2 * math.log(1 / ROUNDING_BETA)) * step
        usual = clip**2 + size * step**2 / 4 + spread * (clip + step * math.sqrt(size) / 2)
        return min(worst, math.sqrt(usual)) / step

    @property
    def sensitivity_l1(self) -> float:
        """Largest L1 norm of one member's integers, in grid units (integers: |q| ≤ q²)."""
        return min(math.sqrt(self.words) * self.sensitivity, self.sensitivity**2)


@dataclass(frozen=True)
class Encoded:
    """One member's words, and what happened on the way (private: it stays with the member).

    Attributes:
        words: For the client's answer to `sealed`.
        norm: L2 norm of the update before clipping; NaN when it was not finite.
        clipped: Whether the norm exceeded the bound.
        tries: Roundings drawn before one met the bound.
    """

    words: Words
    norm: float = field(repr=False)
    clipped: bool = field(repr=False)
    tries: int = field(repr=False)


def encode(
    encoding: Encoding,
    update: NDArray[np.floating],
    *,
    rotation: bytes,
    stream: Keystream,
    weight: int = 0,
) -> Encoded:
    """One member's words.

    An update with NaN or infinity contributes zero (and its noise share): it neither breaks
    the sum nor says that it was there.

    Args:
        encoding: The round's encoding.
        update: Shape `(length,)`.
        rotation: 32 public bytes, the same for all members of the round.
        stream: This member's private randomness for this round, used for nothing else.
        weight: Adds up beside the vector, exactly. Only without noise: an exact sum of
            weights would say who was there.

    Raises:
        UsageError: SQ-713 for a wrong shape or a weight where none may be.
    """
    if update.shape != (encoding.length,):
        raise UsageError(
            713, f"an update has shape {(encoding.length,)} in this round, got {update.shape}"
        )
    if encoding.is_noisy and weight:
        raise UsageError(
            713, "with noise every member weighs the same: an exact sum of weights would leak"
        )
    if not 0 <= weight < 1 << 32:
        raise UsageError(713, f"a weight is a whole number of 32 bits, got {weight}")
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(update.astype(np.float64, copy=False)))
    factor = 0.0 if not math.isfinite(norm) else min(1.0, encoding.clip / norm if norm else 1.0)
    # The rotated vector has small entries and its norm is checked as integers, so 24 bits do.
    scaled: NDArray[Any] = np.zeros(encoding.words, np.float32 if encoding.is_noisy else np.float64)
    if factor:
        factor /= encoding.granularity
        scaled[: encoding.length] = np.multiply(update, factor, dtype=np.float64)
    if encoding.is_noisy:
        scaled = rotate(scaled, rotation)
        integers, tries = _round_within(scaled, encoding.sensitivity, stream)
        integers += _noise(encoding, stream)
    else:
        integers, tries = _round(scaled, stream, 0), 1
    words = words_of(integers, encoding.bits, rotation=rotation, weight=weight)
    clipped = math.isfinite(norm) and norm > encoding.clip
    return Encoded(words, norm if math.isfinite(norm) else math.nan, clipped, tries)


def words_of(integers: NDArray[np.int32], bits: int, *, rotation: bytes, weight: int = 0) -> Words:
    """Signed integers as masked rounds carry them, with count, weight and checksums beside.

    Args:
        integers: int32, shape `(words,)`.
        bits: Width of a word.
        rotation: 32 public bytes of the round; they fix the checksums' multipliers.
        weight: Adds up beside the vector.
    """
    narrow: NDArray[np.unsignedinteger[Any]] = integers.view(np.uint32)
    if bits == 16:
        narrow = narrow.astype(np.uint16)
    if bits in (20, 24):
        narrow = narrow & np.uint32((1 << bits) - 1)
    return Words(narrow, np.array([1, weight, *_checksums(integers, rotation)], np.uint32))


def within_words(integers: NDArray[np.integer]) -> NDArray[np.int32]:
    """The integers as int32, none changed on the way.

    Checksums are sums modulo 2³², so beside words of 32 bits they see no wrap: a number that is
    too large must be stopped here, before anything is masked.

    Raises:
        VerificationError: SQ-713 for a number that 32 bits do not hold.
    """
    narrow = integers.astype(np.int32)
    if not np.array_equal(narrow, integers):
        raise VerificationError(713, "a number of the vector does not fit 32 bits")
    return narrow


def _round(scaled: NDArray[Any], stream: Keystream, attempt: int) -> NDArray[np.int32]:
    """Stochastic rounding: up with probability the fraction, so the mean is kept."""
    raw = stream.bytes(0, 4 * scaled.size, rank=attempt)
    draws = (np.frombuffer(raw, "<u4") >> np.uint32(8)).astype(scaled.dtype)
    draws *= 2.0**-24
    draws += scaled
    rounded: NDArray[np.int32] = np.floor(draws, out=draws).astype(np.int32)
    return rounded


def _round_within(
    scaled: NDArray[Any], bound: float, stream: Keystream
) -> tuple[NDArray[np.int32], int]:
    """Rounding, repeated until the integers' norm keeps the bound; toward zero at last."""
    for attempt in range(MAX_TRIES):
        integers = _round(scaled, stream, attempt)
        if _squared_norm(integers) <= bound**2:
            return integers, attempt + 1
    integers = np.trunc(scaled).astype(np.int32)
    while _squared_norm(integers) > bound**2:  # Float32 rounding of the rotation, at most.
        scaled = scaled * 0.999
        integers = np.trunc(scaled).astype(np.int32)
    return integers, MAX_TRIES + 1


def _squared_norm(integers: NDArray[np.int32]) -> float:
    """Exact while it stays below 2⁵³, and then rounded by less than one part in 2⁵⁰."""
    values = integers.astype(np.float64)
    return float(values @ values)


def _noise(encoding: Encoding, stream: Keystream) -> NDArray[np.int32]:
    share = encoding.noise_share
    skellam = encoding.noise == "skellam"
    table = sampler.skellam(share * share) if skellam else sampler.discrete_gaussian(share)
    return table.draw(encoding.words, stream, 1)


@lru_cache(maxsize=2)
def _coefficients(count: int, rotation: bytes) -> NDArray[np.uint32]:
    """Two rows of public random 32-bit numbers."""
    stream = Keystream(rotation, run="", purpose="secagg checksum")
    return np.frombuffer(stream.bytes(0, 8 * count), "<u4").astype(np.uint32).reshape(2, count)


def _checksums(integers: NDArray[np.int32], rotation: bytes) -> list[int]:
    values = integers.view(np.uint32)
    rows = _coefficients(values.size, rotation)
    return [int(np.sum(row * values, dtype=np.uint32)) for row in rows]


@dataclass(frozen=True)
class Decoded:
    """The opened sum.

    Attributes:
        total: Sum of the survivors' clipped updates plus noise, float64, shape `(length,)`.
        weight: Sum of their weights.
    """

    total: NDArray[np.float64] = field(repr=False)
    weight: int = field(repr=False)


def decode(encoding: Encoding, total: Words, survivors: int, *, rotation: bytes) -> Decoded:
    """Turn the opened words into the sum of updates.

    Raises:
        VerificationError: SQ-720 when masks did not cancel or a coordinate wrapped around.
    """
    integers = integers_of(total, encoding.bits, survivors, rotation=rotation)
    values = integers.astype(np.float64)
    if encoding.is_noisy:
        values = rotate_back(values, rotation).astype(np.float64, copy=False)
    values = values[: encoding.length] * encoding.granularity
    return Decoded(values, int(total.wide[WEIGHT]))


def integers_of(total: Words, bits: int, survivors: int, *, rotation: bytes) -> NDArray[np.int32]:
    """The signed integers that the opened words stand for; the inverse of summed `words_of`.

    Raises:
        VerificationError: SQ-720 when masks did not cancel or a coordinate wrapped around.
    """
    if int(total.wide[COUNT]) != survivors:
        raise VerificationError(
            720,
            "the count beside the sum is not the number of survivors: masks did not cancel, "
            "so members worked under different models or rules; discard the round",
        )
    integers = centred(total.narrow, bits)
    if _checksums(integers, rotation) != [int(word) for word in total.wide[CHECKS]]:
        raise VerificationError(
            720,
            f"a coordinate of the sum does not fit {bits} bits and wrapped around; "
            "discard the round, use more bits or a coarser granularity",
        )
    return integers


def centred(narrow: NDArray[np.unsignedinteger], bits: int) -> NDArray[np.int32]:
    """Words modulo 2^bits as integers in [−2^(bits−1), 2^(bits−1)), int32."""
    if bits == 16:
        return narrow.view(np.int16).astype(np.int32)
    shift = np.uint32(32 - bits)
    moved: NDArray[np.int32] = (narrow.astype(np.uint32) << shift).view(np.int32)
    return moved >> np.int32(32 - bits)
