"""Whether a claim is about the run in whose folder it lies."""

from __future__ import annotations

from typing import Any

from sequester.accounting import Event
from sequester.accounting.events import Composed, SelfComposed
from sequester.core.errors import VerificationError
from sequester.federated.settings import settings_of
from sequester.mechanism import Claim, Plan
from sequester.training import Study
from sequester.training.resumption import Begun


def compare(claim: Claim, study: Study, begun: Begun | None) -> None:
    """Compare a claim with what the run decided before its first step.

    Args:
        claim: Read, so that its figures are those of its events.
        study: The run's own.
        begun: The run's decisions; None without privacy.

    Raises:
        VerificationError: SQ-814 naming what differs.
    """
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
    if differing:
        raise VerificationError(
            814,
            "the claim is not about what this run decided before its first step: it differs in "
            f"{', '.join(differing)}",
            where="claim.json",
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
