"""Shamir's secret sharing over GF(65537), all words of all shares in one matrix product.

A secret of 2·w bytes is w words of 16 bits; each word is shared by a polynomial of its own.
Products of two residues stay below 2³², so a float64 sum of up to 2²⁰ of them is exact.
Source: Shamir, How to share a secret, CACM 1979; the prime is the Fermat number F₄.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import VerificationError

PRIME = 65537
MAX_SHARES = PRIME - 1

Words = NDArray[np.uint32]


@lru_cache(maxsize=64)
def _powers(shares: int, threshold: int) -> NDArray[np.float64]:
    """The powers x⁰ … xᵗ⁻¹ mod p of x = 1 … shares, shape `(shares, threshold)`."""
    points = np.arange(1, shares + 1, dtype=np.int64)
    powers = np.ones((shares, threshold), np.int64)
    for exponent in range(1, threshold):
        powers[:, exponent] = powers[:, exponent - 1] * points % PRIME
    return powers.astype(np.float64)


def randomness_bytes(secret_bytes: int, threshold: int) -> int:
    """How many random bytes `split` needs."""
    return 8 * (threshold - 1) * (secret_bytes // 2)


def split(secret: bytes, shares: int, threshold: int, randomness: bytes) -> Words:
    """Shares of `secret` at x = 1 … `shares`; any `threshold` of them give it back.

    Args:
        secret: An even number of bytes.
        shares: How many, at most 65536.
        threshold: At least 1, at most `shares`.
        randomness: `randomness_bytes(len(secret), threshold)` uniform bytes. Each coefficient
            is a 64-bit word mod 65537, which is uniform up to 2⁻⁴⁸.

    Returns:
        Residues, shape `(shares, len(secret) // 2)`.
    """
    words = len(secret) // 2
    coefficients = np.empty((threshold, words))
    coefficients[0] = np.frombuffer(secret, "<u2")
    drawn = np.frombuffer(randomness, "<u8") % np.uint64(PRIME)
    coefficients[1:] = drawn.reshape(threshold - 1, words)
    values: NDArray[np.float64] = np.fmod(_powers(shares, threshold) @ coefficients, PRIME)
    return values.astype(np.uint32)


@lru_cache(maxsize=4096)
def _weights(points: tuple[int, ...]) -> NDArray[np.float64]:
    """Lagrange's weights at 0 for these points, shape `(len(points),)`."""
    x = np.asarray(points, np.int64)
    numerator = np.broadcast_to(x, (x.size, x.size)).copy()
    denominator = (x[None, :] - x[:, None]) % PRIME
    np.fill_diagonal(numerator, 1)
    np.fill_diagonal(denominator, 1)
    inverse = _power(_product(denominator), PRIME - 2)
    return (_product(numerator) * inverse % PRIME).astype(np.float64)


def _product(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The product of each row mod p, halving the row at every step."""
    while rows.shape[1] > 1:
        if rows.shape[1] % 2:
            rows = np.concatenate([rows, np.ones((len(rows), 1), np.int64)], axis=1)
        rows = rows[:, ::2] * rows[:, 1::2] % PRIME
    return rows[:, 0]


def _power(base: NDArray[np.int64], exponent: int) -> NDArray[np.int64]:
    result = np.ones_like(base)
    while exponent:
        if exponent % 2:
            result = result * base % PRIME
        base = base * base % PRIME
        exponent //= 2
    return result


def recover(points: tuple[int, ...], shares: Words) -> bytes:
    """The secret from shares at distinct `points`.

    Args:
        points: Distinct x in 1 … 65536, as many as the threshold.
        shares: Residues, shape `(len(points), words)`.

    Raises:
        VerificationError: SQ-716 when the result is not a string of 16-bit words, which
            happens only if a share is not what was dealt.
    """
    values = np.fmod(_weights(points) @ shares.astype(np.float64), PRIME).astype(np.uint32)
    if (values > 0xFFFF).any():
        raise VerificationError(716, "the shares of a secret contradict each other")
    return values.astype("<u2").tobytes()


def to_bytes(shares: Words) -> list[bytes]:
    """Each row as bytes: the low 16 bits of each word, then one bit each for the value 65536."""
    low = shares.astype("<u2").view(np.uint8)
    high = np.packbits((shares >> 16).astype(np.uint8), axis=1, bitorder="little")
    return [row.tobytes() for row in np.concatenate([low, high], axis=1)]


def from_bytes(data: bytes, words: int) -> Words:
    """The inverse of `to_bytes`.

    Raises:
        VerificationError: SQ-716 for bytes that `to_bytes` never makes.
    """
    low = np.frombuffer(data, "<u2", words).astype(np.uint32)
    bits = np.frombuffer(data, np.uint8, offset=2 * words)
    high = np.unpackbits(bits, bitorder="little").astype(np.uint32)
    if high[words:].any() or (low[high[:words] == 1] != 0).any():
        raise VerificationError(716, "a share is not an element of the field")
    return low + (high[:words] << 16)


def share_bytes(words: int) -> int:
    """The length of `to_bytes` for a share of `words` words."""
    return 2 * words + (words + 7) // 8
