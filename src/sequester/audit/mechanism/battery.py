"""Tests on the noise itself: cheap, and they see what canaries cannot.

Canaries measure what an attacker gains; noise that is repeated, too small by a few per cent or
missing in one small tensor gains them little and still breaks the claim. Each check is an exact
or conservative p-value under "the run does what its plan says", so that the battery as a whole
raises a false alarm with at most its level (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom, chi2, kstest, poisson

from sequester.audit.mechanism.trace import Floats, Trace

_COORDINATES = 4000  # per step, where a check's cost or validity asks for fewer
_KS_VALUES = 50_000
_LAGS = 5  # distances between steps whose noise is compared along the whole run
_LARGEST_GAP = 1e-3  # clipping bounds: single precision's rounding, a thousand times over
_POWER = 0.8  # chance to find the error that is said to be the smallest one found
_TIES_EXPECTED = 0.02  # ties per coordinate of true noise: rare enough to be Poisson


@dataclass(frozen=True)
class Check:
    """One test of the noise or of the sampling.

    Attributes:
        name: What was tested.
        p_value: Chance of a result as extreme if the run does what its plan says.
        meaning: What a failure means.
    """

    name: str
    p_value: float
    meaning: str


@dataclass(frozen=True)
class BatteryResult:
    """All checks of one run, and whether together they raise an alarm at `level`.

    Attributes:
        checks: What was tested.
        level: Chance of a false alarm, all checks together.
        smallest: Noise too small by less than this share, in every tensor, is missed more often
            than one time in five; so much noise was looked at and no more.
    """

    checks: tuple[Check, ...]
    level: float
    smallest: float

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks below their share of the level."""
        share = self.level / len(self.checks)
        return tuple(check for check in self.checks if check.p_value < share)

    @property
    def alarm(self) -> bool:
        """Whether any check failed."""
        return bool(self.failed)


def run_battery(trace: Trace, *, level: float = 0.01) -> BatteryResult:
    """Every check that the trace allows.

    Args:
        trace: Of the real steps.
        level: Chance of a false alarm, all checks together.
    """
    noise = trace.residual
    # No test is defined on such numbers, and noise never makes one.
    if not (np.isfinite(noise).all() and np.isfinite(trace.count).all()):
        broken = Check("finite", 0.0, "a released number is not finite")
        return BatteryResult((broken,), level, smallest=1.0)
    checks = [
        Check(
            "variance per tensor",
            _variance_per_tensor(trace),
            "a tensor's noise is larger or smaller than claimed",
        ),
        Check(
            "variance per step",
            _bonferroni([_chi_square(row) for row in noise]),
            "the noise's scale changes from step to step, as with a denominator from the data",
        ),
        Check("repeats between steps", _repeats(noise), "steps share their noise"),
        Check(
            "lag correlation",
            _lag_correlation(noise),
            "the noise of a step depends on that of the steps before",
        ),
        Check(
            "repeats between tensors",
            _repeats_between_tensors(trace),
            "tensors share their noise",
        ),
        Check(
            "sum over coordinates",
            _chi_square(noise.sum(axis=1) / math.sqrt(noise.shape[1])),
            "coordinates share their noise",
        ),
        Check("normality", _normality(noise), "the noise is not Gaussian"),
        Check("ties", _ties(noise), "the noise was made in a small precision"),
        Check(
            "along the sum",
            _alternatives(trace.signal),
            "what was released is not the clipped sum of the plan",
        ),
        Check(
            "at the canaries",
            _alternatives(trace.presence),
            "a canary weighs more or less than one person may",
        ),
        *_sampling(trace),
        *_engine(trace),
        *_count(trace),
    ]
    sizes = [last - first for first, last in trace.tensors.values()]
    smallest = smallest_error(sizes, len(noise), level=level, checks=len(checks))
    return BatteryResult(tuple(checks), level, smallest)


def smallest_error(
    sizes: Sequence[int], steps: int, *, level: float = 0.01, checks: int = 13
) -> float:
    """The smallest shortfall of noise that the variances show four times in five.

    n squares of noise that is f of what is claimed sum to f²·χ²(n); the test alarms below the
    quantile of χ²(n) at its share of the level. The most powerful one decides: of a tensor over
    all steps, or of a step over all tensors.

    Args:
        sizes: Weights of each tensor.
        steps: Of them, or clients' releases, that are looked at.
        level: Of all checks together.
        checks: How many share the level.

    Returns:
        1 − f, in (0, 1].
    """
    trials = [(max(sizes) * steps, len(sizes)), (sum(sizes), steps)]
    shares = [
        float(chi2.ppf(level / checks / tests / 2, n) / chi2.ppf(_POWER, n)) for n, tests in trials
    ]
    return 1.0 - math.sqrt(max(shares))


def _count(trace: Trace) -> list[Check]:
    """The noise behind an adaptive bound."""
    if not len(trace.count):
        return []
    means = "the adaptive bound follows a count without its noise"
    return [Check("count behind the bound", _chi_square(trace.count), means)]


def _engine(trace: Trace) -> list[Check]:
    """The fast engine and the float64 loop agree on a few people."""
    if not len(trace.gaps):
        return []
    agree = bool((trace.gaps <= _LARGEST_GAP).all())
    means = "the engine does not compute people's clipped gradients"
    return [Check("people's sum", 1.0 if agree else 0.0, means)]


def _sampling(trace: Trace) -> list[Check]:
    """Lots are coins of the charged rate or of its size, and every charged step ran once."""
    drawn, rate = trace.drawn, trace.rate
    steps, people = drawn.shape
    exact = 1.0 if trace.steps_released == trace.steps_charged else 0.0
    found = [
        Check("steps", exact, "more or fewer steps left the mechanism than were charged"),
    ]
    if rate >= 1.0:
        full = 1.0 if bool(drawn.all()) else 0.0
        return [*found, Check("participation", full, "somebody was left out of a full lot")]
    visits = Check(
        "visits per person",
        _dispersion(drawn.sum(axis=0), steps, rate),
        "people are visited in turn, as when shuffling",
    )
    if trace.lot_size:
        sized = 1.0 if bool((drawn.sum(axis=1) == trace.lot_size).all()) else 0.0
        return [*found, Check("lot sizes", sized, "a lot has not the size that is charged"), visits]
    total = int(drawn.sum())
    found.append(
        Check(
            "participation",
            _two_sided(
                float(binom.cdf(total, drawn.size, rate)),
                float(binom.sf(total - 1, drawn.size, rate)),
            ),
            "people take part more or less often than the rate that is charged",
        )
    )
    found.append(
        Check(
            "lot sizes",
            _dispersion(drawn.sum(axis=1), people, rate),
            "lots vary more or less than independent coins: not Poisson sampling",
        )
    )
    return [*found, visits]


def _variance_per_tensor(trace: Trace) -> float:
    return _bonferroni(
        [_chi_square(trace.residual[:, first:last]) for first, last in trace.tensors.values()]
    )


def _chi_square(values: Floats) -> float:
    """Two-sided: the sum of squares of standard normals; 0 where a value is not finite."""
    if not np.isfinite(values).all():
        return 0.0
    total = float(np.square(values).sum())
    if not values.size:
        return 1.0
    return _two_sided(float(chi2.cdf(total, values.size)), float(chi2.sf(total, values.size)))


def _alternatives(values: Floats) -> float:
    """A shared shift, or an excess of either sign: twice the smaller of two p-values.

    NaN stands for a step that had nothing to look along, see `Trace`; ∞ is a failure.
    """
    clean = values[~np.isnan(values)]
    if not clean.size:
        return 1.0
    if np.isinf(clean).any():
        return 0.0
    mean = 2 * float(ndtr(-abs(float(clean.sum())) / math.sqrt(clean.size)))
    return _bonferroni([mean, _chi_square(clean)])


def _repeats(noise: Floats) -> float:
    """The largest inner product of two steps' noise.

    Given one step, its product with another is normal with the first one's norm as standard
    deviation; all pairs by Bonferroni.
    """
    steps = noise.shape[0]
    if steps < 2:
        return 1.0
    products = noise @ noise.T
    norms = np.sqrt(np.diag(products))
    rows, columns = np.triu_indices(steps, 1)
    scale = np.maximum(norms[rows], 1e-300)
    return _bonferroni_largest(np.abs(products[rows, columns]) / scale)


def _lag_correlation(noise: Floats) -> float:
    """Inner products of noise that lies the same few steps apart, summed over the run.

    Sees a weak dependence of every step on an earlier one, which no single pair shows. Given
    the earlier steps each product is normal, with the earlier norm as standard deviation.
    """
    deviations = []
    for lag in range(1, min(_LAGS, noise.shape[0] - 1) + 1):
        before, after = noise[:-lag], noise[lag:]
        scale = math.sqrt(float(np.square(before).sum()))
        deviations.append(abs(float((before * after).sum())) / max(scale, 1e-300))
    return _bonferroni_largest(np.array(deviations))


def _repeats_between_tensors(trace: Trace) -> float:
    """The same normals at the beginning of two tensors, summed over steps."""
    noise = trace.residual
    spans = [span for span in trace.tensors.values() if span[1] - span[0] >= 2]
    deviations = []
    for index, (first, last) in enumerate(spans):
        for other, end in spans[index + 1 :]:
            length = min(last - first, end - other)
            left = noise[:, first : first + length]
            right = noise[:, other : other + length]
            scale = math.sqrt(float(np.square(left).sum()))
            deviations.append(abs(float((left * right).sum())) / max(scale, 1e-300))
    return _bonferroni_largest(np.array(deviations)) if deviations else 1.0


def _normality(noise: Floats) -> float:
    """Kolmogorov and Smirnov, on at most `_KS_VALUES` evenly spread values."""
    flat = noise.reshape(-1)
    return float(kstest(flat[:: max(1, flat.size // _KS_VALUES)], "norm").pvalue)


def _ties(noise: Floats) -> float:
    """Too many neighbours closer than true noise has them.

    Two standard normals are within g of each other with probability g/√π for small g.
    """
    width = min(noise.shape[1], _COORDINATES)
    gap = 2 * _TIES_EXPECTED * math.sqrt(math.pi) / max(1, width)
    ordered = np.sort(noise[:, :width], axis=1)
    ties = int((np.diff(ordered, axis=1) < gap).sum())
    # A little above the exact mean, so that the approximation errs towards silence.
    expected = 1.02 * _TIES_EXPECTED * ordered.size
    return float(poisson.sf(ties - 1, expected))


def _dispersion(counts: np.ndarray, trials: int, rate: float) -> float:
    """Two-sided: how much binomial counts vary, the χ² of Cochran; only where it is sound."""
    if trials * min(rate, 1 - rate) < 3.0 or len(counts) < 8:
        return 1.0
    expected, variance = trials * rate, trials * rate * (1 - rate)
    total = float(np.square(counts - expected).sum() / variance)
    # The χ² is approximate for counts: the spread of a squared binomial deviation is wider.
    excess = (1 - 6 * rate * (1 - rate)) / variance
    scale = math.sqrt(1 + max(0.0, excess) / 2)
    centred = len(counts) + (total - len(counts)) / scale
    return _two_sided(float(chi2.cdf(centred, len(counts))), float(chi2.sf(centred, len(counts))))


def _two_sided(lower: float, upper: float) -> float:
    return min(1.0, 2 * min(lower, upper))


def _bonferroni(p_values: list[float]) -> float:
    return min(1.0, min(p_values, default=1.0) * max(1, len(p_values)))


def _bonferroni_largest(deviations: Floats) -> float:
    if not deviations.size:
        return 1.0
    return min(1.0, 2 * float(ndtr(-float(deviations.max()))) * deviations.size)
