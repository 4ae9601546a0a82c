"""Lower bounds on ε from canaries' scores, one function per kind of evidence.

They rest on different assumptions, so no function ever takes the larger of two:

    one_run          any mechanism           Steinke, Nasr, Jagielski 2023 (NeurIPS), theorem 5.2
    one_run_fdp      a trade-off curve       Mahloujifar, Melis, Chaudhuri 2025 (ICML), algorithm 3
    clopper_pearson  independent trials      Jagielski, Ullman, Oprea 2020 (NeurIPS), section 4
    gaussian_dp      independent trials,     Nasr et al. 2023 (USENIX Security), section 4
                     Gaussian mechanism
    mean_estimate    an *estimate*, Gaussian scores
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, ndtri
from scipy.stats import binom

from sequester.audit.mechanism.curves import Curve, GaussianCurve
from sequester.audit.mechanism.gaussian import epsilon_of_mu
from sequester.core.errors import UsageError
from sequester.core.values import check_delta

LARGEST_EPSILON = 100.0
"""No bound reports more; a broken mechanism is as broken at 100 as at 1000."""

_ROOT_STEPS = 60


@dataclass(frozen=True)
class Guesses:
    """How many of `canaries` fair coins were guessed (`made`), and how many rightly (`right`).

    `made` must be fixed before the coins are seen.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        """Refuse counts that cannot be.

        Raises:
            UsageError: SQ-801.
        """
        if not 0 <= self.right <= self.made <= self.canaries or self.canaries < 1:
            raise UsageError(
                801,
                "guesses must satisfy 0 ≤ right ≤ made ≤ canaries and canaries ≥ 1, got "
                f"{self.right}, {self.made} and {self.canaries}",
            )


@dataclass(frozen=True)
class Errors:
    """What a threshold got wrong: `false_positives` of `outside`, `false_negatives` of `inside`."""

    false_positives: int
    outside: int
    false_negatives: int
    inside: int

    def __post_init__(self) -> None:
        """Refuse counts that cannot be.

        Raises:
            UsageError: SQ-801.
        """
        for wrong, of in (
            (self.false_positives, self.outside),
            (self.false_negatives, self.inside),
        ):
            if not 0 <= wrong <= of or of < 1:
                raise UsageError(
                    801, f"errors must satisfy 0 ≤ wrong ≤ trials, got {wrong} of {of}"
                )


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """How likely an (ε, δ) mechanism lets somebody guess this well; any mechanism, one run.

    Source: Steinke et al. 2023, theorem 5.2: the coins are dominated by independent ones of
    probability `e^ε/(1 + e^ε)`, up to `2mδ` times the largest mean excess.
    """
    chance = float(expit(epsilon))
    beta = float(binom.sf(guesses.right - 1, guesses.made, chance))
    if delta == 0.0 or guesses.right == 0:
        return min(1.0, beta)
    fewer = np.arange(1, guesses.right + 1)
    excess = (binom.sf(guesses.right - fewer - 1, guesses.made, chance) - beta) / fewer
    return min(1.0, beta + 2 * guesses.canaries * delta * max(0.0, float(excess.max())))


def one_run(guesses: Guesses, delta: float, *, confidence: float = 0.95) -> float:
    """The largest ε that these guesses refute for *any* mechanism at `delta`; 0 if none."""
    level = 1.0 - check_confidence(confidence)
    return _largest(lambda epsilon: one_run_p_value(guesses, epsilon, delta) <= level)


def fdp_refutes(guesses: Guesses, curve: Curve, *, confidence: float = 0.95) -> bool:
    """Whether these guesses refute that the mechanism's trade-off is at least `curve`.

    Source: Mahloujifar et al. 2025, algorithm 3: `r` and `h` bound the share of runs with
    exactly, and with more than, the number of right guesses; each step down the blow-up
    inverse of the curve moves mass from one to the other.
    """
    level = 1.0 - check_confidence(confidence)
    if guesses.made == 0:
        return False
    made, right = guesses.made, guesses.right
    reachable = level * right / guesses.canaries
    held = level * (made - right) / guesses.canaries
    limit = made / guesses.canaries
    inverse = curve.blow_up_inverse
    for index in range(right - 1, -1, -1):
        grown = inverse(reachable)
        if grown <= held:
            break
        reachable = min(1.0, reachable + index / (made - index) * (grown - held))
        held = grown
        # Both only grow from here: the answer is known.
        if reachable + held > limit:
            return True
    return reachable + held > limit


def one_run_fdp(
    guesses: Guesses,
    delta: float,
    *,
    family: Callable[[float], Curve] | None = None,
    confidence: float = 0.95,
) -> float:
    """The largest ε at `delta` whose curve these guesses refute; 0 if none.

    Args:
        guesses: Registered beforehand.
        delta: The δ at which ε is stated.
        family: From ε to the curve hypothesised to have it; Gaussian mechanisms by default,
            `curves.plan_family` for a subsampled composition.
        confidence: 1 − the chance to refute a true curve.
    """
    check_delta(delta)
    make = family or (lambda epsilon: GaussianCurve.of_epsilon(epsilon, delta))
    return _largest(
        lambda epsilon: fdp_refutes(guesses, make(epsilon), confidence=confidence),
        first=1e-9,
    )


def clopper_pearson(
    errors: Sequence[Errors], delta: float, *, confidence: float = 0.95, two_sided: bool = True
) -> float:
    """ε from error rates of independent trials, without any form of the mechanism.

    Args:
        errors: One entry per threshold registered beforehand; each costs a share of the
            confidence (Bonferroni).
        delta: The δ at which ε is stated.
        confidence: Of the bound as a whole.
        two_sided: Use also the mirrored test (true negatives over false negatives). Both
            sides use the same two rate bounds, so it costs nothing.
    """
    best = 0.0
    for false_positive, false_negative in _rate_bounds(errors, confidence):
        pairs = [(false_positive, false_negative)]
        if two_sided:
            pairs.append((false_negative, false_positive))
        for wrong, missed in pairs:
            hit = 1.0 - missed - delta
            if hit > wrong:
                best = max(best, math.log(hit / wrong))
    return best


def gaussian_mu(errors: Sequence[Errors], *, confidence: float = 0.95) -> float:
    """The largest μ that error rates of independent trials prove, if the mechanism is GDP.

    `μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR)` at upper bounds of both rates. A negative value proves
    nothing: its absolute value would turn "few canaries" into "large ε".
    """
    best = 0.0
    for false_positive, false_negative in _rate_bounds(errors, confidence):
        if max(false_positive, false_negative) < 1.0:
            best = max(best, float(-ndtri(false_positive) - ndtri(false_negative)))
    return best


def gaussian_dp(errors: Sequence[Errors], delta: float, *, confidence: float = 0.95) -> float:
    """ε at `delta` of the largest μ that `errors` prove (`gaussian_mu`)."""
    return min(
        LARGEST_EPSILON,
        epsilon_of_mu(gaussian_mu(errors, confidence=confidence), check_delta(delta)),
    )


@dataclass(frozen=True)
class Estimate:
    """An estimate with its own interval; never a bound, whatever it says."""

    epsilon: float
    low: float
    high: float


def mean_estimate(
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    delta: float,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """ε of the Gaussian mechanism whose scores would look like these: an estimate.

    `μ̂ = (mean_in − mean_out)/sd`, `se² = 1/n₁ + 1/n₀ + μ̂²/(2(n−2))` (delta method). Scores of
    a real run need not be Gaussian, hence no bound.

    Args:
        inside: Scores of the canaries that took part, `(n1,)`.
        outside: Scores of those that did not, `(n0,)`.
        delta: The δ at which ε is stated.
        confidence: Two-sided.
    """
    first, second = len(inside), len(outside)
    if min(first, second) < 2:
        raise UsageError(802, f"an estimate needs two canaries on each side, got {first}, {second}")
    spread = (first - 1) * inside.var(ddof=1) + (second - 1) * outside.var(ddof=1)
    spread = math.sqrt(spread / (first + second - 2))
    if spread == 0.0:
        separated = float(inside.mean()) != float(outside.mean())
        return Estimate(*(3 * [LARGEST_EPSILON if separated else 0.0]))
    mu = abs(float(inside.mean() - outside.mean())) / spread
    error = math.sqrt(1 / first + 1 / second + mu**2 / (2 * (first + second - 2)))
    reach = float(ndtri(0.5 + check_confidence(confidence) / 2)) * error
    low, middle, high = (
        min(LARGEST_EPSILON, epsilon_of_mu(value, delta)) for value in (mu - reach, mu, mu + reach)
    )
    return Estimate(middle, low, high)


def binomial_upper(wrong: int, trials: int, level: float) -> float:
    """Clopper–Pearson: exceeded by the true rate with probability at most `level`."""
    if wrong >= trials:
        return 1.0
    return float(betaincinv(wrong + 1, trials - wrong, 1.0 - level))


def check_confidence(confidence: float) -> float:
    """Return a confidence if it is one.

    Raises:
        UsageError: SQ-803.
    """
    if not 0.5 <= confidence < 1.0:
        raise UsageError(803, f"confidence must lie in [0.5, 1), got {confidence}; 0.95 is usual")
    return confidence


def _rate_bounds(errors: Sequence[Errors], confidence: float) -> list[tuple[float, float]]:
    if not errors:
        raise UsageError(801, "a bound needs at least one threshold registered beforehand")
    level = (1.0 - check_confidence(confidence)) / (2 * len(errors))
    return [
        (
            binomial_upper(one.false_positives, one.outside, level),
            binomial_upper(one.false_negatives, one.inside, level),
        )
        for one in errors
    ]


def _largest(refuted: Callable[[float], bool], *, first: float = 0.0) -> float:
    """The largest refuted ε by bisection: the lower end, so never more than was proved."""
    if not refuted(first):
        return 0.0
    low, high = first, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if low >= LARGEST_EPSILON:
            return LARGEST_EPSILON
    for _ in range(_ROOT_STEPS):
        middle = 0.5 * (low + high)
        if refuted(middle):
            low = middle
        else:
            high = middle
        if high - low < 1e-8:
            break
    return low
