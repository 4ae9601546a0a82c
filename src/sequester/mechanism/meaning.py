"""What events amount to, in the figures a claim shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sequester import accounting
from sequester.accounting import Event, Gaussian, RecordsPoissonSampled, SelfComposed
from sequester.mechanism.plan import Plan

_RARE = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
_FPR = (*_RARE, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Meaning:
    """Figures of one guarantee; each errs on the attacker's side.

    Attributes:
        epsilon: Certified upper bound.
        epsilon_rdp: By Rényi divergence alone.
        estimate: Best estimate, or None.
        accountant: Which one.
        mu: Gaussian-DP parameter that dominates, or None.
        fpr: False-positive rates.
        tpr: Most that any attacker reaches at each.
        advantage: Most that TPR - FPR can be.
        tpr_at_1pct: TPR at FPR 1 %.
        posterior: Most that a belief of one half can become, but for probability δ.
    """

    epsilon: float
    epsilon_rdp: float
    estimate: float | None
    accountant: str
    mu: float | None
    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    advantage: float
    tpr_at_1pct: float
    posterior: float

    @classmethod
    def none(cls) -> Meaning:
        """No protection at all."""
        return cls(math.inf, math.inf, None, "none", None, (0.0, 1.0), (1.0, 1.0), 1.0, 1.0, 1.0)


def meaning_of(event: Event, delta: float, adjacency: str) -> Meaning:
    """All figures of `event` at `delta`."""
    epsilon = accounting.epsilon(event, delta, adjacency=adjacency)
    rdp = accounting.epsilon(event, delta, adjacency=adjacency, accountant="rdp")
    curve = tpr_curve(event, adjacency)
    return Meaning(
        epsilon=epsilon,
        epsilon_rdp=rdp,
        estimate=None,
        accountant="pld",
        mu=None,
        fpr=_FPR,
        tpr=tuple(curve(rate) for rate in _FPR),
        advantage=min(1.0, accounting.delta(event, 0.0, adjacency=adjacency)),
        tpr_at_1pct=curve(0.01),
        posterior=1.0 / (1.0 + math.exp(-min(epsilon, 700.0))),
    )


def tpr_curve(event: Event, adjacency: str) -> Callable[[float], float]:
    """The most a test can detect at a false-positive rate: min over ε of e^ε·FPR + δ(ε).

    Source: Kairouz, Oh, Viswanath 2015 (ICML), theorem 2.1; both directions of the test.
    """
    grid = np.concatenate([[0.0], np.geomspace(0.05, 30.0, 40)])
    deltas = np.array([accounting.delta(event, float(e), adjacency=adjacency) for e in grid])

    def at(rate: float) -> float:
        forward = float(np.min(np.exp(grid) * rate + deltas))
        # From the exchanged roles: FPR ≥ … gives TPR ≤ 1 - e^{-ε}(1 - δ - FPR).
        backward = float(np.min(1.0 - np.exp(-grid) * (1.0 - deltas - rate)))
        return min(1.0, max(rate, min(forward, backward)))

    return at


def person_meaning(
    plan: Plan, ran: Event, meaning: Meaning, max_per_person: int | None
) -> dict[str, Any]:
    """What the claim means for one person, whatever its unit."""
    if plan.unit == "person":
        return {
            "epsilon": meaning.epsilon,
            "max_contribution": None,
            "method": "the unit is the person",
        }
    if max_per_person is None:
        return {
            "epsilon": math.inf,
            "max_contribution": None,
            "method": "contributions of one person are not bounded, so nothing can be said",
        }
    return {
        "epsilon": accounting.epsilon(
            _seen_by_person(plan, ran, max_per_person), plan.delta, adjacency=plan.adjacency
        ),
        "max_contribution": max_per_person,
        "method": "all of a person's windows, each drawn and clipped on its own",
    }


def _seen_by_person(plan: Plan, ran: Event, windows: int) -> Event:
    """The steps as one person with `windows` windows sees them."""
    steps = ran.count if isinstance(ran, SelfComposed) else plan.steps
    each = RecordsPoissonSampled(plan.sampling_rate, windows, Gaussian(plan.noise_multiplier))
    return accounting.Composed((*plan.setup, SelfComposed(each, steps)))
