"""Charge before touch: the ledger holds the worst case before the first private record is used."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from sequester.accounting import Event
from sequester.core.errors import LedgerRefusal
from sequester.ledger import Ledger, Reservation
from sequester.mechanism import LedgerRow
from sequester.training.resumption import Begun
from sequester.training.study import LedgerSection, Study


@dataclass(frozen=True)
class Charge:
    """What a run owes.

    Attributes:
        begun: The run's decisions, its steps cut to what the budget allows.
        reservation: The ledger's hold on them; None where no ledger is declared.
    """

    begun: Begun
    reservation: Reservation | None = field(default=None, repr=False)

    def commit(self, ran: Event | None) -> LedgerRow | None:
        """Settle with the events that ran; the claim quotes the row."""
        if self.reservation is None or ran is None:
            return None
        return LedgerRow(self.reservation.commit(ran))


def reserve(study: Study, begun: Begun) -> Charge:
    """Reserve the worst case, cut to the steps that fit; a resumed run finds its own hold again.

    Raises:
        LedgerRefusal: SQ-312 if not one step fits.
    """
    plan = begun.plan(study)
    if study.ledger is None or plan is None:
        return Charge(begun)
    ledger = _open(study.ledger)
    try:
        hold = ledger.reserve(plan, budget=study.ledger.budget, key=begun.run)
    except LedgerRefusal as refusal:
        if refusal.code != 312:
            raise
        # How many steps fit depends on earlier charges alone, not on this run's data.
        fit = ledger.most_steps(plan, budget=study.ledger.budget)
        if not fit:
            raise
        begun = msgspec.structs.replace(begun, steps=fit, cut=True)
        fitting = begun.plan(study)
        if fitting is None:
            raise
        hold = ledger.reserve(fitting, budget=study.ledger.budget, key=begun.run)
    hold.begin()
    return Charge(begun, hold)


def _open(section: LedgerSection) -> Ledger:
    return Ledger.open(section.url)
