"""Rényi differential privacy: exact moments where known, upper bounds elsewhere.

Orders are real numbers > 1. Where only whole orders have a formula, (α−1)·D_α is convex in α,
so interpolating it linearly is an upper bound (Wang, Balle & Kasiviswanathan 2019, cor. 10).
Every value is an upper bound; the last rounding is covered by `UP`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from sequester.core.errors import UsageError

UP = 1.0 + 1e-11
LEAST_ORDER = 1.01
LARGEST_ORDER = 2.0**16
_MOST_POINTS = 40_000

Curve = Callable[[float], float]
Components = tuple[tuple[float, float], ...]  # (shift, weight) of a mixture of Gaussians


def check_orders(orders: object) -> np.ndarray:
    """Orders as a float array, each finite and > 1.

    Raises:
        UsageError: SQ-216 otherwise.
    """
    values = np.atleast_1d(np.asarray(orders, dtype=float))
    if values.size == 0 or not np.all((values > 1.0) & np.isfinite(values)):
        raise UsageError(216, f"Rényi orders must be finite and > 1, got {orders!r}")
    return values


# --- conversion ------------------------------------------------------------------------------


def epsilon_at(order: float, value: float, delta: float) -> float:
    """ε at `delta` from D_order ≤ `value`.

    Source: Canonne, Kamath & Steinke 2020 (2004.00010), proposition 12.
    """
    log_terms = (math.log(delta) + math.log(order)) / (order - 1.0)
    return max(0.0, value + math.log1p(-1.0 / order) - log_terms)


def log_delta_at(order: float, value: float, epsilon: float) -> float:
    """Log δ at `epsilon` from D_order ≤ `value`; same source, solved for δ."""
    exponent = (order - 1.0) * (value - epsilon + math.log1p(-1.0 / order))
    return min(0.0, exponent - math.log(order))


def minimise(objective: Curve) -> tuple[float, float]:
    """(order, value) minimising `objective` over real orders; any order is a valid bound."""
    grid = np.linspace(math.log(LEAST_ORDER - 1.0), math.log(LARGEST_ORDER), 27)
    values: list[float] = []
    for log_order in grid:
        values.append(objective(1.0 + math.exp(log_order)))
        # Past the minimum the curve only climbs; three steps up are proof enough to stop.
        if len(values) > 4 and values[-4] < values[-3] < values[-2] < values[-1]:
            break
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(values) - 1)]
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    candidates = [(values[best], grid[best])]
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    f_left, f_right = objective(1.0 + math.exp(left)), objective(1.0 + math.exp(right))
    for _ in range(22):
        candidates += [(f_left, left), (f_right, right)]
        if f_left <= f_right:
            high, right, f_right = right, left, f_left
            left = high - ratio * (high - low)
            f_left = objective(1.0 + math.exp(left))
        else:
            low, left, f_left = left, right, f_right
            right = low + ratio * (high - low)
            f_right = objective(1.0 + math.exp(right))
    value, place = min(candidates)
    return 1.0 + math.exp(place), value


# --- moments ---------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def sampled_gaussian(rate: float, sigma: float, order: float) -> float:
    """D_order of Poisson-sampled Gaussian noise, exact at fractional orders too.

    Removal is the larger direction (Mironov, Talwar & Zhang 2019, 1908.10530, theorem 5).
    """
    if rate == 0.0:
        return 0.0
    if sigma == 0.0:
        return math.inf
    if rate == 1.0:
        return order / (2.0 * sigma * sigma) * UP
    if order == round(order) and order <= 2.0 * LARGEST_ORDER:
        return _whole_order(rate, sigma, round(order)) / (order - 1.0) * UP
    if order > 64.0 or _points(order, sigma, 1.0) > _MOST_POINTS:
        return interpolated(lambda whole: sampled_gaussian(rate, sigma, whole), order)
    upper = ((0.0, 1.0 - rate), (1.0, rate))
    return mixture(upper, ((0.0, 1.0),), sigma, order)


def _whole_order(rate: float, sigma: float, order: int) -> float:
    """Log of the order-th moment for a whole order: a sum of positive terms."""
    k = np.arange(2, order + 1, dtype=float)
    exponent = k * (k - 1.0) / (2.0 * sigma * sigma)
    log_growth = np.where(exponent > 30.0, exponent, np.log(np.expm1(np.minimum(exponent, 30.0))))
    terms = (
        gammaln(order + 1.0)
        - gammaln(k + 1.0)
        - gammaln(order - k + 1.0)
        + k * math.log(rate)
        + (order - k) * math.log1p(-rate)
        + log_growth
    )
    largest = float(terms.max())
    excess = largest + math.log(float(np.exp(terms - largest).sum()))
    # gammaln of large arguments loses absolute accuracy in the exponent; cover it.
    excess += 1e-15 * (order * math.log(order + 1.0) + 8.0)
    return float(np.logaddexp(0.0, excess))


def interpolated(curve: Curve, order: float) -> float:
    """Upper bound at a fractional order from the two whole orders around it."""
    low, high = float(math.floor(order)), float(math.ceil(order))
    if low == high:
        return curve(order)
    at_low = 0.0 if low <= 1.0 else (low - 1.0) * curve(low)
    at_high = (high - 1.0) * curve(high)
    return ((high - order) * at_low + (order - low) * at_high) / (order - 1.0) * UP


@lru_cache(maxsize=16384)
def mixture(upper: Components, lower: Components, sigma: float, order: float) -> float:
    """D_order(P‖Q) for mixtures P, Q of Gaussians with a common standard deviation.

    The integrand is analytic in a strip around the real line, so the trapezoidal rule
    converges exponentially; the excess over 1 is integrated, which keeps full relative
    accuracy for tiny sampling rates.
    """
    reach = max(abs(shift) for shift, _ in upper + lower)
    if _points(order, sigma, reach) > _MOST_POINTS:
        if order < LARGEST_ORDER and order != math.ceil(order):
            return interpolated(lambda whole: mixture(upper, lower, sigma, whole), order)
        return (2.0 * reach) ** 2 * order / (2.0 * sigma * sigma)
    step = _step(sigma)
    span = reach * (2.0 * order - 1.0) + 11.0 * sigma
    x = np.arange(-math.ceil(span / step), math.ceil(span / step) + 1) * step
    log_p, log_q = _log_density(upper, x, sigma), _log_density(lower, x, sigma)
    terms = log_q + _log_excess(log_p - log_q, order)
    largest = float(terms.max())
    if largest == -math.inf:
        return 0.0
    scale = math.log(step / (sigma * math.sqrt(2.0 * math.pi)))
    excess = largest + math.log(float(np.exp(terms - largest).sum())) + scale
    return float(np.logaddexp(0.0, excess)) / (order - 1.0) * (1.0 + 1e-9)


def _step(sigma: float) -> float:
    # The nearest singularity lies at ±iπσ²; the rule's error is then below 1e-15.
    return min(0.5 * sigma, 17.0 * sigma * sigma / (40.0 + 4.0 * sigma * sigma))


def _points(order: float, sigma: float, reach: float) -> float:
    return 2.0 * (reach * (2.0 * order - 1.0) + 11.0 * sigma) / _step(sigma)


def _log_density(components: Components, x: np.ndarray, sigma: float) -> np.ndarray:
    """Log density up to the common factor 1/(σ√2π)."""
    total = np.full(x.shape, -np.inf)
    for shift, weight in components:
        if weight > 0.0:
            total = np.logaddexp(total, math.log(weight) - (x - shift) ** 2 / (2.0 * sigma**2))
    return total


def _log_excess(loss: np.ndarray, order: float) -> np.ndarray:
    """Log of (1+r)^α − 1 − αr ≥ 0 with 1+r = e^loss, accurate for small and large loss."""
    power = order * loss
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = np.expm1(np.minimum(loss, 700.0))
        plain = np.log(np.expm1(np.minimum(power, 600.0)) - order * ratio)
        # (1 + αr)·e^(−αℓ), written so that nothing overflows
        rest = np.exp(-power) * (1.0 - order) + order * np.exp(loss - power)
        large = power + np.log1p(-rest)
        a = order
        series = 1.0 + ratio * (a - 2.0) / 3.0 * (
            1.0 + ratio * (a - 3.0) / 4.0 * (1.0 + ratio * (a - 4.0) / 5.0)
        )
        small = math.log(a * (a - 1.0) / 2.0) + 2.0 * np.log(np.abs(ratio)) + np.log(series)
    tiny = np.abs(ratio) * max(order, 2.0) < 3e-4
    return np.where(tiny, small, np.where(power > 30.0, large, plain))


# --- sampling of anything --------------------------------------------------------------------


MOST_SAMPLED_ORDER = 4096


def cumulants(curve: Curve) -> np.ndarray:
    """(k − 1)·D_k for k = 2 … 4096: what `poisson_sampled` needs of a mechanism."""
    return np.array([(k - 1) * curve(float(k)) for k in range(2, MOST_SAMPLED_ORDER + 1)])


def symmetric_poisson_sampled(logs: np.ndarray, curve: Curve, rate: float, order: float) -> float:
    """Poisson sampling of noise that is symmetric about what it is added to, at a whole order.

    The binomial expansion of the moment of (1 − q)Q + qP over Q is exact at whole orders, and
    the reflection that swaps P and Q makes this the larger of the two directions (Mironov,
    Talwar & Zhang 2019, 1908.10530, theorem 5), so the factor that Zhu & Wang need for any
    mechanism falls away.

    Args:
        logs: `cumulants(curve)`.
        curve: Rényi curve without sampling.
        rate: Sampling rate.
        order: A whole number > 1.
    """
    whole = round(order)
    if rate == 1.0 or whole > MOST_SAMPLED_ORDER:
        return curve(order)  # sampling never hurts
    k = np.arange(2, whole + 1, dtype=float)
    choose = gammaln(whole + 1.0) - gammaln(k + 1.0) - gammaln(whole - k + 1.0)
    choose += 1e-15 * whole * math.log(whole + 1.0)  # covers the rounding of large logarithms
    few = (whole - 1) * math.log1p(-rate) + math.log1p((whole - 1) * rate)
    terms = choose + (whole - k) * math.log1p(-rate) + k * math.log(rate) + logs[: whole - 1]
    total = float(np.logaddexp.reduce(np.append(terms, few))) / (order - 1.0) * UP + 1e-13
    return min(total, curve(order))


def poisson_sampled(curve: Curve, rate: float, order: float) -> float:
    """Poisson sampling of any mechanism with Rényi curve `curve`.

    Source: Zhu & Wang 2019 (ICML), theorem 5: holds without conditions on the mechanism.
    """
    if order != round(order):
        return interpolated(lambda whole: poisson_sampled(curve, rate, whole), order)
    whole = min(round(order), MOST_SAMPLED_ORDER)
    if order > whole:
        return curve(order)  # sampling never hurts
    log_keep, log_rate = math.log1p(-rate) if rate < 1.0 else -math.inf, math.log(rate)
    if rate == 1.0:
        return curve(order)
    terms = [(whole - 1) * log_keep + math.log1p((whole - 1) * rate)]
    for k in range(2, whole + 1):
        choose = math.lgamma(whole + 1) - math.lgamma(k + 1) - math.lgamma(whole - k + 1)
        factor = 0.0 if k == 2 else math.log(3.0)
        terms.append(
            factor + choose + (whole - k) * log_keep + k * log_rate + (k - 1) * curve(float(k))
        )
    total = float(np.logaddexp.reduce(terms)) / (order - 1.0) * UP + 1e-13
    return min(total, curve(order))


@lru_cache(maxsize=16384)
def fixed_size_gaussian(rate: float, sigma: float, order: float) -> float:
    """Sampling without replacement, replace-one, `sigma` over the *replacement's* sensitivity.

    Source: Wang, Balle & Kasiviswanathan 2019 (1808.00087), theorem 9.
    """
    if order != round(order):
        return interpolated(lambda whole: fixed_size_gaussian(rate, sigma, whole), order)
    whole = round(order)
    unsampled = order / (2.0 * sigma * sigma) if sigma > 0.0 else math.inf
    if rate == 1.0 or whole > 4096 or math.isinf(unsampled):
        return unsampled
    terms = [0.0]
    k = np.arange(2, whole + 1, dtype=float)
    choose = gammaln(whole + 1.0) - gammaln(k + 1.0) - gammaln(whole - k + 1.0)
    cumulant = k * (k - 1.0) / (2.0 * sigma * sigma)
    bounds = math.log(2.0) + cumulant
    two = 1.0 / (sigma * sigma)
    bounds[0] = min(bounds[0], math.log(4.0) + (two if two > 30 else math.log(math.expm1(two))))
    terms += list(k * math.log(rate) + choose + bounds)
    return min(float(np.logaddexp.reduce(terms)) / (order - 1.0) * UP + 1e-13, unsampled)


# --- integer noise and selection -------------------------------------------------------------


def skellam(variance: float, l2: float, l1: float, order: float) -> float:
    """Skellam noise. Source: Agarwal, Kairouz & Liu 2021 (2110.04995), theorem 3.5."""
    if order != round(order):
        return interpolated(lambda whole: skellam(variance, l2, l1, whole), order)
    correction = min(
        ((2.0 * order - 1.0) * l2 * l2 + 6.0 * l1) / (4.0 * variance * variance),
        3.0 * l1 / (2.0 * variance),
    )
    return (order * l2 * l2 / (2.0 * variance) + correction) * UP


def repeat_and_select(curve: Curve, mean: float, shape: float, order: float) -> float:
    """Best of a random number of runs. Source: Papernot & Steinke 2022, theorems 2 and 6."""
    base = curve(order)
    tail = math.log(mean) / (order - 1.0)
    if math.isinf(shape):
        threshold = math.log1p(1.0 / (order - 1.0))
        _, log_slack = minimise(lambda other: log_delta_at(other, curve(other), threshold))
        return base + mean * math.exp(log_slack) + tail
    gamma = _gamma_of_mean(mean, shape)
    _, extra = minimise(lambda other: (1.0 - 1.0 / other) * curve(other) - math.log(gamma) / other)
    return base + (1.0 + shape) * extra + tail


@lru_cache(maxsize=256)
def _gamma_of_mean(mean: float, shape: float) -> float:
    """The success probability γ whose number of runs has the given mean, rounded down."""

    def mean_of(gamma: float) -> float:
        if gamma >= 1.0:
            return 1.0
        if shape == 0.0:
            return (1.0 / gamma - 1.0) / -math.log(gamma)
        return shape * (1.0 / gamma - 1.0) / -math.expm1(shape * math.log(gamma))

    low, high = 1e-300, 1.0
    for _ in range(400):
        middle = math.sqrt(low * high)
        if mean_of(middle) >= mean:
            low = middle
        else:
            high = middle
    return low


def total(parts: list[tuple[Curve, int]], orders: object) -> np.ndarray:
    """Σ count·D_order over parts, one value per order."""
    values = check_orders(orders)
    return np.array([sum(n * curve(float(a)) for curve, n in parts) for a in values])
