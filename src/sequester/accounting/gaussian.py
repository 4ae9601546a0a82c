"""The Gaussian mechanism exactly: μ-GDP with μ = sensitivity / standard deviation.

Source: Balle & Wang 2018 (1805.06530), theorem 8; Dong, Roth & Su 2022 (1905.02383).
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr, ndtri

# log_ndtr is accurate to a few units in the last place; this covers it and the subtraction.
_ROUNDING = 1e-13


def log_delta(epsilon: float, mu: float) -> float:
    """Log of the exact δ(ε) of a μ-GDP Gaussian, rounded up."""
    if mu == 0.0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    first = float(log_ndtr(mu / 2.0 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    gap = second - first
    if gap >= 0.0:  # only by rounding: the two are equal to the last digit
        return first + math.log(_ROUNDING * (1.0 + abs(first)))
    # Relative error of 1 − e^gap grows as the two terms approach each other.
    error = _ROUNDING * (1.0 + abs(first) + abs(second))
    return first + math.log(min(1.0, -math.expm1(gap) + error)) + error


def delta(epsilon: float, mu: float) -> float:
    """The exact δ(ε) of a μ-GDP Gaussian, rounded up."""
    return min(1.0, math.exp(log_delta(epsilon, mu)))


def epsilon(delta_target: float, mu: float) -> float:
    """The exact ε(δ) of a μ-GDP Gaussian, rounded up by at most one part in 10¹²."""
    if mu == 0.0:
        return 0.0
    if delta_target == 0.0 or math.isinf(mu):
        return math.inf
    goal = math.log(delta_target)
    if log_delta(0.0, mu) <= goal:
        return 0.0
    # P(loss > ε) alone is ≥ δ(ε), so this ε is enough.
    high = mu * mu / 2.0 - mu * float(ndtri(delta_target)) + mu
    high = max(high, mu)
    while log_delta(high, mu) > goal:
        high *= 2.0
    low = 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= 1e-13 * high:
            break
        if log_delta(middle, mu) > goal:
            low = middle
        else:
            high = middle
    return high


def mu_from(epsilon_value: float, delta_value: float) -> float:
    """The smallest μ whose Gaussian has δ(ε) ≥ `delta_value` (rounded up)."""
    if delta_value <= 0.0:
        return 0.0
    goal = math.log(delta_value)
    low, high = 0.0, 1.0
    while log_delta(epsilon_value, high) < goal and high < 1e8:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if log_delta(epsilon_value, middle) < goal:
            low = middle
        else:
            high = middle
    return high


def tpr(fpr: float, mu: float) -> float:
    """Highest true-positive rate of any membership test at false-positive rate `fpr`."""
    if fpr <= 0.0:
        return 0.0
    return float(ndtr(ndtri(fpr) + mu)) if fpr < 1.0 else 1.0
