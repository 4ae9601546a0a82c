"""A guarantee in words: what it means for one person, in sentences an ethics board can use."""

from __future__ import annotations

import math

from sequester.accounting.statement import Statement
from sequester.core.values import round_up

_NEIGHBOURS = {
    "add-or-remove": "with or without one {unit}",
    "zero-out": "with one {unit}'s values blanked",
    "replace-one": "with one {unit} replaced by another",
}


def sentences(statement: Statement, *, unit: str = "person") -> list[str]:
    """What the guarantee says and does not say about one `unit`, plainly."""
    if math.isinf(statement.epsilon):
        return [
            f"No guarantee: epsilon is infinite. An attacker may learn for certain whether one "
            f"{unit} was in the data.",
            "More noise, fewer steps or a lower sampling rate is needed; "
            "'sequester calibrate' solves for one of them.",
        ]
    neighbours = _NEIGHBOURS[statement.adjacency].format(unit=unit)
    epsilon, delta = round_up(statement.epsilon), statement.delta
    found = [_guess(statement, fpr, unit) for fpr in (0.001, 0.01, 0.1)]
    return [
        f"Whatever is released would look almost the same {neighbours}: "
        f"epsilon = {epsilon:g} at delta = {delta:g} ({statement.accountant} accountant).",
        f"An attacker who believed at even odds that a given {unit} took part ends up at most "
        f"{_percent(statement.posterior(0.5))} sure, except with probability {delta:g}; "
        f"from 1 in 100, at most {_percent(statement.posterior(0.01))} sure.",
        f"Over all attacks, correct accusations exceed false ones by at most "
        f"{_percent(statement.advantage)} (the advantage; 0 % is blind guessing, 100 % certainty).",
        *found,
        f"As Gaussian noise on one answer it would be mu = {round_up(statement.mu):g}: telling "
        f"apart two bell curves {round_up(statement.mu):g} standard deviations apart.",
        f"These are bounds for the strongest attacker, who knows everything but that one {unit}. "
        "They say nothing about what the data as a whole reveal, nor about other releases.",
    ]


def _guess(statement: Statement, fpr: float, unit: str) -> str:
    tpr = statement.tpr_at_fpr(fpr)
    return (
        f"If the attacker may wrongly accuse {fpr * 1000:g} in 1000 outsiders, at most "
        f"{tpr * 1000:.4g} in 1000 members ({unit}s in the data) are found "
        f"({tpr / fpr:.3g} times blind guessing)."
    )


def _percent(share: float) -> str:
    # Rounded up, and never shown as certainty while it is not.
    shown = math.ceil(share * 1000.0 - 1e-9) / 10.0
    return f"{shown:g} %" if shown < 100.0 or share >= 1.0 else "99.9+ %"
