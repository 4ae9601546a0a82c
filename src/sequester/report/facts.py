"""Reads a run folder's public facts into typed values.

Only `claim.json`, `facts.json` and `audit.json` are opened: what lies in `private/` and
`checkpoints/` is never read here, so it cannot reach a card. A missing fact stays missing
and the card prints "not evidenced"; nothing is guessed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from sequester.core.errors import UsageError
from sequester.core.files import digest_of

Number = float | Literal["inf"]
_SIZE_LIMIT = 16 * 2**20


class Attacker(msgspec.Struct, frozen=True):
    """What the trade-off curve leaves to the best attacker."""

    advantage: float
    tpr_at_fpr_1pct: float
    posterior_from_half: float


class Curve(msgspec.Struct, frozen=True):
    """The most that a true-positive rate can be at each false-positive rate."""

    fpr: list[float]
    tpr: list[float]


class PersonMeaning(msgspec.Struct, frozen=True):
    """What the claim means for one person, whatever its unit."""

    epsilon: Number
    max_contribution: int | None
    method: str


class LedgerEntry(msgspec.Struct, frozen=True):
    """Where the charge stands, and what the budget has left."""

    id: str
    row: int
    hash: str
    budget: str
    spent: Number | None = None
    ceiling: Number | None = None
    remaining: Number | None = None


class DataName(msgspec.Struct, frozen=True):
    """Which data: a name and a fingerprint, never a value."""

    name: str
    fingerprint: str


class ClaimFacts(msgspec.Struct, frozen=True):
    """`claim.json`, schema `sequester/claim/1`."""

    status: Literal["private", "NOT PRIVATE"]
    unit: Literal["person", "window", "step"]
    unit_sentence: str
    adjacency: str
    delta: float
    epsilon: Number
    epsilon_estimate: Number | None
    epsilon_rdp: Number
    accountant: str
    mu: Number | None
    tradeoff: Curve
    attacker: Attacker
    person: PersonMeaning
    events: dict[str, Any]
    population: int
    assumptions: list[str]
    not_evidenced: list[str]
    noise_source: str
    version: str
    ledger: LedgerEntry | None
    data: DataName
    created: str


class DataFacts(msgspec.Struct, frozen=True):
    """The data in words and public declarations."""

    description: str
    simulated: bool
    declared: dict[str, Any]
    source: str | None = None
    licence: str | None = None


class ModelFacts(msgspec.Struct, frozen=True):
    """The model that the weights belong to."""

    name: str
    parameters: int


class PublicCurve(msgspec.Struct, frozen=True):
    """A curve that may leave the run, with the reason why."""

    title: str
    x_label: str
    y_label: str
    x: list[float]
    y: list[float]
    protection: Literal["public", "privatised", "simulated"]
    limit: float | None = None


class Utility(msgspec.Struct, frozen=True):
    """One figure of merit on held-out people, with how those people are protected.

    A value of None is "not defined": held-out people of one class have no AUC; or `reason` says
    why nothing is told.
    """

    metric: str
    value: float | None
    protection: Literal["public hold-out", "privatised", "simulated"]
    people: int | None = None
    interval: list[float] | None = None
    baseline: float | None = None
    baseline_name: str | None = None
    reason: str = ""


class RunFacts(msgspec.Struct, frozen=True):
    """`facts.json`, schema `sequester/facts/1`."""

    study: str
    title: str
    task: str
    data: DataFacts
    model: ModelFacts
    plan: dict[str, Any]
    curves: list[PublicCurve]
    utility: list[Utility]


class Facts(msgspec.Struct, frozen=True):
    """All that a card is made of.

    Attributes:
        claim: What is promised.
        run: What may be told beside it.
        audit: What an audit found, as it tells everybody; None without one.
        audit_is_of_this: Whether it audited this claim and, where they are here, these weights.
    """

    claim: ClaimFacts
    run: RunFacts
    audit: dict[str, Any] | None
    audit_is_of_this: bool


_T = TypeVar("_T")


def read_facts(run: Path) -> Facts:
    """Read the public facts of a finished run.

    Raises:
        UsageError: SQ-910 when the folder is no finished run, SQ-911 when a file does not
            follow its schema.
    """
    for name in ("claim.json", "facts.json"):
        if not (run / name).is_file():
            raise UsageError(
                910,
                f"{name} is missing, so this is not a finished run; finish it with "
                "'sequester train STUDY --resume RUN'",
                where=str(run),
            )
    audit: dict[str, Any] | None = None
    if (run / "audit.json").is_file():
        audit = _decode(run / "audit.json", dict)
    return Facts(
        claim=_decode(run / "claim.json", ClaimFacts),
        run=_decode(run / "facts.json", RunFacts),
        audit=audit,
        audit_is_of_this=audit is not None and _is_of(audit, run),
    )


def _is_of(audit: dict[str, Any], run: Path) -> bool:
    """Whether an audit is of the claim and weights beside it; weights need not travel."""
    bound = audit.get("sha256")
    if audit.get("schema") != "sequester/audit/1" or not isinstance(bound, dict):
        return False
    here = {name: digest_of(run / name) for name in ("claim.json", "model.safetensors")}
    weights = here["model.safetensors"] in ("", bound.get("model.safetensors"))
    return weights and here["claim.json"] == bound.get("claim.json")


def _decode(path: Path, kind: type[_T]) -> _T:
    if path.stat().st_size > _SIZE_LIMIT:
        raise UsageError(911, f"{path.name} is larger than {_SIZE_LIMIT} bytes", where=str(path))
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise UsageError(
            911, f"{path.name} does not follow its published schema: {problem}", where=str(path)
        ) from None


def as_float(number: Number | None) -> float:
    """The number, with "inf" read back as infinity and a missing one as NaN."""
    if number is None:
        return math.nan
    return math.inf if number == "inf" else float(number)
