"""Canaries' scores beside their coins, and what was decided before anyone saw the coins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from sequester.audit.mechanism.bounds import (
    Errors,
    Guesses,
    clopper_pearson,
    one_run,
    one_run_fdp,
)
from sequester.audit.mechanism.gaussian import epsilon_of_mu
from sequester.core.errors import UsageError

_Bound = Callable[[Guesses, float], float]
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Confidence:
    """How sure a stated bound and an alarm are."""

    bound: float = 0.95
    alarm: float = 0.99


@dataclass(frozen=True)
class Scores:
    """One score and one fair coin per canary, in an order that knows nothing of the coins.

    Attributes:
        values: Higher means "took part", float64 `(canaries,)`.
        coins: Whether it did, bool `(canaries,)`.
    """

    values: NDArray[np.float64]
    coins: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Refuse what cannot be ranked.

        Raises:
            UsageError: SQ-804.
        """
        if self.values.shape != self.coins.shape or self.values.ndim != 1:
            raise UsageError(
                804,
                "scores and coins must be two equally long vectors, got shapes "
                f"{self.values.shape} and {self.coins.shape}",
            )
        if not np.isfinite(self.values).all():
            raise UsageError(804, "every canary needs a finite score")

    @property
    def inside(self) -> NDArray[np.float64]:
        """Scores of the canaries that took part."""
        return self.values[self.coins]

    @property
    def outside(self) -> NDArray[np.float64]:
        """Scores of the canaries that did not."""
        return self.values[~self.coins]

    def guesses(self, made: int) -> Guesses:
        """Call the `made // 2` highest in and as many of the lowest out; abstain elsewhere.

        Ties fall by position, which is independent of the coins.
        """
        half = made // 2
        order = np.argsort(-self.values, kind="stable")
        right = int(self.coins[order[:half]].sum())
        right += int((~self.coins[order[len(order) - half :]]).sum()) if half else 0
        return Guesses(len(self.values), 2 * half, right)

    def errors(self, threshold: float) -> Errors:
        """What calling everything at or above `threshold` a participant gets wrong."""
        return Errors(
            false_positives=int((self.outside >= threshold).sum()),
            outside=len(self.outside),
            false_negatives=int((self.inside < threshold).sum()),
            inside=len(self.inside),
        )


@dataclass(frozen=True)
class Registration:
    """What is fixed before the coins are seen; the bounds hold only because of that.

    A stated bound and an alarm are two statements, so each has a number of guesses of its own:
    the first where the bound is largest, the second where a perfect attack could exceed the
    claim at all.

    Attributes:
        any_bound: Guesses for the stated bound on any mechanism.
        any_alarm: Guesses for an alarm on any mechanism.
        curve_bound: Guesses for the stated f-DP bound.
        curve_alarm: Guesses for an alarm of the f-DP tier.
        threshold: Of the error rates behind μ, in standard deviations of a canary that stayed out.
        trials: Of those behind ε itself, which say most far out, where few are called in.
        confidence: Of stated bounds and of alarms.
    """

    any_bound: int
    any_alarm: int
    curve_bound: int
    curve_alarm: int
    threshold: float
    trials: float
    confidence: Confidence


def register(
    mu: float, canaries: int, delta: float, *, confidence: Confidence | None = None
) -> Registration:
    """The numbers of guesses and the threshold that serve best if the claim is just true.

    Args:
        mu: What separates in from out under the claim, in standard deviations.
        canaries: How many coins will be flipped.
        delta: The δ at which ε is claimed.
        confidence: Of the bounds and alarms to come.
    """
    sure = confidence or Confidence()
    options = guess_counts(canaries)
    right = {made: expected_right(mu, canaries, made) for made in options}
    claimed = epsilon_of_mu(mu, delta)

    def best(bound: _Bound, level: float, *, able: float = 0.0) -> int:
        could = [k for k in options if bound(Guesses(canaries, k, k), level) > able]
        return max(
            could or options[-1:], key=lambda k: bound(Guesses(canaries, k, right[k]), level)
        )

    cuts = np.linspace(0.0, mu + 4.0, 200)

    def any_mechanism(guesses: Guesses, level: float) -> float:
        return one_run(guesses, delta, confidence=level)

    def curve(guesses: Guesses, level: float) -> float:
        return one_run_fdp(guesses, delta, confidence=level)

    return Registration(
        any_bound=best(any_mechanism, sure.bound),
        any_alarm=best(any_mechanism, sure.alarm, able=claimed),
        curve_bound=best(curve, sure.bound),
        curve_alarm=best(curve, sure.alarm, able=claimed),
        threshold=mu / 2,
        trials=float(cuts[best_cut(ndtr(-cuts), ndtr(cuts - mu), canaries, delta, sure.bound)]),
        confidence=sure,
    )


def best_cut(
    accused: NDArray[np.float64],
    missed: NDArray[np.float64],
    canaries: int,
    delta: float,
    confidence: float,
) -> int:
    """Which of several thresholds lets independent trials prove most, on average.

    Args:
        accused: False-positive rate at each.
        missed: False-negative rate at each.
        canaries: Half of them on each side.
        delta: The δ at which ε is claimed.
        confidence: Of the bound.
    """
    half = canaries // 2
    wrong = np.ceil(half * np.stack([accused, missed])).astype(int)
    proved = [
        clopper_pearson([Errors(int(p), half, int(n), half)], delta, confidence=confidence)
        for p, n in wrong.T
    ]
    return int(np.argmax(proved))


def guess_counts(canaries: int) -> list[int]:
    """Even numbers of guesses worth considering, up to everybody."""
    return sorted({max(2, 2 * int(share * canaries / 2)) for share in SHARES})


def precision(mu: float, share: float) -> float:
    """Chance that a guess is right when the `share / 2` highest and lowest are called.

    Scores are N(0, 1) outside and N(μ, 1) inside, coins fair.
    """
    if share >= 1.0:
        return float(ndtr(mu / 2))
    cut = brentq(lambda t: 0.5 * (ndtr(-t) + ndtr(mu - t)) - share / 2, -40.0, mu + 40.0)
    hit, wrong = float(ndtr(mu - cut)), float(ndtr(-cut))
    return hit / (hit + wrong)


def expected_right(mu: float, canaries: int, made: int) -> int:
    """How many of `made` guesses are right on average, rounded down."""
    return math.floor(made * precision(mu, made / canaries))
