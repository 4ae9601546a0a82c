"""The claim: what a run promises, computed from the events that ran.

A `Claim` is made by `Claim.of` from a plan and those events, or read back from a file that
holds one; its figures are never arguments.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sequester import __version__, accounting
from sequester.accounting import Event
from sequester.core import canonical
from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.mechanism.meaning import figures_of, no_privacy, person_meaning, unit_sentence
from sequester.mechanism.plan import Plan
from sequester.mechanism.reading import read_fields

SCHEMA = "sequester/claim/1"
_MADE_HERE = object()

_POISSON = "Lots were drawn by independent secret coins (Poisson sampling) of the stated rate."
_FIXED = (
    "Every lot holds the same number of people, drawn secretly without replacement. How many "
    "people are enrolled is not hidden: the guarantee is about exchanging one person's data."
)
_ASSUMPTIONS = (
    "The population, sampling rate, steps, ranges and vocabularies were declared publicly or "
    "found privately and charged here.",
    "The released weights, and what is computed from them, are all that leaves; checkpoints and "
    "the private folder do not.",
    "Noise has double precision and is rounded, with the clipped sum, to one integer grid; the "
    "sensitivity includes that rounding.",
    "The sum of clipped gradients is formed in the model's precision; its own rounding is covered "
    "as it is measured to be, not in the worst case.",
)
_NOT_EVIDENCED = (
    "Whether the study's settings were chosen by looking at these people's data before.",
    "Whether other releases about these people were made outside the ledger.",
    "Resistance to someone who reads the memory or the disk of the machine while it trains.",
)


@dataclass(frozen=True)
class LedgerRow:
    """Where the charge is booked.

    Attributes:
        fields: As the ledger gives them: id, row, hash, budget and what is left.
    """

    fields: dict[str, Any]


@dataclass(frozen=True)
class Conditions:
    """What a claim says beside its figures.

    Attributes:
        data: Name of the data.
        fingerprint: Keyed fingerprint of the data.
        private: False after a test seed: the claim is stamped NOT PRIVATE.
        max_per_person: Largest number of units of one person, None if unbounded or if the unit
            is the person.
        ledger: The charge's row, or None.
        assumptions: More of them, from whoever ran.
        not_evidenced: More of that.
    """

    data: str
    fingerprint: str
    private: bool = True
    max_per_person: int | None = None
    ledger: LedgerRow | None = None
    assumptions: tuple[str, ...] = ()
    not_evidenced: tuple[str, ...] = ()


class Claim:
    """A promise with its figures; cannot be built by hand.

    Attributes:
        fields: As `docs/claim.schema.json` describes them.
    """

    def __init__(self, fields: dict[str, Any], *, _made: object = None) -> None:
        """Refuse what `of`, `without_privacy` and `read` did not make.

        Raises:
            UsageError: SQ-241.
        """
        if _made is not _MADE_HERE:
            raise UsageError(
                241, "a claim follows from events that ran; use Claim.of(plan, event, conditions)"
            )
        self.fields = fields

    @classmethod
    def of(cls, plan: Plan, ran: Event, conditions: Conditions) -> Claim:
        """The claim of a run.

        Args:
            plan: Unit, adjacency, δ and population.
            ran: What actually ran, never what was meant to.
            conditions: What is said beside it.
        """
        return cls(_fields(plan, ran, conditions), _made=_MADE_HERE)

    @classmethod
    def without_privacy(cls, population: int, delta: float, conditions: Conditions) -> Claim:
        """The claim of the twin: ε = ∞, NOT PRIVATE."""
        fields = {
            **_common(conditions),
            **no_privacy(),
            "status": "NOT PRIVATE",
            "unit": "person",
            "unit_sentence": "Nobody is protected: this model was trained without noise.",
            "adjacency": "add-or-remove",
            "delta": delta,
            "person": {"epsilon": math.inf, "max_contribution": None, "method": "no privacy"},
            "events": {},
            "population": population,
            "assumptions": [],
            "noise_source": "none",
        }
        return cls(fields, _made=_MADE_HERE)

    @classmethod
    def read(cls, path: Path) -> Claim:
        """A claim from its file, every figure recomputed from its events at its own δ.

        Raises:
            VerificationError: SQ-242 if the file holds no claim, or states a figure below what
                its events amount to.
        """
        return cls(read_fields(path), _made=_MADE_HERE)

    @property
    def epsilon(self) -> float:
        """Certified upper bound on ε, rounded up."""
        value = self.fields["epsilon"]
        return math.inf if value == "inf" else float(value)

    @property
    def delta(self) -> float:
        """Its δ."""
        return float(self.fields["delta"])

    @property
    def event(self) -> Event | None:
        """What ran; None without privacy."""
        events = self.fields["events"]
        return accounting.from_json(json.dumps(events)) if events else None

    @property
    def private(self) -> bool:
        """False without privacy or with a test seed."""
        return bool(self.fields["status"] == "private")

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return canonical.digest(self.fields)

    def write(self, path: Path) -> None:
        """Write `claim.json`, readable by people too."""
        plain = json.loads(canonical.dumps(self.fields))
        write_atomic(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def _common(conditions: Conditions) -> dict[str, Any]:
    """Fields that a claim has with and without privacy."""
    return {
        "schema": SCHEMA,
        "not_evidenced": [*_NOT_EVIDENCED, *conditions.not_evidenced],
        "version": __version__,
        "ledger": None if conditions.ledger is None else conditions.ledger.fields,
        "data": {"name": conditions.data, "fingerprint": conditions.fingerprint},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _fields(plan: Plan, ran: Event, conditions: Conditions) -> dict[str, Any]:
    figures = figures_of(ran, plan.delta, plan.adjacency)
    source = "AES-256 in counter mode under a key of the operating system"
    return {
        **_common(conditions),
        **figures,
        "status": "private" if conditions.private else "NOT PRIVATE",
        "unit": plan.unit,
        "unit_sentence": unit_sentence(plan.unit, figures["epsilon"], plan.adjacency)
        if conditions.private
        else "Nobody is protected: the noise came from a test seed, and anybody can take it off.",
        "adjacency": plan.adjacency,
        "delta": plan.delta,
        "person": person_meaning(
            plan.unit, ran, plan.delta, plan.adjacency, conditions.max_per_person
        ),
        "events": json.loads(accounting.to_json(ran)),
        "population": plan.population,
        "assumptions": [
            _FIXED if plan.lot_size else _POISSON,
            *_ASSUMPTIONS,
            *conditions.assumptions,
        ],
        "noise_source": source if conditions.private else "a TEST SEED that anybody can repeat",
    }
