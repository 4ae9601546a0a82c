"""Verification: everything a ledger says, worked out again from its rows alone.

A reader that shares no state with the writer: it keeps its own budgets, recomputes every
charge from its event and every balance from the charges, and stops at the first row that does
not follow from those before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sequester.accounting import Event
from sequester.core.errors import SequesterError, VerificationError
from sequester.ledger import fitting, rows
from sequester.ledger.budgets import FILTER, FIXED, Budget, Tree
from sequester.ledger.charges import NOTHING, ORDERS, Charge, charge_of
from sequester.ledger.desk import Header, read_state, seal_state
from sequester.ledger.grants import Grant, PolicyChange, check_grant, check_policy_change
from sequester.ledger.policy import Policy
from sequester.ledger.reservations import Reserved, event_from
from sequester.ledger.rows import BEFORE_FIRST, Row
from sequester.ledger.signing import Signed
from sequester.ledger.store import Transaction

_RELATIVE = 1e-9
"""Charges recomputed on another machine may differ in the last digit of a logarithm."""


@dataclass(frozen=True)
class Verified:
    """An intact ledger.

    Attributes:
        ledger: Its id.
        entries: Number of rows.
        head: Hash of the newest row.
        checkpoints: How many checkpoints agreed with it.
    """

    ledger: str
    entries: int
    head: str
    checkpoints: int


class _Bad(Exception):
    """Why a row does not follow from those before it."""


class _Reader:
    """The state that the rows read so far describe."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.policy = Policy()
        self.policy_row = 1
        self.tree = Tree({})
        self.last: Row | None = None
        self.open: dict[int, Reserved] = {}
        self.begun: set[int] = set()
        self.reservations: dict[int, str] = {}
        self._apply: dict[str, Callable[[Row, dict[str, Any]], None]] = {
            rows.LEDGER: self._ledger,
            rows.POLICY: self._policy,
            rows.BUDGET: self._budget,
            rows.GRANT: self._grant,
            rows.RESERVE: self._reserve,
            rows.BEGIN: self._begin,
            rows.COMMIT: self._commit,
            rows.VOID: self._void,
            rows.CORRECT: self._correct,
        }

    def read(self, row: Row) -> None:
        """Take in the next row.

        Raises:
            _Bad: if it does not follow.
        """
        if not row.well_typed():
            raise _Bad("a column has another type than it was written with")
        seq, prev = (self.last.seq + 1, self.last.hash) if self.last else (1, BEFORE_FIRST)
        if row.seq != seq:
            raise _Bad(f"row {seq} is missing before it")
        if row.prev != prev:
            raise _Bad("it does not continue the row before it")
        if row.digest() != row.hash:
            raise _Bad("its content was changed")
        fields = row.fields()
        if type(fields["time_ms"]) is not int:
            raise _Bad("its time is not a whole number of milliseconds")
        if (row.kind == rows.LEDGER) != (row.seq == 1) or row.kind not in self._apply:
            raise _Bad(f"no row of kind {row.kind!r} can stand here")
        self._apply[row.kind](row, fields)
        self.last = row

    def _ledger(self, row: Row, fields: dict[str, Any]) -> None:
        self.header = Header.of(row)
        if fields["orders"] != list(ORDERS):
            raise _Bad("it was written for another ladder of orders")
        self.policy = Policy.from_fields(fields["policy"])

    def _policy(self, row: Row, fields: dict[str, Any]) -> None:
        signed = Signed.from_json(fields["signed"], "policy")
        change = PolicyChange.of(signed)
        check_policy_change(change, signed, self.policy, self._id(), self.policy_row)
        self.policy, self.policy_row = change.policy, row.seq

    def _budget(self, row: Row, fields: dict[str, Any]) -> None:
        budget = Budget(name=row.budget, **fields["terms"])
        self.policy.check_terms(budget.unit, budget.adjacency)
        self.policy.check_budget(budget.dataset, budget.epsilon, budget.delta)
        if budget.name in self.tree.budgets:
            raise _Bad(f"budget {budget.name!r} is made a second time")
        self.tree.add(budget)

    def _grant(self, row: Row, fields: dict[str, Any]) -> None:
        signed = Signed.from_json(fields["signed"], "grant")
        grant = Grant.of(signed)
        old = self.tree.get(grant.budget)
        check_grant(grant, signed, old, self.policy, self._id())
        if row.budget != grant.budget:
            raise _Bad("it raises another budget than it names")
        self.tree.raise_ceiling(old.name, grant.epsilon)

    def _reserve(self, row: Row, fields: dict[str, Any]) -> None:
        held = self.tree.get(row.budget)
        reserved = Reserved.parsed(row, fields)
        self._recomputed(reserved.charge, reserved.event, held.adjacency)
        self.policy.check_terms(reserved.unit, held.adjacency)
        self.policy.check_population(fields["population"])
        if reserved.unit != held.unit:
            raise _Bad(f"a charge per {reserved.unit} on a budget per {held.unit}")
        certified = fitting.certifier(reserved.event, held.adjacency)
        bound = certified if reserved.rule == FIXED else None
        if held.people is not None and reserved.people not in (None, held.people):
            raise _Bad("it charges other data to this budget than the first run")
        rule = self.tree.admit(row.budget, reserved.charge, bound)
        if rule is None or reserved.rule not in (FILTER, FIXED):
            raise _Bad(f"it passes the ceiling of {row.budget!r} or of a budget above it")
        self.tree.charge(row.budget, reserved.charge, alone=fields["alone"], people=reserved.people)
        self.open[row.seq] = reserved
        self.reservations[row.seq] = row.budget

    def _begin(self, row: Row, fields: dict[str, Any]) -> None:
        self._settles(row)
        self.begun.add(row.ref or 0)

    def _commit(self, row: Row, fields: dict[str, Any]) -> None:
        reserved = self._settles(row)
        adjacency = self.tree.get(row.budget).adjacency
        event = event_from(fields["event"])
        ran = charge_of(event, adjacency)
        if reserved.rule == FIXED and not fitting.stays_within(
            self.tree, row.budget, event, reserved.event
        ):
            raise _Bad("more ran than was admitted by its certified epsilon")
        stays = Charge.from_json(fields["charge"])
        if not _close(reserved.charge, ran) or not _close(
            stays, reserved.settled(ran, fields["time_ms"])
        ):
            raise _Bad("it charges less than what ran, or more ran than was reserved")
        if not reserved.charge.covers(stays):
            raise _Bad("it charges more than was reserved")
        self.tree.change(row.budget, reserved.charge, stays)
        del self.open[reserved.row.seq]

    def _void(self, row: Row, fields: dict[str, Any]) -> None:
        reserved = self._settles(row)
        if reserved.row.seq in self.begun or fields["time_ms"] > reserved.expires_ms:
            raise _Bad("it frees a reservation whose data were touched, or that had expired")
        self.tree.change(row.budget, reserved.charge, NOTHING)
        del self.open[reserved.row.seq]

    def _correct(self, row: Row, fields: dict[str, Any]) -> None:
        if self.reservations.get(fields["row"]) != row.budget:
            raise _Bad(f"it corrects row {fields['row']}, which is no reservation of its budget")
        charge, missing = Charge.from_json(fields["charge"]), event_from(fields["event"])
        self._recomputed(charge, missing, self.tree.get(row.budget).adjacency)
        self.tree.charge(row.budget, charge)

    def _settles(self, row: Row) -> Reserved:
        reserved = self.open.get(row.ref or 0)
        if reserved is None or reserved.row.budget != row.budget:
            raise _Bad(f"row {row.ref} is no open reservation of budget {row.budget!r}")
        return reserved

    def _recomputed(self, stored: Charge, event: Event, adjacency: str) -> None:
        if not _close(stored, charge_of(event, adjacency)):
            raise _Bad("it charges less than its event costs")

    def _id(self) -> str:
        return self.header.id if self.header else ""


def verify(transaction: Transaction, checkpoints: Sequence[Signed] = ()) -> Verified:
    """Read all rows; the report of an intact ledger.

    Raises:
        VerificationError: SQ-330 naming the first bad row, SQ-332, 333 or 334.
    """
    reader, wanted = _Reader(), {c.document.get("rows") for c in checkpoints}
    hashes: dict[object, str] = {}
    for row in transaction.rows():
        try:
            reader.read(row)
        except (_Bad, SequesterError, ValueError, KeyError, TypeError, AttributeError) as error:
            place = reader.last.seq + 1 if reader.last else 1
            raise VerificationError(
                330,
                f"row {place} is the first bad row: {_reason(error)}. Rows before it hold; "
                "restore the rest from a copy",
            ) from None
        if row.seq in wanted:
            hashes[row.seq] = row.hash
    if reader.header is None or reader.last is None:
        raise VerificationError(330, "row 1 is the first bad row: it is missing")
    for checkpoint in checkpoints:
        _check_checkpoint(checkpoint, reader.header, hashes, reader.last.seq)
    _check_balances(transaction, reader, reader.header)
    return Verified(reader.header.id, reader.last.seq, reader.last.hash, len(checkpoints))


def _check_checkpoint(
    signed: Signed, header: Header, hashes: dict[object, str], entries: int
) -> None:
    document = signed.document
    if signed.purpose != "checkpoint" or not signed.holds():
        raise VerificationError(334, "the signature of this checkpoint does not hold")
    if signed.signer != header.public_key or document.get("ledger") != header.id:
        raise VerificationError(334, "this checkpoint belongs to another ledger")
    if hashes.get(document["rows"]) != document["head"]:
        raise VerificationError(
            333,
            f"a checkpoint saw row {document['rows']} with hash {document['head'][:16]}…, but this "
            f"ledger of {entries} rows has no such row: it was rolled back or rewritten",
        )


def _check_balances(transaction: Transaction, reader: _Reader, header: Header) -> None:
    stored = transaction.balances()
    _, secret = read_state(stored.get(""))
    if hashlib.sha256(secret.encode()).hexdigest() != header.fingerprint_key_hash:
        raise VerificationError(332, "the secret key of the fingerprints is not this ledger's")
    expected = {name: budget.to_text() for name, budget in reader.tree.budgets.items()}
    expected[""] = seal_state(reader.policy_row, secret)
    for name in sorted(set(stored) | set(expected)):
        if stored.get(name) != expected.get(name):
            what = f"budget {name!r}" if name else "the policy in force"
            raise VerificationError(
                332,
                f"the stored balance of {what} does not follow from the rows: it was changed, or "
                "the newest rows were removed",
            )


def _close(stored: Charge, computed: Charge) -> bool:
    """Whether `stored` covers `computed`, but for the last digit of a logarithm."""
    if stored == computed:
        return True
    pairs = zip(stored.to_json(), computed.to_json(), strict=True)
    return all(s + 1 + int(c * _RELATIVE) >= c for s, c in pairs)


def _reason(error: Exception) -> str:
    if isinstance(error, SequesterError):
        return error.message
    return str(error) if isinstance(error, _Bad) else "its body does not say what it must"
