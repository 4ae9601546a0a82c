"""Making a reservation: checks, the filter, and the one row that holds the charge."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from sequester.accounting import Event
from sequester.core.errors import LedgerRefusal
from sequester.ledger import fitting, rows
from sequester.ledger.budgets import FIXED, Budget, Tree
from sequester.ledger.charges import Charge, charge_of
from sequester.ledger.desk import Book, Desk
from sequester.ledger.reservations import Chargeable, Reservation, Reserved, cost_text
from sequester.ledger.rows import Draft, Row, compact

DAY_MS = 86_400_000


class Request(NamedTuple):
    """Where a plan is to be charged.

    Attributes:
        budget: The budget's name.
        key: The caller's idempotency key.
        dataset: Name of the data set about to be used, if the caller knows it.
        people: Keyed fingerprint of its content, if the caller knows it.
    """

    budget: str
    key: str
    dataset: str | None
    people: str | None


def reserve(desk: Desk, ledger_id: str, plan: Chargeable, request: Request) -> Reservation:
    """Charge the worst case of `plan`; see `Ledger.reserve`."""
    event = plan.event()
    with desk.writing() as book:
        held = _held(book, plan, event, request)
        tree = book.tree
    if held is None and tree.is_fresh(request.budget):
        # The tight bound takes a while: compute it outside the lock, then ask again.
        certified = _certified(tree, request.budget, event)
        with desk.writing() as book:
            held = _held(book, plan, event, request, certified)
            tree = book.tree
    if held is None:
        raise fitting.refusal(tree, request.budget, event)
    return handle(desk, ledger_id, held)


def handle(desk: Desk, ledger_id: str, reserved: Reserved) -> Reservation:
    """The reservation that a row holds."""
    row = reserved.row
    held = object.__new__(Reservation)  # a frozen dataclass's own way takes three times as long
    held.__dict__.update(
        row=row.seq,
        key=(row.key or "").removeprefix("run:"),
        budget=row.budget,
        event=reserved.event,
        rule=reserved.rule,
        expires_ms=reserved.expires_ms,
        ledger_id=ledger_id,
        _reserved=reserved,
        _desk=desk,
    )
    return held


def reused(key: str, row: Row) -> LedgerRefusal:
    """The refusal of a key that stands for another request."""
    return LedgerRefusal(
        315,
        f"the key {key!r} belongs to another request (row {row.seq}); a new one needs a new key",
    )


def _held(
    book: Book,
    plan: Chargeable,
    event: Event,
    request: Request,
    certified: Callable[[float], float] | None = None,
) -> Reserved | None:
    """The reservation, found or made; None if a ceiling forbids it."""
    made = book.transaction.by_key(f"run:{request.key}")
    if made is not None:
        return _again(book, made, event, request)
    held = book.tree.get(request.budget)
    population: int | None = getattr(plan, "population", None)
    _check_fit(held, plan, request)
    book.policy.check_terms(plan.unit, plan.adjacency)
    book.policy.check_population(population)
    charge, cost = _cost(event, held.adjacency)
    rule = book.tree.admit(request.budget, charge, certified)
    if rule is None:
        return None
    alone = certified(held.delta) if certified is not None and rule == FIXED else None
    changed = book.tree.charge(request.budget, charge, alone=alone, people=request.people)
    expires_ms = book.now_ms + round(book.policy.reservation_days * DAY_MS)
    fields = (  # sorted by name, as `compact` would write them
        f'"alone":{"null" if alone is None else repr(float(alone))}',
        cost,
        f'"expires_ms":{expires_ms}',
        f'"people":{"null" if request.people is None else compact(request.people)}',
        f'"population":{"null" if population is None else int(population)}',
        f'"rule":"{rule}","time_ms":{book.now_ms},"unit":{compact(plan.unit)}',
    )
    body = f"{{{','.join(fields)}}}"
    row = book.append(Draft(rows.RESERVE, request.budget, body, f"run:{request.key}"))
    book.save(changed)
    return Reserved(row, event, charge, rule, expires_ms, plan.unit, request.people)


@lru_cache(maxsize=4096)
def _cost(event: Event, adjacency: str) -> tuple[Charge, str]:
    """What `event` costs, and how a row says so."""
    charge = charge_of(event, adjacency)
    return charge, cost_text(charge, event)


def _again(book: Book, made: Row, event: Event, request: Request) -> Reserved:
    """The same request made before."""
    reserved = Reserved.of(made)
    same_data = request.people is None or request.people == reserved.people
    if reserved.event != event or made.budget != request.budget or not same_data:
        raise reused(request.key, made)
    for row in book.transaction.about(made.seq):
        if row.kind in (rows.COMMIT, rows.VOID):
            raise LedgerRefusal(
                316,
                f"the reservation of key {request.key!r} was settled by row {row.seq} "
                f"({row.kind}); another run needs a key of its own",
            )
    return reserved


def _check_fit(held: Budget, plan: Chargeable, request: Request) -> None:
    given_terms, needed_terms = (plan.unit, plan.adjacency), (held.unit, held.adjacency)
    if given_terms != needed_terms:
        for given, needed, what in zip(
            given_terms, needed_terms, ("unit", "adjacency"), strict=True
        ):
            if given == needed:
                continue
            raise LedgerRefusal(
                319, f"budget {held.name!r} is for the {what} {needed!r}, the plan has {given!r}"
            )
    dataset = request.dataset
    if request.people is not None and held.people not in (None, request.people):
        raise LedgerRefusal(
            322,
            f"budget {held.name!r} was first charged for other data of {held.dataset!r} than "
            f"these; make a part of it for them (--parent {held.name} --share window), so that the "
            "same people's charges still add up",
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
