"""Making a reservation: checks, the filter, and the one row that holds the charge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sequester.accounting import Event
from sequester.core.errors import LedgerRefusal
from sequester.ledger import fitting, rows
from sequester.ledger.budgets import FIXED, Budget, Tree
from sequester.ledger.charges import charge_of
from sequester.ledger.desk import Book, Desk
from sequester.ledger.reservations import Chargeable, Reservation, Reserved, event_fields
from sequester.ledger.rows import Draft, Row

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Request:
    """Where a plan is to be charged.

    Attributes:
        budget: The budget's name.
        key: The caller's idempotency key.
        dataset: Fingerprint of the data about to be used, if the caller knows it.
    """

    budget: str
    key: str
    dataset: str | None


def reserve(desk: Desk, ledger_id: str, plan: Chargeable, request: Request) -> Reservation:
    """Charge the worst case of `plan`; see `Ledger.reserve`."""
    event = plan.event()
    with desk.writing() as book:
        row = _row(book, plan, event, request)
        tree = book.tree
    if row is None and tree.is_fresh(request.budget):
        # The tight bound takes a while: compute it outside the lock, then ask again.
        certified = _certified(tree, request.budget, event)
        with desk.writing() as book:
            row = _row(book, plan, event, request, certified)
            tree = book.tree
    if row is None:
        raise fitting.refusal(tree, request.budget, event)
    return handle(desk, ledger_id, row)


def handle(desk: Desk, ledger_id: str, row: Row) -> Reservation:
    """The reservation that stands in `row`."""
    reserved = Reserved.parsed(row, row.fields())
    key = (row.key or "").removeprefix("run:")
    return Reservation(
        row.seq,
        key,
        row.budget,
        reserved.event,
        reserved.rule,
        reserved.expires_ms,
        ledger_id,
        desk,
    )


def reused(key: str, row: Row) -> LedgerRefusal:
    """The refusal of a key that stands for another request."""
    return LedgerRefusal(
        315,
        f"the key {key!r} belongs to another request (row {row.seq}); a new one needs a new key",
    )


def _row(
    book: Book,
    plan: Chargeable,
    event: Event,
    request: Request,
    certified: Callable[[float], float] | None = None,
) -> Row | None:
    """The reservation's row, found or made; None if a ceiling forbids it."""
    made = book.transaction.by_key(f"run:{request.key}")
    if made is not None:
        return _again(book, made, event, request)
    held = book.tree.get(request.budget)
    population: int | None = getattr(plan, "population", None)
    _check_fit(held, plan, request.dataset)
    book.policy.check_terms(plan.unit, plan.adjacency)
    book.policy.check_population(population)
    charge = charge_of(event, held.adjacency)
    rule = book.tree.admit(request.budget, charge, certified)
    if rule is None:
        return None
    alone = certified(held.delta) if certified is not None and rule == FIXED else None
    changed = book.tree.charge(request.budget, charge, alone=alone)
    fields = {
        "alone": alone,
        "charge": charge.to_json(),
        "event": event_fields(event),
        "expires_ms": book.now_ms + round(book.policy.reservation_days * DAY_MS),
        "population": population,
        "rule": rule,
        "time_ms": book.now_ms,
        "unit": plan.unit,
    }
    key = f"run:{request.key}"
    row = book.append(Draft.of(rows.RESERVE, fields, budget=request.budget, key=key))
    book.save(changed)
    return row


def _again(book: Book, made: Row, event: Event, request: Request) -> Row:
    """The row of the same request made before."""
    reserved = Reserved.of(made)
    if reserved.event != event or made.budget != request.budget:
        raise reused(request.key, made)
    for row in book.transaction.about(made.seq):
        if row.kind in (rows.COMMIT, rows.VOID):
            raise LedgerRefusal(
                316,
                f"the reservation of key {request.key!r} was settled by row {row.seq} "
                f"({row.kind}); another run needs a key of its own",
            )
    return made


def _check_fit(held: Budget, plan: Chargeable, dataset: str | None) -> None:
    for given, needed, what in (
        (plan.unit, held.unit, "unit"),
        (plan.adjacency, held.adjacency, "adjacency"),
    ):
        if given != needed:
            raise LedgerRefusal(
                319, f"budget {held.name!r} is for the {what} {needed!r}, the plan has {given!r}"
            )
    if dataset is not None and dataset != held.dataset:
        raise LedgerRefusal(
            322,
            f"budget {held.name!r} belongs to the data set {held.dataset!r}, the data at hand are "
            f"{dataset!r}",
        )


def _certified(tree: Tree, name: str, event: Event) -> Callable[[float], float]:
    """The tight bound, worked out now for every δ that the budgets above `name` ask for."""
    bound = fitting.certifier(event, tree.get(name).adjacency)
    known = {budget.delta: bound(budget.delta) for budget, _ in tree.borne(name)}
    return known.__getitem__
