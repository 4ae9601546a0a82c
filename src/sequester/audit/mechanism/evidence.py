"""From what was observed to evidence: scores, tiers, battery, and what could not be seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from sequester import accounting
from sequester.accounting import Event
from sequester.audit.mechanism.battery import BatteryResult, run_battery
from sequester.audit.mechanism.bounds import Errors, binomial_upper
from sequester.audit.mechanism.curves import ProfileCurve
from sequester.audit.mechanism.gaussian import mu_of_epsilon
from sequester.audit.mechanism.notebook import Contrast, Observation, noise_multiplier
from sequester.audit.mechanism.scores import (
    Confidence,
    Registration,
    Scores,
    best_cut,
    register,
)
from sequester.audit.mechanism.tiers import ANY, CURVE, ESTIMATE, Tier, all_tiers, refutes
from sequester.audit.mechanism.trace import Floats
from sequester.core.rng import public_generator
from sequester.mechanism import Plan

# Canaries and battery share the audit's 1 %, and the canaries' five alarms share theirs.
LEVEL = 0.01
_BATTERY_LEVEL = LEVEL / 2
_CANARY_CONFIDENCE = 1 - LEVEL / 2 / 5
_SIMULATED = 4000
_CUTS = 200  # thresholds that are tried on the simulation

View = Literal["iterates", "sum", "final"]
"""What the attacker scores: every noisy update by its likelihood, their sum along each canary's
direction, or the final weights alone (and of the people nothing)."""
_VIEWS: dict[View, str] = {
    "iterates": "every noisy update and knows everybody else's data",
    "sum": "the sum of all noisy updates and knows everybody else's data",
    "final": "the final weights alone",
}


class Auditable(Protocol):
    """What can be run with canaries: training steps, or federated rounds."""

    @property
    def plan(self) -> Plan:
        """What is charged for the audited steps."""
        ...

    @property
    def what(self) -> str:
        """What is run, in words."""
        ...

    @property
    def contrast(self) -> Contrast:
        """How a canary that takes part differs from one that does not."""
        ...

    def observe(self, *, canaries: int, windows: int, seed: int) -> Observation:
        """Run it and take every step apart."""
        ...


@dataclass(frozen=True)
class MechanismAudit:
    """Everything one white-box audit found.

    Attributes:
        claimed: ε that the audited steps claim.
        delta: Its δ.
        tiers: Lower bounds, each with its ceiling.
        curve_refuted: Whether the claimed trade-off curve itself is refuted.
        battery: Tests of noise and sampling.
        canaries: How many there were.
        inside: How many took part.
        steps: Audited steps.
        seed: Of the audit.
        seconds: What it took.
        scores: Of the canaries, with their coins.
        what: What was run, in words.
        view: What the attacker sees.
    """

    claimed: float
    delta: float
    tiers: tuple[Tier, ...]
    curve_refuted: bool
    battery: BatteryResult
    canaries: int
    inside: int
    steps: int
    seed: int
    seconds: float
    scores: Scores
    what: str
    view: View

    @property
    def sees(self) -> str:
        """What the attacker sees, in words."""
        return _VIEWS[self.view]

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Tiers whose lower bound lies above the claim at the alarm's confidence."""
        return tuple(t.name for t in self.tiers if t.verdict(self.claimed) == "exceeds")

    @property
    def canaries_can_tell(self) -> bool:
        """Whether any tier could have proved more than is claimed."""
        verdicts = {tier.verdict(self.claimed) for tier in self.tiers}
        return bool(verdicts & {"exceeds", "consistent"})

    @property
    def alarm(self) -> bool:
        """Whether anything contradicts the claim."""
        return bool(self.exceeded) or self.curve_refuted or self.battery.alarm


@dataclass(frozen=True)
class Found:
    """What an observation comes to; the tiers follow from it and the plan.

    Attributes:
        scores: Of the canaries, with their coins.
        battery: Tests of noise and sampling.
        seconds: What it took.
    """

    scores: Scores
    battery: BatteryResult
    seconds: float


def audit_mechanism(
    subject: Auditable,
    *,
    canaries: int = 200,
    windows: int = 3,
    seed: int = 0,
    view: View = "iterates",
    kept: Callable[[Callable[[], Found]], Found] = lambda find: find(),
) -> MechanismAudit:
    """Audit the real steps or rounds of a study with canaries and the noise battery.

    Args:
        subject: What to audit; its plan's steps are run.
        canaries: Coins to flip; with none, the battery runs alone.
        windows: Windows of each canary.
        seed: Of the audit.
        view: What canaries are scored by; the battery always sees everything.
        kept: Given how to run it, gives what was found, now or before an interruption.
    """
    plan = subject.plan
    prepared = prepare(plan, canaries, view, subject.contrast) if canaries else None

    def find() -> Found:
        start = time.perf_counter()
        seen = subject.observe(canaries=canaries, windows=windows, seed=seed)
        battery = run_battery(seen.trace, level=_BATTERY_LEVEL)
        nobody = Scores(np.empty(0), np.empty(0, dtype=bool))
        scores = nobody if prepared is None else prepared.scores(seen)
        return Found(scores, battery, time.perf_counter() - start)

    found = kept(find)
    return MechanismAudit(
        claimed=plan.epsilon(),
        delta=plan.delta,
        tiers=() if prepared is None else prepared.tiers(found.scores),
        curve_refuted=prepared is not None and prepared.refutes(found.scores),
        battery=found.battery,
        canaries=canaries,
        inside=int(found.scores.coins.sum()),
        steps=plan.steps,
        seed=seed,
        seconds=found.seconds,
        scores=found.scores,
        what=subject.what,
        view=view,
    )


@dataclass(frozen=True)
class Prepared:
    """What is known and fixed before the first coin is seen.

    Attributes:
        claimed: ε of the plan.
        registration: Numbers of guesses and the threshold.
        rate: Sampling rate of the plan.
        mean: Mean score of a canary that stays out, under the claim.
        deviation: Its standard deviation.
        curve: The claimed trade-off curve.
        delta: At which ε is claimed.
        view: What canaries are scored by.
        exchange: Canaries that do not take part point the other way.
    """

    claimed: float
    registration: Registration
    rate: float
    mean: float
    deviation: float
    curve: accounting.Tradeoff
    delta: float
    view: View
    exchange: bool

    def scores(self, seen: Observation) -> Scores:
        """Scores of an observation, in standard deviations of a canary that stayed out."""
        if self.view == "final":
            # How far weights move is not known beforehand: scaled without looking at the coins.
            raw = _finite(seen.moved)
            mean = float(np.median(raw))
            deviation = max(1.4826 * float(np.median(np.abs(raw - mean))), 1e-300)
        else:
            signals = _finite(seen.signals)
            raw = _score(self.view, signals, seen.multipliers, self.rate, self.exchange)
            mean, deviation = self.mean, self.deviation
        return Scores(_finite((raw - mean) / deviation), seen.design.coins)

    def tiers(self, scores: Scores) -> tuple[Tier, ...]:
        """All tiers, of the final weights those that need no threshold registered beforehand."""
        tiers = all_tiers(scores, self.registration, self.delta)
        if self.view == "final":
            return tuple(tier for tier in tiers if tier.name in (ANY, CURVE, ESTIMATE))
        return tiers

    def refutes(self, scores: Scores) -> bool:
        """Whether guesses or error rates contradict the claimed curve itself."""
        level = 1 - self.registration.confidence.alarm
        profile = ProfileCurve.of_points(self.curve.epsilons, self.curve.deltas)
        if refutes(scores, self.registration, profile):
            return True
        if self.view == "final":
            return False
        errors: Errors = scores.errors(self.registration.threshold)
        accused = binomial_upper(errors.false_positives, errors.outside, level / 2)
        missed = binomial_upper(errors.false_negatives, errors.inside, level / 2)
        return accused < 1.0 and missed < self.curve.fnr(accused)


@lru_cache(maxsize=16)
def prepare(
    plan: Plan, canaries: int, view: View = "iterates", contrast: Contrast | None = None
) -> Prepared:
    """Simulate the claim, and register guesses and threshold on the simulation alone."""
    generator = public_generator(0)
    contrast = contrast or Contrast(noise_multiplier(plan))
    sigma = np.full(plan.steps, contrast.deviation)
    noise = generator.normal(size=(2, plan.steps, _SIMULATED)) * sigma[:, None]
    noise[1] += generator.random((plan.steps, _SIMULATED)) < plan.sampling_rate
    if contrast.exchange:
        noise[0] -= generator.random((plan.steps, _SIMULATED)) < plan.sampling_rate
    outside, inside = (_score(view, x, sigma, plan.sampling_rate, contrast.exchange) for x in noise)
    mean, deviation = float(outside.mean()), float(outside.std())
    claimed = plan.epsilon()
    confidence = Confidence(alarm=_CANARY_CONFIDENCE)
    mu = mu_of_epsilon(min(claimed, 50.0), plan.delta)
    registration = register(mu, canaries, plan.delta, confidence=confidence)
    equal, best = _thresholds(outside, inside, canaries, plan.delta, confidence)
    return Prepared(
        claimed=claimed,
        registration=replace(
            registration, threshold=(equal - mean) / deviation, trials=(best - mean) / deviation
        ),
        rate=plan.sampling_rate,
        mean=mean,
        deviation=deviation,
        curve=_curve(plan.event(), plan.adjacency),
        delta=plan.delta,
        view=view,
        exchange=contrast.exchange,
    )


def _finite(values: Floats) -> Floats:
    """An attacker learns nothing from what is not a number; the battery calls it a failure."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _score(view: View, signals: Floats, multipliers: Floats, rate: float, exchange: bool) -> Floats:
    if view == "iterates":
        there = log_likelihood_ratio(signals, multipliers, rate)
        return there - log_likelihood_ratio(-signals, multipliers, rate) if exchange else there
    total: Floats = signals.sum(axis=0)
    return total


def log_likelihood_ratio(signals: Floats, multipliers: Floats, rate: float) -> Floats:
    """Each canary's log-likelihood ratio of "takes part" over "does not", summed over steps.

    Per step the signal is N(0, σ²) without the canary and, with it, the mixture
    `(1 − q) N(0, σ²) + q N(1, σ²)`: the best test of a single step under the claim.

    Args:
        signals: In clipping bounds, `(steps, canaries)`.
        multipliers: σ of each step, `(steps,)`.
        rate: q.
    """
    variance = np.square(multipliers)[:, None]
    present = (signals - 0.5) / variance
    if rate < 1.0:
        present = np.logaddexp(np.log1p(-rate), np.log(rate) + present)
    total: Floats = present.sum(axis=0)
    return total


def _thresholds(
    outside: Floats, inside: Floats, canaries: int, delta: float, confidence: Confidence
) -> tuple[float, float]:
    """Where both error rates of the simulated claim are equal, and where trials prove most."""
    cuts = np.sort(np.concatenate([outside, inside]))
    accused = 1 - np.searchsorted(np.sort(outside), cuts) / len(outside)
    missed = np.searchsorted(np.sort(inside), cuts) / len(inside)
    equal = cuts[int(np.argmin(np.abs(accused - missed)))]
    few = slice(0, None, len(cuts) // _CUTS)
    best = best_cut(accused[few], missed[few], canaries, delta, confidence.bound)
    return float(equal), float(cuts[few][best])


@lru_cache(maxsize=16)
def _curve(event: Event, adjacency: str) -> accounting.Tradeoff:
    return accounting.tradeoff(event, adjacency=adjacency)
