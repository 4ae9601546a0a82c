"""Whether a claim is about the run in whose folder it lies."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

from sequester import __version__, accounting
from sequester.accounting import Event
from sequester.accounting.events import Composed, SelfComposed
from sequester.core.errors import LedgerRefusal, SequesterError, UsageError, VerificationError
from sequester.core.files import digest_of
from sequester.federated.settings import settings_of
from sequester.ledger import Ledger
from sequester.mechanism import Claim, Plan
from sequester.mechanism.claim import SCHEMA
from sequester.training import Study
from sequester.training.folder import RunFolder
from sequester.training.planning import make_plan
from sequester.training.resumption import Begun, differences, filled
from sequester.training.study_file import decode

# Another machine's solver may stop elsewhere in the last digits.
_SOLVED = 1e-3
_PATIENCE_S = 5.0  # for a ledger that is not there, or busy


def compare(claim: Claim, study: Study, begun: Begun | None, facts: Path) -> tuple[str, ...]:
    """Compare a claim with all that tells what ran: decisions, study, facts and ledger.

    Args:
        claim: Read, so that its figures are those of its events.
        study: The run's own.
        begun: The run's decisions; None without privacy.
        facts: The run's `facts.json`.

    Returns:
        What could not be compared, in words.

    Raises:
        VerificationError: SQ-814 naming what differs, SQ-817 if the ledger booked something else.
    """
    if claim.fields.get("schema") != SCHEMA:
        raise VerificationError(
            814, f"a claim of another schema than {SCHEMA} is not understood", where="claim.json"
        )
    plan = None if begun is None else begun.plan(study)
    private = plan is not None and study.privacy.insecure_test_seed is None
    wanted: dict[str, Any] = {
        "status": "private" if private else "NOT PRIVATE",
        "delta": study.privacy.delta,
        "population": study.data.population,
    }
    if plan is not None:
        bounded = study.unit.kind != "person" and study.data.max_per_person > 0
        wanted |= {
            "unit": plan.unit,
            "adjacency": plan.adjacency,
            "person.max_contribution": study.data.max_per_person if bounded else None,
        }
    stated = {
        **claim.fields,
        "person.max_contribution": claim.fields["person"]["max_contribution"],
    }
    differing = [name for name, value in wanted.items() if stated.get(name) != value]
    if not _same_event(claim.event, plan, study):
        differing.append("events")
    differing += [] if begun is None else _not_asked(study, begun)
    differing += [f"facts.json: {name}" for name in _told_otherwise(claim, plan, facts)]
    if differing:
        raise VerificationError(
            814,
            "the claim is not about what this run decided before its first step: it differs in "
            f"{', '.join(differing)}",
            where="claim.json",
        )
    unchecked = _booked(claim, study)
    if claim.fields.get("version") != __version__:
        unchecked += (
            f"another version made this claim, and its code may be other than {__version__}'s, "
            "which was audited",
        )
    return unchecked


def _not_asked(study: Study, begun: Begun) -> list[str]:
    """Which decisions are not those that follow from the study as it was asked for."""
    try:
        asked = decode(tomllib.loads(begun.asked))
        changes = differences(filled(asked, study), study)
        found = [f"study.toml: {what.split(' is ')[0]}" for what in changes]
        if begun.mechanism:  # noise that members share is solved for with them
            return found
        solved = make_plan(asked).plan
    except (tomllib.TOMLDecodeError, SequesterError):
        return ["study.toml"]
    if not math.isclose(solved.noise_multiplier, begun.noise_multiplier, rel_tol=_SOLVED):
        found.append("noise_multiplier, which is not what the study's target asks for")
    if begun.steps > solved.steps or (begun.steps < solved.steps and not begun.cut):
        found.append("steps, which are not those of the study")
    return found


def _told_otherwise(claim: Claim, plan: Plan | None, file: Path) -> list[str]:
    """What the run published about itself that is not what is claimed."""
    if plan is None or claim.event is None or not file.is_file():
        return []
    try:
        told = json.loads(file.read_bytes())["plan"]
        found = {name: float(told[name]) for name in ("noise multiplier", "first clip", "steps")}
    except (OSError, ValueError, KeyError, TypeError):
        return ["plan"]
    wanted = {"noise multiplier": plan.noise_multiplier, "first clip": plan.clip}
    wanted["steps"] = float(_steps(claim.event))
    return [name for name in wanted if not math.isclose(found[name], wanted[name], rel_tol=_SOLVED)]


def _booked(claim: Claim, study: Study) -> tuple[str, ...]:
    """Compare a claim with the row it quotes, where the ledger can be reached.

    Raises:
        VerificationError: SQ-817.
    """
    quoted = claim.fields["ledger"]
    if study.ledger is None or claim.event is None:
        if quoted is None:
            return ()
        raise _not_booked("the study names no ledger")
    if quoted is None:
        raise _not_booked("the study names a ledger and the claim no row of it")
    try:
        ledger = Ledger.open(study.ledger.url, timeout_s=_PATIENCE_S)
    except (UsageError, LedgerRefusal, OSError):
        return ("the ledger cannot be reached, so the claim was not compared with what it booked",)
    with ledger:
        row = next((row for row in ledger.rows() if row.seq == quoted["row"]), None)
        if ledger.id != quoted["id"] or row is None or row.hash != quoted["hash"]:
            raise _not_booked("the ledger has no such row")
    if row.hash != row.digest() or row.budget != quoted["budget"] or row.kind != "commit":
        raise _not_booked("the row is another one")
    if accounting.from_json(json.dumps(row.fields()["event"])) != claim.event:
        raise _not_booked("the ledger booked other events")
    return ()


def _not_booked(why: str) -> VerificationError:
    return VerificationError(
        817, f"the claim is not what its ledger booked: {why}", where="claim.json"
    )


def _same_event(ran: Event | None, plan: Plan | None, study: Study) -> bool:
    """Whether what is claimed to have run is what was decided."""
    if ran is None or plan is None:
        return ran is None and plan is None
    if ran == plan.event():
        return True
    # Members who share the noise may arrive in other numbers than planned, round by round: the
    # rounds are as many, and what each cost is the claim's own event.
    if study.federated is None or settings_of(study).secagg is None:
        return False
    return _steps(ran) == _steps(plan.event())


def _steps(event: Event) -> int:
    """How many steps or rounds an event composes."""
    if isinstance(event, Composed):
        return sum(_steps(part) for part in event.events)
    return event.count if isinstance(event, SelfComposed) else 0


def digests_of(folder: RunFolder) -> dict[str, str]:
    """What binds an audit to its claim and weights: SHA-256 of both files, by name."""
    return {path.name: digest_of(path) for path in (folder.claim, folder.weights)}
