"""The randomised Hadamard rotation: spreads any vector evenly over its coordinates.

Sylvester's matrices have orders 2^a; Paley's add 12, 20, 44, 60, 72 and 108, so that a vector
is padded by at most an eighth. Every entry is ±1, hence every coordinate of the rotated
vector is sub-Gaussian with variance |x|²/d whatever x is. Applied as a few small matrix
products. Source: Kairouz, Liu & Steinke 2021 (2102.06387), section 4; Paley 1933.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sequester.core.rng import Keystream

Real = NDArray[np.floating]
_PALEY_ORDERS = (12, 20, 44, 60, 72, 108)  # q + 1 for primes q ≡ 3 mod 4.
_LARGEST_FACTOR = 128


def padded_length(length: int) -> int:
    """The smallest order ≥ `length` that a Hadamard matrix is at hand for."""
    best = 1 << max(length - 1, 0).bit_length()
    for order in _PALEY_ORDERS:
        size = order
        while size < length:
            size *= 2
        best = min(best, size)
    return best


def rotate(vector: Real, seed: bytes) -> Real:
    """H·D·x/√d, D random signs from the public `seed`; d = len(vector) is a padded length."""
    return _apply(vector * _signs(vector.size, seed).astype(vector.dtype), inverse=False)


def rotate_back(vector: Real, seed: bytes) -> Real:
    """The inverse of `rotate`."""
    return _apply(vector, inverse=True) * _signs(vector.size, seed).astype(vector.dtype)


@lru_cache(maxsize=4)
def _signs(count: int, seed: bytes) -> NDArray[np.int8]:
    stream = Keystream(seed, run="", purpose="secagg rotation")
    bits = np.frombuffer(stream.bytes(0, (count + 7) // 8), np.uint8)
    signs: NDArray[np.int8] = 1 - 2 * np.unpackbits(bits, count=count).view(np.int8)
    return signs


def _apply(vector: Real, *, inverse: bool) -> Real:
    out = vector
    behind = vector.size
    for order in _factors(vector.size):
        behind //= order
        matrix = _matrix(order).astype(vector.dtype)
        matrix = matrix.T if inverse else matrix
        if behind == 1:
            out = out.reshape(-1, order) @ matrix.T
        else:
            out = np.matmul(matrix, out.reshape(-1, order, behind))
    result: Real = out.reshape(-1)
    result *= 1 / np.sqrt(vector.size)
    return result


@lru_cache(maxsize=32)
def _factors(length: int) -> tuple[int, ...]:
    """Orders whose product is `length`: at most one of Paley's, then powers of two."""
    for order in (1, *_PALEY_ORDERS):
        rest, odd = divmod(length, order)
        if odd == 0 and rest > 0 and rest & (rest - 1) == 0:
            exponent = rest.bit_length() - 1
            count = -(-exponent // (_LARGEST_FACTOR.bit_length() - 1))
            powers = [exponent // count + (i < exponent % count) for i in range(count)]
            return tuple(f for f in (order, *(1 << p for p in powers)) if f > 1) or (1,)
    raise ValueError(f"no Hadamard matrix of order {length} is built here")


@lru_cache(maxsize=32)
def _matrix(order: int) -> NDArray[np.float32]:
    if order & (order - 1) == 0:
        matrix = np.ones((1, 1), np.float32)
        while len(matrix) < order:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        return matrix
    prime = order - 1
    squares = {i * i % prime for i in range(1, prime)}
    legendre = [0] + [1 if i in squares else -1 for i in range(1, prime)]
    skew = np.zeros((order, order), np.float32)
    skew[0, 1:], skew[1:, 0] = 1, -1
    for row in range(prime):
        skew[row + 1, 1:] = [legendre[(column - row) % prime] for column in range(prime)]
    return skew + np.eye(order, dtype=np.float32)
