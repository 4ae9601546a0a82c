"""Charge before touch: the ledger holds the worst case before the first private record is used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from sequester.accounting import Composed, Event, Gaussian, SelfComposed, calibrate
from sequester.core.errors import LedgerRefusal
from sequester.ledger import Ledger, Reservation
from sequester.mechanism import LedgerRow, Plan
from sequester.sequences import People
from sequester.training.resumption import Begun
from sequester.training.study import Study


@dataclass(frozen=True)
class Evaluation:
    """The privatised figure of merit as a plan: one release about held-out people.

    Attributes:
        release: The Gaussian.
        delta: The study's δ.
        unit: Always the person.
        adjacency: As for training.
    """

    release: Gaussian
    delta: float
    unit: str = "person"
    adjacency: str = "add-or-remove"

    def event(self) -> Event:
        """What the figure releases."""
        return self.release


@dataclass(frozen=True)
class Charge:
    """What a run owes.

    Attributes:
        begun: The run's decisions, its steps cut to what the budget allows.
        reservation: The ledger's hold on them; None where no ledger is declared.
        holdout: The hold on the held-out people's own budget; None for a public hold-out.
    """

    begun: Begun
    reservation: Reservation | None = field(default=None, repr=False)
    holdout: Reservation | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Say that the data are touched from here on: what is held is spent, or settled."""
        for reservation in (self.reservation, self.holdout):
            if reservation is not None and reservation.status() == "reserved":
                reservation.begin()

    def commit(self, ran: Event | None) -> LedgerRow | None:
        """Settle with the events that ran; the claim quotes the row."""
        if self.holdout is not None:
            self.holdout.commit(self.holdout.event)
        if self.reservation is None or ran is None:
            return None
        return LedgerRow(self.reservation.commit(ran))


@dataclass(frozen=True)
class _Account:
    """One budget of a ledger, and whose data are about to be used."""

    ledger: Ledger
    budget: str
    people: str | None

    def hold(self, plan: Plan | Evaluation, key: str) -> Reservation:
        """The run's reservation, also one that it settled just before a crash.

        Such a run has drawn all its noise and only has its claim to write; committing the same
        event again changes nothing, and committing another one is refused.
        """
        try:
            return self.ledger.reserve(plan, budget=self.budget, key=key, people=self.people)
        except LedgerRefusal as refusal:
            if refusal.code != 316:
                raise
            return self.ledger.reservation(key)


def evaluation_plan(study: Study) -> Evaluation:
    """What a privatised evaluation releases about each held-out person."""
    delta = study.privacy.delta
    noise = calibrate.noise_multiplier(study.data.holdout.epsilon, delta, 1.0, 1)
    return Evaluation(Gaussian(noise), delta)


def reserve(study: Study, begun: Begun, people: People | None) -> Charge:
    """Hold the worst case, cut to the steps that fit; a resumed run finds its own hold again.

    Args:
        study: Checked.
        begun: The run's decisions.
        people: Whose budget it is: their keyed fingerprint binds it. None where the data are
            elsewhere.

    Raises:
        LedgerRefusal: SQ-312 if not one step fits, SQ-322 if the budget belongs to other data.
    """
    if study.ledger is None:  # the claim says that nothing was charged
        return Charge(begun)
    privatised = study.data.holdout.protection == "privatised"
    ledger = Ledger.open(study.ledger.url)
    whose = None if people is None else people.fingerprint(ledger.fingerprint_key())
    held = None
    if privatised:
        key, budget = f"{begun.run}-holdout", study.ledger.holdout_budget
        held = _Account(ledger, budget, whose).hold(evaluation_plan(study), key)
    plan, hold = begun.plan(study), None
    if plan is not None:
        try:
            account = _Account(ledger, study.ledger.budget, whose)
            begun, hold = _reserve_steps(account, plan, begun)
        except LedgerRefusal:
            # Nothing will be trained, so nobody will be judged either.
            if held is not None and held.status() == "reserved":
                held.void("the training was refused")
            raise
    return Charge(begun, hold, held)


def _reserve_steps(account: _Account, plan: Plan, begun: Begun) -> tuple[Begun, Reservation]:
    """Hold all steps, or as many as fit; how many depends on earlier charges alone."""
    ledger = account.ledger
    try:
        return begun, account.hold(plan, begun.run)
    except LedgerRefusal as refusal:
        if refusal.code == 312:
            fit = ledger.most_steps(plan, budget=account.budget)
        else:
            fit = _cut_before(ledger, plan, begun.run) if refusal.code == 315 else 0
        if not fit:
            raise
    cut = msgspec.structs.replace(begun, steps=fit, cut=True)
    return cut, account.hold(replace(plan, steps=fit), begun.run)


def _cut_before(ledger: Ledger, plan: Plan, key: str) -> int:
    """The steps that this very run reserved before a crash kept it from noting them; 0 if none.

    The reservation must be for this plan but for the number of its steps: then exactly those are
    run, and what is held is what is spent.
    """
    held = ledger.reservation(key).event
    parts = held.events if isinstance(held, Composed) else (held,)
    last = parts[-1]
    steps = last.count if isinstance(last, SelfComposed) else 0
    fewer = 1 <= steps < plan.steps and replace(plan, steps=steps).event() == held
    return steps if fewer else 0
