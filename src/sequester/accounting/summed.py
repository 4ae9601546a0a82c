"""Sums of discrete Gaussians: how near to one, and to a continuous Gaussian, they are.

`divergence` is their Rényi curve, `near` the continuous Gaussian of which they are all but a
post-processing. Proof: `proofs/summed_discrete_gaussian.md`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sequester.accounting.renyi import UP

_MOST_TERMS = 100_000
# What smoothing adds to a coordinate's slack, over the number of coordinates.
_SMOOTHING = 1e-13
_LEAST_GAIN = 16.0  # total variance over the variance given up
_MOST_SLACK = 1e-6


@lru_cache(maxsize=1024)
def gap(standard_deviation: float, clients: int) -> float:
    """Bound on the log ratio, both ways, of a sum to the discrete Gaussian of its variance.

    Per coordinate. Source: Kairouz, Liu & Steinke 2021 (2102.06387), theorem 1, whose constant
    needs harmonic variances c of at least 1/8; below that 1/(8c) holds.
    """
    k = np.arange(1, min(clients, _MOST_TERMS), dtype=float)
    harmonic = standard_deviation**2 * k / (k + 1.0)
    theorem = 5.0 * np.exp(-2.0 * math.pi**2 * harmonic)
    with np.errstate(divide="ignore", over="ignore"):
        total = float(np.where(harmonic >= 0.125, theorem, 0.125 / harmonic).sum())
    # Terms fall, so those left out are at most the mean of those taken.
    rest = (clients - 1) / (_MOST_TERMS - 1) if clients > _MOST_TERMS else 1.0
    return total * rest * (1.0 + 1e-9)


def divergence(
    standard_deviation: float, l2: float, dimension: int, clients: int, order: float
) -> float:
    """D_order of a shift of L2 norm `l2` under the sum of `clients` shares per coordinate."""
    total = clients * standard_deviation**2
    if clients == 1:
        return order * l2 * l2 / (2.0 * total) * UP
    one = gap(standard_deviation, clients)
    together = order / 2.0 * (l2 / math.sqrt(total) + 2.0 * one * math.sqrt(dimension)) ** 2
    apart = order * l2 * l2 / (2.0 * total)
    apart += one * dimension * (2.0 * order - 1.0) / (order - 1.0)
    return min(together, apart) * UP


def near(
    standard_deviation: float, clients: int, dimension: int, given_up: float
) -> tuple[float, float]:
    """(σ, slack): the sum is N(0, σ²) post-processed, but for `slack` in max-divergence.

    Args:
        standard_deviation: Of one share.
        clients: Shares in the sum.
        dimension: Coordinates.
        given_up: The variance that the post-processing adds, less than the sum's.
    """
    total = clients * standard_deviation**2
    ripple = _ripple(given_up)
    slack = math.inf
    if ripple < 1.0:
        smoothing = _ripple(total) - math.log1p(-ripple)
        shares = gap(standard_deviation, clients) if clients > 1 else 0.0
        slack = dimension * (shares + smoothing) * (1.0 + 1e-9)
    return math.sqrt(total - given_up) * (1.0 - 1e-12), slack


def useful(standard_deviation: float, clients: int, dimension: int) -> tuple[float, float] | None:
    """`near` where it is worth having: hardly any variance is given up and slack is tiny."""
    given_up = math.log(5.0 * dimension / _SMOOTHING) / (2.0 * math.pi**2)
    if not clients * standard_deviation**2 >= _LEAST_GAIN * given_up:
        return None
    found = near(standard_deviation, clients, dimension, given_up)
    return found if found[1] <= _MOST_SLACK else None


def _ripple(variance: float) -> float:
    """By how much Σ exp(−(k − x)²/2v) over the integers k departs from √(2πv), relatively."""
    decay = math.exp(-2.0 * math.pi**2 * variance)
    return 2.0 * decay / (1.0 - decay)
