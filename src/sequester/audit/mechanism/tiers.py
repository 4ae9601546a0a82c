"""Four kinds of evidence side by side, each with its ceiling; never merged into one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from sequester.audit.mechanism import bounds
from sequester.audit.mechanism.bounds import Errors, Guesses
from sequester.audit.mechanism.curves import Curve
from sequester.audit.mechanism.scores import Registration, Scores


class _Guessing(Protocol):
    def __call__(self, guesses: Guesses, delta: float, *, confidence: float) -> float: ...


class _Erring(Protocol):
    def __call__(self, errors: Sequence[Errors], delta: float, *, confidence: float) -> float: ...


Verdict = Literal["exceeds", "consistent", "cannot tell", "no verdict"]

ANY = "any mechanism"
CURVE = "f-DP"
TRIALS = "independent trials"
GAUSSIAN = "Gaussian-DP"
ESTIMATE = "estimate"

ASSUMES = {
    ANY: "nothing about the mechanism; canaries' coins are fair and guesses registered beforehand",
    CURVE: "the mechanism has a trade-off curve of the hypothesised family",
    TRIALS: "canaries do not influence each other's scores",
    GAUSSIAN: "canaries do not influence each other's scores, and the mechanism is Gaussian-DP",
    ESTIMATE: "scores are Gaussian; this is an estimate and proves nothing",
}


@dataclass(frozen=True)
class Tier:
    """One kind of evidence about ε.

    Attributes:
        name: Which kind.
        epsilon: Lower bound (of the estimate: the lower end of its interval).
        alarm: Lower bound at the confidence at which an alarm is raised.
        ceiling: The most `epsilon` could have been, had every guess been right.
        reach: The most `alarm` could have been.
        assumes: What the number rests on.
        point: The estimate itself, where the tier is one.
    """

    name: str
    epsilon: float
    alarm: float
    ceiling: float
    reach: float
    assumes: str
    point: float | None = None

    def verdict(self, claimed: float) -> Verdict:
        """What this evidence says about a claim of ε.

        An estimate has "no verdict": it proves nothing. "cannot tell" means that even a
        perfect attack would not have proved more than the claim, or not surely enough to alarm.
        """
        if self.name == ESTIMATE:
            return "no verdict"
        if self.alarm > claimed:
            return "exceeds"
        return "consistent" if min(self.ceiling, self.reach) > claimed else "cannot tell"


def all_tiers(scores: Scores, registration: Registration, delta: float) -> tuple[Tier, ...]:
    """Every tier on the same scores, in order of what it assumes.

    Args:
        scores: In standard deviations of a canary that stayed out.
        registration: Fixed before the coins were seen.
        delta: The δ at which ε is claimed.
    """
    sure = registration.confidence
    faultless = [Errors(0, len(scores.outside), 0, len(scores.inside))]
    estimate = bounds.mean_estimate(scores.inside, scores.outside, delta, confidence=0.9)

    def guessing(name: str, bound: _Guessing, stated: int, alarming: int) -> Tier:
        told, alarm = scores.guesses(stated), scores.guesses(alarming)
        return Tier(
            name=name,
            epsilon=bound(told, delta, confidence=sure.bound),
            alarm=bound(alarm, delta, confidence=sure.alarm),
            ceiling=bound(_perfect(told), delta, confidence=sure.bound),
            reach=bound(_perfect(alarm), delta, confidence=sure.alarm),
            assumes=ASSUMES[name],
        )

    def erring(name: str, bound: _Erring, threshold: float) -> Tier:
        errors = [scores.errors(threshold)]
        return Tier(
            name=name,
            epsilon=bound(errors, delta, confidence=sure.bound),
            alarm=bound(errors, delta, confidence=sure.alarm),
            ceiling=bound(faultless, delta, confidence=sure.bound),
            reach=bound(faultless, delta, confidence=sure.alarm),
            assumes=ASSUMES[name],
        )

    return (
        guessing(ANY, bounds.one_run, registration.any_bound, registration.any_alarm),
        guessing(CURVE, bounds.one_run_fdp, registration.curve_bound, registration.curve_alarm),
        erring(TRIALS, bounds.clopper_pearson, registration.trials),
        erring(GAUSSIAN, bounds.gaussian_dp, registration.threshold),
        Tier(
            ESTIMATE,
            estimate.low,
            estimate.low,
            math.inf,
            math.inf,
            ASSUMES[ESTIMATE],
            estimate.epsilon,
        ),
    )


def _perfect(guesses: Guesses) -> Guesses:
    return Guesses(guesses.canaries, guesses.made, guesses.made)


def refutes(scores: Scores, registration: Registration, curve: Curve) -> bool:
    """Whether the scores refute the claimed curve itself, for example a plan's PLD."""
    guesses = scores.guesses(registration.curve_alarm)
    return bounds.fdp_refutes(guesses, curve, confidence=registration.confidence.alarm)
