"""The card: one HTML file for an ethics board, without scripts, fonts or network."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jinja2

from sequester.accounting.explain import strength, surest
from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.core.values import round_up
from sequester.report.facts import ClaimFacts, Facts, Number, as_float, read_facts
from sequester.report.plot import Line, chart

SIZE_LIMIT = 400_000
"""Bytes; a card travels by e-mail and prints on two A4 pages."""

_LONG, _MOST = 300, 4000
"""Characters of a declaration that has a line of its own, and of one that is shown whole."""

_METRICS = {
    "auc": "AUC: how often a random “yes” is ranked above a random “no”",
    "accuracy": "accuracy: share of answers that are right",
    "mae": "mean absolute error",
}
_UNITS = {"person": "people", "window": "windows", "step": "records"}
_OUTSIDE = {
    "person": "innocent people accused",
    "window": "windows wrongly named",
    "step": "records wrongly named",
}
_INSIDE = {
    "person": "members recognised",
    "window": "windows recognised",
    "step": "records recognised",
}
_COMPARED = {
    "add-or-remove": "training with all of it, and without any of it",
    "replace-one": "training with it, and with anybody else's in its place",
    "zero-out": "training with it, and with zeros in its place",
}


def write_card(run: Path) -> Path:
    """Write `card.html` into a finished run folder and return its path.

    Raises:
        UsageError: SQ-910 or SQ-911 when the run's public facts cannot be read, SQ-912 when the
            card would be larger than `SIZE_LIMIT`.
    """
    page = render(read_facts(run))
    size = len(page.encode())
    if size > SIZE_LIMIT:
        raise UsageError(
            912,
            f"the card has {size} bytes, at most {SIZE_LIMIT} are allowed; shorten the study's "
            "descriptions and curves",
            where=str(run),
        )
    target = run / "card.html"
    write_atomic(target, page)
    return target


def render(facts: Facts) -> str:
    """The card as HTML text; every value is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sequester.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(up=_up, down=_down, percent=_percent, plain=_plain, metric=_metric)
    return environment.get_template("card.html.j2").render(
        claim=facts.claim,
        run=facts.run,
        audit=facts.audit,
        audit_is_of_this=facts.audit_is_of_this,
        tradeoff=_tradeoff(facts.claim),
        curves=[
            (
                curve,
                chart(
                    [Line(curve.x, curve.y, "")],
                    x_label=curve.x_label,
                    y_label=curve.y_label,
                    limit=curve.limit,
                ),
            )
            for curve in facts.run.curves
        ],
        budget=_budget(facts.claim),
        verdict=_verdict(facts.claim),
        proviso=_proviso(facts.claim),
        units=_UNITS[facts.claim.unit],
        gain=_gain(facts.claim),
        gain_of_person=_gain_of_person(facts.claim),
        long=_LONG,
        most=_MOST,
        compared=_COMPARED.get(facts.claim.adjacency, "as the claim defines it"),
    )


def _up(number: Number | None, digits: int = 3) -> str:
    """A privacy figure for people: rounded up, never down."""
    value = as_float(number)
    if math.isnan(value):
        return "not evidenced"
    if math.isinf(value):
        return "∞"
    return f"{round_up(value, digits):.{digits}g}"


def _down(number: Number, digits: int = 3) -> str:
    """What is left of a budget: rounded down, never up."""
    return f"{-round_up(-as_float(number), digits):.{digits}g}"


def _metric(name: str) -> str:
    """A figure's name for readers who have not met it."""
    return _METRICS.get(name, name)


def _percent(share: float) -> str:
    """A share as a percentage, rounded up: shares on a card are what an attacker may gain."""
    return f"{min(100.0, round_up(100 * share, 3)):.3g} %"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _tradeoff(claim: ClaimFacts) -> str:
    lines = [
        Line(claim.tradeoff.fpr, claim.tradeoff.tpr, "best possible attack on this model"),
        Line([0.0, 1.0], [0.0, 1.0], "guessing", dashed=True),
    ]
    return chart(
        lines,
        x_label=f"{_OUTSIDE[claim.unit]} (false-positive rate)",
        y_label=f"{_INSIDE[claim.unit]} (true-positive rate)",
        unit_square=True,
    )


def _budget(claim: ClaimFacts) -> dict[str, Any] | None:
    entry = claim.ledger
    if entry is None or entry.ceiling is None or entry.spent is None:
        return None
    ceiling, spent = as_float(entry.ceiling), as_float(entry.spent)
    share = min(1.0, spent / ceiling) if ceiling > 0 else 1.0
    return {"entry": entry, "width": round(300 * share), "share": share}


def _proviso(claim: ClaimFacts) -> str:
    """What every figure of a run that protects nobody is said with."""
    if claim.status == "private":
        return ""
    return ", were the noise secret" if claim.events else ", without noise"


def _verdict(claim: ClaimFacts) -> str:
    """How strong the guarantee is, in a sentence; the odds speak beside our word for it."""
    epsilon = as_float(claim.person.epsilon)
    if claim.status != "private":
        return "is worth nothing where the noise is known, or is not there"
    if math.isinf(epsilon):
        return "gives one person no guarantee"
    more = "; the audit matters more than the number" if epsilon > 4 else ""
    return (
        f"lets somebody at even odds become at most {surest(epsilon)} sure that a given person "
        f"took part (except with probability δ): {strength(epsilon)}{more}"
    )


def _gain(claim: ClaimFacts) -> str:
    attacker, person = claim.attacker, claim.unit == "person"
    posterior = attacker.posterior_from_half
    wrongly = "Accusing innocents" if person else f"Wrongly naming {claim.unit}s outside the data"
    found = "members" if person else f"{claim.unit}s in it"
    return (
        f"Somebody who holds it even odds that a given {claim.unit} is in the data can become at "
        f"most {_percent(posterior)} sure after seeing the model (except with probability δ). "
        f"{wrongly} 1 % of the time, they recognise at most "
        f"{_percent(attacker.tpr_at_fpr_1pct)} of the {found}; over all thresholds their "
        f"advantage over guessing is at most {_percent(attacker.advantage)}."
    )


def _gain_of_person(claim: ClaimFacts) -> str:
    """The same about a person, where the unit is less than one."""
    if claim.unit == "person":
        return ""
    epsilon = as_float(claim.person.epsilon)
    owned = f"All of this is about one {claim.unit}, not about a person. That a given person, with "
    owned += f"up to {claim.person.max_contribution or 'any number'} of them, is in the data: "
    if math.isinf(epsilon):
        return owned + "nothing bounds how sure they can become."
    return owned + f"from even odds they can become {surest(epsilon)} sure."
