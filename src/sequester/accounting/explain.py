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


_STRENGTHS = (
    (0.1, "a very strong guarantee"),
    (1.0, "a strong guarantee"),
    (4.0, "a moderate guarantee"),
    (10.0, "a weak guarantee"),
)
"""Our convention; no ε earns its word alone, so the odds stand beside it wherever it is said."""


def strength(epsilon: float) -> str:
    """What a guarantee of this ε may be called, at most."""
    return next((words for most, words in _STRENGTHS if epsilon <= most), "hardly a guarantee")


def factor(epsilon: float) -> str:
    """How many times as likely, e^ε, as text; rounding never takes it below."""
    return f"{float(f'{math.exp(epsilon) * 1.05:.2g}'):g}" if epsilon < 700.0 else "any number of"


def surest(epsilon: float) -> str:
    """The most that somebody at even odds can come to believe, as text; δ aside."""
    return _percent(1.0 / (1.0 + math.exp(-epsilon)))


def sentences(statement: Statement, *, unit: str = "person") -> list[str]:
    """What the guarantee says and does not say about one `unit`, plainly; the odds lead."""
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
        f"An attacker who believed at even odds that a given {unit} took part ends up at most "
        f"{_percent(statement.posterior(0.5))} sure, except with probability {delta:g}; "
        f"from 1 in 100, at most {_percent(statement.posterior(0.01))} sure.",
        f"Whatever is released is at most {factor(statement.epsilon)} times as likely, or as "
        f"unlikely, {neighbours}: epsilon = {epsilon:g} at delta = {delta:g} "
        f"({statement.accountant} accountant), {strength(statement.epsilon)}.",
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
