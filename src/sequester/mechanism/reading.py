"""A claim's file, believed only as far as its own events bear it out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from sequester import accounting
from sequester.core.errors import SequesterError, VerificationError
from sequester.mechanism.meaning import figures_of, person_meaning

# Another machine's libraries may round the same sums differently in their last digits.
_SLACK = 1e-6


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a claim's file.

    Args:
        path: Of `claim.json`.

    Raises:
        VerificationError: SQ-242 if the file holds no claim, or states a figure below what its
            events amount to at its δ.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        low = _understated(fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SequesterError):
        raise VerificationError(242, "this file holds no claim", where=str(path)) from None
    if low:
        raise VerificationError(
            242,
            f"the claim states less than its events have: {', '.join(low)}",
            where=str(path),
        )
    return dict(fields)


def _understated(fields: dict[str, Any]) -> list[str]:
    """Names of the figures that are smaller than they should be."""
    stated = _figures(fields, fields["person"])
    if not fields["events"]:
        # Only a run without privacy has no events, and it promises nothing.
        silent = fields["status"] == "NOT PRIVATE"
        return [] if silent and stated["epsilon"] == math.inf else ["epsilon"]
    event = accounting.from_json(json.dumps(fields["events"]))
    delta, adjacency = _number(fields["delta"]), fields["adjacency"]
    per_person = fields["person"]["max_contribution"]
    true = _figures(
        figures_of(event, delta, adjacency),
        person_meaning(fields["unit"], event, delta, adjacency, per_person),
    )
    return [name for name in true if stated[name] < true[name] * (1.0 - _SLACK)]


def _figures(fields: dict[str, Any], person: dict[str, Any]) -> dict[str, float]:
    """All upper bounds of a claim, by name."""
    attacker = fields["attacker"]
    named = {
        "epsilon": fields["epsilon"],
        "epsilon_rdp": fields["epsilon_rdp"],
        "mu": math.inf if fields["mu"] is None else fields["mu"],
        "person.epsilon": person["epsilon"],
    }
    named |= {f"attacker.{name}": attacker[name] for name in sorted(attacker)}
    named |= {
        f"tradeoff at {fpr}": tpr
        for fpr, tpr in zip(fields["tradeoff"]["fpr"], fields["tradeoff"]["tpr"], strict=True)
    }
    return {name: _number(value) for name, value in named.items()}


def _number(value: Any) -> float:
    """A number or infinity as a claim writes it.

    Raises:
        ValueError: For anything else.
    """
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError
    return float(value)
