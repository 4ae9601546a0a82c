"""Solving for one knob of a run, always from the safe side.

Each function returns a value whose certified ε is ≤ the target, within a relative 10⁻⁴ of the
best such value. Source of the scheme: bracketing on a logarithmic scale with the cheap Rényi
bound, then the Illinois method on the certified ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sequester.accounting import checks
from sequester.accounting.accountant import epsilon as epsilon_of
from sequester.accounting.events import Event, Gaussian, PoissonSampled, SelfComposed
from sequester.core.errors import UsageError
from sequester.core.values import check_delta

RELATIVE = 1e-5
# The answer is moved this much further to the safe side, so that printing it with five digits
# or computing ε on another grid does not pass the target.
MARGIN = 9e-5
_LEAST, _MOST = 1e-3, 1e6


def noise_multiplier(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    adjacency: str = "add-or-remove",
    accountant: str = "pld",
) -> float:
    """The smallest noise multiplier of Poisson-sampled Gaussian steps with ε ≤ `epsilon`.

    Raises:
        UsageError: SQ-201, 207, 208 or 215.
    """
    rate, count = checks.rate(sampling_rate), checks.count(steps, "steps")
    if rate == 0.0 or count == 0:
        raise UsageError(
            215, "nothing is released at sampling_rate 0 or 0 steps: no noise is needed"
        )
    return noise_for(
        lambda noise: SelfComposed(PoissonSampled(rate, Gaussian(noise)), count),
        epsilon,
        delta,
        adjacency=adjacency,
        accountant=accountant,
    )


def noise_for(
    event_of: Callable[[float], Event],
    epsilon: float,
    delta: float,
    *,
    adjacency: str = "add-or-remove",
    accountant: str = "pld",
) -> float:
    """The smallest parameter z with ε(event_of(z)) ≤ `epsilon`, for ε falling in z.

    Raises:
        UsageError: SQ-201; SQ-215 if no z in [10⁻³, 10⁶] reaches the target.
    """
    target, _ = _target(epsilon), check_delta(delta)

    def cost(log_noise: float, kind: str) -> float:
        event = event_of(math.exp(log_noise))
        return epsilon_of(event, delta, adjacency=adjacency, accountant=kind)

    found = _smallest(cost, target, (math.log(_LEAST), math.log(_MOST)), accountant)
    if found is None:
        raise UsageError(
            215, f"no noise multiplier up to {_MOST:g} reaches epsilon {target} at this delta"
        )
    return math.exp(found)


def steps(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    *,
    adjacency: str = "add-or-remove",
    accountant: str = "pld",
) -> int:
    """The largest number of Poisson-sampled Gaussian steps with ε ≤ `epsilon`.

    Raises:
        UsageError: SQ-201, 206, 207; SQ-215 if not even one step fits, or any number does.
    """
    target, _ = _target(epsilon), check_delta(delta)
    step = PoissonSampled(sampling_rate, Gaussian(noise_multiplier))
    if step.sampling_rate == 0.0:
        raise UsageError(215, "at sampling_rate 0 nothing is released: any number of steps fits")

    def fits(count: int, kind: str) -> bool:
        event = SelfComposed(step, count)
        return epsilon_of(event, delta, adjacency=adjacency, accountant=kind) <= target

    if not fits(1, accountant):
        raise UsageError(
            215,
            f"not even one step fits epsilon {target} at delta {delta}; raise the noise "
            "multiplier or lower the sampling rate",
        )
    low = _grow(lambda count: fits(count, "rdp"), 1)
    if accountant == "rdp":
        return low
    return _grow(lambda count: fits(count, "pld"), low)


def sampling_rate(
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int,
    *,
    adjacency: str = "add-or-remove",
    accountant: str = "pld",
) -> float:
    """The largest sampling rate ≤ 1 with ε ≤ `epsilon`.

    Raises:
        UsageError: SQ-201, 206, 208; SQ-215 if no rate above 10⁻⁹ fits.
    """
    target, _ = _target(epsilon), check_delta(delta)
    noise, count = checks.noise_multiplier(noise_multiplier), checks.count(steps, "steps")
    if count == 0:
        return 1.0

    def cost(minus_log_rate: float, kind: str) -> float:
        event = SelfComposed(PoissonSampled(math.exp(-minus_log_rate), Gaussian(noise)), count)
        return epsilon_of(event, delta, adjacency=adjacency, accountant=kind)

    if cost(0.0, accountant) <= target:
        return 1.0
    found = _smallest(cost, target, (0.0, math.log(1e9)), accountant)
    if found is None:
        raise UsageError(
            215,
            f"no sampling rate above 1e-9 reaches epsilon {target}; raise the noise multiplier",
        )
    return math.exp(-found)


def _target(epsilon: float) -> float:
    target = checks.real(epsilon, "epsilon")
    if not target > 0.0:
        raise UsageError(202, f"epsilon must be > 0 to calibrate for it, got {epsilon}")
    return target


def _grow(fits: Callable[[int], bool], low: int) -> int:
    """The largest count that fits, searching up from one that does."""
    if not fits(low):
        return low
    high = low + 1
    stride = max(1, low // 16)
    while fits(high):
        low, high = high, high + stride
        stride *= 2
        if high > 10**12:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _smallest(
    cost: Callable[[float, str], float],
    target: float,
    span: tuple[float, float],
    accountant: str,
) -> float | None:
    """The smallest x in `span` with cost(x) ≤ target for a falling cost; None if none."""
    rough = _bracket(lambda x: cost(x, "rdp"), target, span, 3e-3)
    if rough is None:
        start = span[1]
    else:
        start = rough[1]
    if accountant == "rdp":
        if rough is None:
            return None
        return _refine(lambda x: cost(x, "rdp"), target, rough)

    def exact(x: float) -> float:
        return cost(x, accountant)

    at_start = exact(start)
    if at_start > target:
        return None
    # The certified ε is a little below the Rényi one. Follow the Rényi slope to where the
    # certified ε should meet the target, and a little beyond, so that the two ends bracket it.
    nearby = cost(start - 0.05, "rdp")
    here = cost(start, "rdp")
    slope = math.log(nearby / here) / 0.05 if 0.0 < here < nearby < math.inf else 1.0
    high, low, width = start, start, 0.0
    while at_start <= target and low > span[0]:
        missing = math.log(target / max(at_start, 1e-9 * target))
        width = max(1.5 * missing / max(slope, 0.05), 2.0 * width, 2e-3)
        high, low = low, max(span[0], low - width)
        at_start = exact(low)
    if at_start <= target:
        return low
    return _refine(exact, target, (low, high))


def _bracket(
    cost: Callable[[float], float], target: float, span: tuple[float, float], width: float
) -> tuple[float, float] | None:
    low, high = span
    if cost(high) > target:
        return None
    if cost(low) <= target:
        return low, low
    while high - low > width:
        middle = 0.5 * (low + high)
        if cost(middle) <= target:
            high = middle
        else:
            low = middle
    return low, high


def _refine(cost: Callable[[float], float], target: float, bracket: tuple[float, float]) -> float:
    """Illinois' method on log cost, keeping `high` on the safe side."""
    low, high = bracket
    if low == high:
        return high

    def gap(x: float) -> float:
        value = cost(x)
        return math.log(max(value, 1e-300) / target) if math.isfinite(value) else 50.0

    at_low, at_high = gap(low), gap(high)
    side = 0
    for _ in range(60):
        if high - low <= RELATIVE:
            break
        cut = (low * at_high - high * at_low) / (at_high - at_low)
        # Aim a hair to the safe side, so that the safe end moves too.
        cut += 0.4 * RELATIVE
        if not low < cut < high:
            cut = 0.5 * (low + high)
        value = gap(cut)
        if value <= 0.0:
            high, at_high = cut, value
            at_low *= 0.5 if side == 1 else 1.0
            side = 1
        else:
            low, at_low = cut, value
            at_high *= 0.5 if side == -1 else 1.0
            side = -1
    safer = high + MARGIN
    return safer if cost(safer) <= target else high
