"""Gaussian differential privacy, rounded *down*: an audit may never overstate what it found.

Source: Dong, Roth, Su 2022 (JRSS-B), definition 2.6 and corollary 2.13.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

_LARGEST = 1e6
_TOLERANCE = 1e-12


def delta_of_mu(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP: `Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2)`, computed without cancellation."""
    if mu <= 0.0:
        return 0.0
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return -math.exp(first) * math.expm1(min(0.0, second - first))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The ε ≥ 0 at which μ-GDP has δ(ε) = `delta`; 0 if it never exceeds it."""
    if mu <= 0.0 or delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    high = 1.0
    while high < _LARGEST and delta_of_mu(mu, high) > delta:
        high *= 2.0
    if high >= _LARGEST:
        return _LARGEST
    root = brentq(lambda e: delta_of_mu(mu, e) - delta, 0.0, high, xtol=_TOLERANCE)
    return max(0.0, float(root) - _TOLERANCE)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """The μ whose GDP meets (ε, δ) exactly: the strongest Gaussian mechanism under a claim."""
    high = 1.0
    while delta_of_mu(high, epsilon) < delta:
        high *= 2.0
    return float(brentq(lambda mu: delta_of_mu(mu, epsilon) - delta, 1e-12, high, xtol=1e-14))
