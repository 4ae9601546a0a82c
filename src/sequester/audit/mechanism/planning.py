"""How many canaries a question needs, before anybody spends the time.

Scores of the claimed mechanism are N(0, 1) and N(μ, 1); with noise too small by a factor f they
are N(0, 1) and N(μ/f, 1) after standardisation. A tier answers the question with m canaries if
it would contradict the claim with the wanted power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from sequester.audit.mechanism.bounds import (
    Errors,
    Guesses,
    clopper_pearson,
    fdp_refutes,
    gaussian_mu,
    one_run_p_value,
)
from sequester.audit.mechanism.curves import GaussianCurve
from sequester.audit.mechanism.gaussian import mu_of_epsilon
from sequester.audit.mechanism.scores import best_cut, guess_counts, precision
from sequester.audit.mechanism.tiers import ANY, CURVE, GAUSSIAN, TRIALS
from sequester.core.errors import UsageError
from sequester.core.values import check_delta

MOST_CANARIES = 200_000
_FIRST, _GROWTH = 50, 1.25
# Measured on one core of a small server: a canary's part of one step of a small GRU, and the
# rest of a step. They tell minutes from hours, no more.
_SECONDS_PER_VISIT, _SECONDS_PER_STEP = 6e-4, 2.5e-2


@dataclass(frozen=True)
class Question:
    """What an audit shall find out.

    Attributes:
        epsilon: Claimed ε.
        delta: Its δ.
        sigma_error: Noise that is really there over the noise that is claimed.
        power: Chance to find the fault if it is there.
        confidence: 1 − chance of an alarm if it is not.
    """

    epsilon: float
    delta: float
    sigma_error: float
    power: float = 0.8
    confidence: float = 0.99

    def __post_init__(self) -> None:
        """Refuse questions without an answer.

        Raises:
            UsageError: SQ-811.
        """
        check_delta(self.delta)
        if not (0 < self.epsilon < math.inf and 0 < self.sigma_error < 1 and 0.5 <= self.power < 1):
            raise UsageError(
                811,
                "a plan needs a finite epsilon > 0, sigma-error in (0, 1) and power in [0.5, 1), "
                f"got {self.epsilon}, {self.sigma_error} and {self.power}; sigma-error 0.7 is "
                "noise that is 30 % too small",
            )


@dataclass(frozen=True)
class Answer:
    """What a tier needs; None where even `MOST_CANARIES` do not do."""

    tier: str
    canaries: int | None


def plan(question: Question) -> tuple[Answer, ...]:
    """The fewest canaries with which each tier would find the fault, to about 25 %."""
    return tuple(Answer(tier, _fewest(tier, question)) for tier in (ANY, CURVE, TRIALS, GAUSSIAN))


def seconds(canaries: int, *, steps: int, rate: float) -> float:
    """Roughly how long that many canaries take on one core.

    Raises:
        UsageError: SQ-811.
    """
    if steps < 1 or not 0 < rate <= 1:
        raise UsageError(
            811, f"a plan needs steps ≥ 1 and a sampling-rate in (0, 1], got {steps} and {rate}"
        )
    return steps * (_SECONDS_PER_STEP + canaries / 2 * rate * _SECONDS_PER_VISIT)


def _fewest(tier: str, question: Question) -> int | None:
    canaries = float(_FIRST)
    while canaries <= MOST_CANARIES:
        if _finds(tier, question, int(canaries)):
            return int(canaries)
        canaries *= _GROWTH
    return None


def _finds(tier: str, question: Question, canaries: int) -> bool:
    claimed = mu_of_epsilon(question.epsilon, question.delta)
    real = claimed / question.sigma_error
    if tier in (ANY, CURVE):
        return any(
            _refuted(tier, question, claimed, Guesses(canaries, made, right))
            for made, right in _guesses(question, real, canaries)
        )
    if tier == GAUSSIAN:
        errors = _errors(question, real / 2, real, canaries)
        return gaussian_mu([errors], confidence=question.confidence) > claimed
    # The threshold is registered for the claim; in the real noise's deviations it lies further out.
    cuts = np.linspace(0.0, claimed + 4.0, 100)
    accused, missed = ndtr(-cuts), ndtr(cuts - claimed)
    cut = cuts[best_cut(accused, missed, canaries, question.delta, question.confidence)]
    errors = _errors(question, float(cut) / question.sigma_error, real, canaries)
    found = clopper_pearson([errors], question.delta, confidence=question.confidence)
    return found > question.epsilon


def _refuted(tier: str, question: Question, claimed: float, guesses: Guesses) -> bool:
    if tier == ANY:
        p_value = one_run_p_value(guesses, question.epsilon, question.delta)
        return p_value <= 1 - question.confidence
    return fdp_refutes(guesses, GaussianCurve(claimed), confidence=question.confidence)


def _guesses(question: Question, real: float, canaries: int) -> list[tuple[int, int]]:
    """Numbers of guesses, and the number that is right at least with the wanted power."""
    found = []
    for made in guess_counts(canaries):
        chance = precision(real, made / canaries)
        found.append((made, int(binom.ppf(1 - question.power, made, chance))))
    return found


def _errors(question: Question, threshold: float, real: float, canaries: int) -> Errors:
    """The most errors with the wanted power, of each kind."""
    half = canaries // 2
    accused = int(binom.ppf(question.power, half, float(ndtr(-threshold))))
    missed = int(binom.ppf(question.power, half, float(ndtr(threshold - real))))
    return Errors(accused, half, missed, half)
