"""What events amount to, in the figures a claim shows; each errs on the attacker's side."""

from __future__ import annotations

import math
from typing import Any

from sequester import accounting
from sequester.accounting import Event
from sequester.accounting.statement import VERSION as ACCOUNTANT_VERSION
from sequester.core.values import round_up


def figures_of(event: Event, delta: float, adjacency: str) -> dict[str, Any]:
    """ε by accountant, μ, the trade-off curve and the attacker's odds, for `claim.json`."""
    said = accounting.statement(event, delta, adjacency=adjacency)
    fpr, tpr = said.curve.points(31)
    return {
        "epsilon": round_up(said.epsilon),
        "epsilon_estimate": said.estimate,
        "epsilon_rdp": round_up(said.epsilon_rdp),
        "accountant": f"{said.accountant} {ACCOUNTANT_VERSION}",
        "mu": said.mu,
        "tradeoff": {"fpr": fpr, "tpr": tpr},
        "attacker": {
            "advantage": said.advantage,
            "tpr_at_fpr_1pct": said.tpr_at_fpr(0.01),
            "posterior_from_half": said.posterior(0.5),
        },
    }


def no_privacy() -> dict[str, Any]:
    """The same figures where nobody is protected."""
    return {
        "epsilon": math.inf,
        "epsilon_estimate": None,
        "epsilon_rdp": math.inf,
        "accountant": "none",
        "mu": None,
        "tradeoff": {"fpr": [0.0, 1.0], "tpr": [1.0, 1.0]},
        "attacker": {"advantage": 1.0, "tpr_at_fpr_1pct": 1.0, "posterior_from_half": 1.0},
    }


def person_meaning(
    unit: str, ran: Event, delta: float, adjacency: str, max_per_person: int | None
) -> dict[str, Any]:
    """What a guarantee about `unit` means for one person.

    Args:
        unit: "person", "window" or "step".
        ran: What ran, as one unit meets it.
        delta: Its δ.
        adjacency: The neighbouring relation.
        max_per_person: Largest number of units of one person; None if unbounded.
    """
    if unit == "person":
        epsilon = accounting.epsilon(ran, delta, adjacency=adjacency)
        return {
            "epsilon": round_up(epsilon),
            "max_contribution": None,
            "method": "the unit is the person",
        }
    if max_per_person is None:
        return {
            "epsilon": math.inf,
            "max_contribution": None,
            "method": "what one person contributes is not bounded, so nothing can be said",
        }
    person = accounting.group.person(ran, delta, max_per_person, adjacency=adjacency)
    return {
        "epsilon": round_up(person.epsilon),
        "max_contribution": max_per_person,
        "method": person.method,
    }
