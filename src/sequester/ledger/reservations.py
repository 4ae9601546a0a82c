"""A reservation: the worst case, charged before the data are touched, until it is settled."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from sequester import accounting
from sequester.accounting import Event
from sequester.core.errors import LedgerRefusal, UsageError, VerificationError
from sequester.ledger import fitting, rows
from sequester.ledger.budgets import FIXED, Tree
from sequester.ledger.charges import NOTHING, Charge, charge_of
from sequester.ledger.desk import Book, Desk, check_text
from sequester.ledger.rows import Draft, Row, compact


class Chargeable(Protocol):
    """A plan that can be charged; `mechanism.Plan` is one."""

    @property
    def unit(self) -> str:
        """Whose presence it hides."""
        ...

    @property
    def adjacency(self) -> str:
        """The neighbouring relation its event is stated under."""
        ...

    @property
    def delta(self) -> float:
        """The δ at which the plan states its own ε; the budget's δ rules here."""
        ...

    def event(self) -> Event:
        """Everything it may release, at worst."""
        ...


class Reserved(NamedTuple):
    """What a reserve row says, parsed."""

    row: Row
    event: Event
    charge: Charge
    rule: str
    expires_ms: int
    unit: str
    people: str | None

    @classmethod
    def of(cls, row: Row) -> Reserved:
        """Parse a reserve row.

        Raises:
            VerificationError: SQ-330 if it was changed.
        """
        if not row.well_typed() or row.hash != row.digest():
            raise VerificationError(330, f"row {row.seq} was changed")
        return cls.parsed(row, row.fields())

    @classmethod
    def parsed(cls, row: Row, fields: dict[str, Any]) -> Reserved:
        """The same for a row whose hash is known to hold."""
        return cls(
            row,
            event_from(fields["event"]),
            Charge.from_json(fields["charge"]),
            fields["rule"],
            fields["expires_ms"],
            fields["unit"],
            fields["people"],
        )

    def settled(self, ran: Charge, time_ms: int) -> Charge:
        """What stays charged after `ran`, settled at `time_ms`.

        An expired reservation, and one admitted as fixed in advance, stay charged in full:
        lowering the latter would let a filter continue where a non-adaptive bound was used.
        """
        return self.charge if self.rule == FIXED or time_ms > self.expires_ms else ran


@dataclass(frozen=True)
class Reservation:
    """A charge that holds; settle it with `commit`, or `void` it before anything is touched.

    Attributes:
        row: Its row in the ledger.
        key: The caller's idempotency key.
        budget: The budget charged.
        event: The worst case that was reserved.
        rule: "filter" (any adaptive sequence) or "fixed" (one run fixed in advance).
        expires_ms: From then on it is charged for good, milliseconds since 1970.
        ledger_id: The ledger it stands in.
    """

    row: int
    key: str
    budget: str
    event: Event
    rule: str
    expires_ms: int
    ledger_id: str
    _reserved: Reserved = field(repr=False)
    _desk: Desk = field(repr=False, compare=False)

    def begin(self) -> None:
        """Note that the data are about to be touched: from here on `void` is refused.

        Raises:
            LedgerRefusal: SQ-316 if it is settled already.
        """
        with self._desk.writing() as book:
            reserved, settlement, begun = self._found(book)
            if settlement is not None:
                raise self._settled(settlement)
            if begun is None:
                fields = {"time_ms": book.now_ms}
                book.append(Draft.of(rows.BEGIN, fields, budget=self.budget, ref=reserved.row.seq))

    def commit(self, ran: Event) -> dict[str, Any]:
        """Settle with the event that ran; the rest of the reservation becomes free again.

        Committing the same event twice is one commit. Under the rule "fixed" and after expiry
        the whole reservation stays charged.

        Returns:
            What a claim says about it: `id`, `row`, `hash`, `budget`, `rule` (by which
            composition it was admitted), `spent`, `ceiling`, `remaining`.

        Raises:
            LedgerRefusal: SQ-316 if it was settled otherwise, SQ-317 if more ran than reserved:
                then it stays charged in full and `Ledger.correct` adds what is missing.
        """
        with self._desk.writing() as book:
            reserved, settlement, _ = self._found(book)
            if settlement is not None:
                same = settlement.kind == rows.COMMIT and (
                    event_from(settlement.fields()["event"]) == ran
                )
                if not same:
                    raise self._settled(settlement)
                return self._info(settlement, book.tree)
            adjacency = book.tree.get(self.budget).adjacency
            charge = charge_of(ran, adjacency)
            covered = reserved.charge.covers(charge)
            if covered and self.rule == FIXED:
                covered = fitting.stays_within(book.tree, self.budget, ran, reserved.event)
            if not covered:
                raise LedgerRefusal(
                    317,
                    f"more ran than reservation {self.row} holds; it stays charged in full. Add "
                    "what is missing with a correction",
                )
            stays = reserved.settled(charge, book.now_ms)
            budget = book.tree.change(self.budget, reserved.charge, stays)
            body = f'{{{cost_text(stays, ran)},"time_ms":{book.now_ms}}}'
            row = book.append(Draft(rows.COMMIT, self.budget, body, ref=reserved.row.seq))
            book.save(budget)
            return self._info(row, book.tree)

    def void(self, reason: str) -> None:
        """Free the reservation; only if nothing was touched.

        Raises:
            LedgerRefusal: SQ-316 if it is settled, SQ-318 if the data were touched or it expired.
            UsageError: SQ-314 for a reason that says nothing.
        """
        check_text(reason, "a reason")
        with self._desk.writing() as book:
            reserved, settlement, begun = self._found(book)
            if settlement is not None:
                if settlement.kind == rows.VOID:
                    return
                raise self._settled(settlement)
            if begun is not None or book.now_ms > reserved.expires_ms:
                why = "the data were touched" if begun is not None else "it has expired"
                raise LedgerRefusal(
                    318, f"reservation {self.row} stays charged: {why}. Commit what ran instead"
                )
            budget = book.tree.change(self.budget, reserved.charge, NOTHING)
            fields = {"reason": reason, "time_ms": book.now_ms}
            book.append(Draft.of(rows.VOID, fields, budget=self.budget, ref=reserved.row.seq))
            book.save(budget)

    def status(self) -> str:
        """One of "reserved", "begun", "expired", "commit" or "void"."""
        with self._desk.reading() as book:
            reserved, settlement, begun = self._found(book)
            if settlement is not None:
                return settlement.kind
            if book.now_ms > reserved.expires_ms:
                return "expired"
            return "reserved" if begun is None else "begun"

    def _found(self, book: Book) -> tuple[Reserved, Row | None, Row | None]:
        """The reserve row, its settlement and its begin row."""
        row = book.transaction.row(self.row)
        if row is None or row.kind != rows.RESERVE:
            raise UsageError(323, f"row {self.row} of this ledger is no reservation")
        about = book.transaction.about(self.row)
        settlement = next((r for r in about if r.kind in (rows.COMMIT, rows.VOID)), None)
        begun = next((r for r in about if r.kind == rows.BEGIN), None)
        # What equals the row that was parsed before need not be parsed again.
        return self._reserved if row == self._reserved.row else Reserved.of(row), settlement, begun

    def _settled(self, settlement: Row) -> LedgerRefusal:
        return LedgerRefusal(
            316,
            f"reservation {self.row} was settled by row {settlement.seq} ({settlement.kind}); "
            "another run needs a reservation, and a key, of its own",
        )

    def _info(self, row: Row, tree: Tree) -> dict[str, Any]:
        budget, spent = tree.get(self.budget), tree.spent(self.budget)
        return {
            "id": self.ledger_id,
            "row": row.seq,
            "hash": row.hash,
            "budget": budget.name,
            "rule": self.rule,
            "spent": spent,
            "ceiling": budget.epsilon,
            "remaining": max(0.0, budget.epsilon - spent),
        }


@lru_cache(maxsize=4096)
def event_fields(event: Event) -> Any:
    """An event as the JSON object that a row holds; shared, so never changed."""
    return json.loads(accounting.to_json(event))


@lru_cache(maxsize=4096)
def cost_text(charge: Charge, event: Event) -> str:
    """The two largest fields of a row as canonical JSON: `"charge":…,"event":…`."""
    return compact({"charge": charge.to_json(), "event": event_fields(event)})[1:-1]


def event_from(fields: Any) -> Event:
    """The event that a row holds."""
    return _event(json.dumps(fields))


@lru_cache(maxsize=4096)
def _event(text: str) -> Event:
    return accounting.from_json(text)
