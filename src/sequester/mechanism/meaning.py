"""What events amount to, in the figures a claim shows; each errs on the attacker's side."""

from __future__ import annotations

import math
from typing import Any

from sequester import accounting
from sequester.accounting import Event
from sequester.accounting.statement import VERSION as ACCOUNTANT_VERSION
from sequester.core.values import round_up

_PARTS = {
    "window": "One window of one person's records, not the person: a person with many windows "
    "is protected less, as the line about one person says.",
    "step": "One record of one person, not the person: a person with many records is protected "
    "less, as the line about one person says.",
}
_OTHERWISE = {
    "add-or-remove": "if that person had never been in the data",
    "replace-one": "if that person's data had been anybody else's",
    "zero-out": "if that person's data had all been zero",
}
_NEARLY = 0.1  # a factor of 1.1; at ε = 1 it is 2.7, and even odds become 73 %
_FACTOR_SAYS_NOTHING = 10.0


def unit_sentence(unit: str, epsilon: float, adjacency: str) -> str:
    """Who is protected, and how far ε lets that be called "nearly".

    Args:
        unit: "person", "window" or "step".
        epsilon: Certified upper bound.
        adjacency: The neighbouring relation.
    """
    if unit != "person":
        return _PARTS[unit]
    otherwise = _OTHERWISE[adjacency]
    if epsilon <= _NEARLY:
        how = f"the model is nearly as likely to come out the same {otherwise}."
    elif epsilon <= _FACTOR_SAYS_NOTHING:
        factor = float(f"{math.exp(epsilon) * 1.05:.2g}")  # rounding never takes it below e^ε
        how = (
            f"the model is at most {factor:g} times as likely, or as unlikely, to come out "
            f"the same {otherwise} (except with probability δ)."
        )
    else:
        how = f"ε hardly bounds how much less likely the model would have been {otherwise}."
    return f"All records of one person together: {how}"


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
