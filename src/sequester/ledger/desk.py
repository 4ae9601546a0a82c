"""The desk: where a transaction, the budgets, the policy and the clock come together.

Every change goes the same way: lock, read the balances, check, append a row, replace the
balances it changed, make it durable.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

from sequester.core import canonical
from sequester.core.errors import LedgerRefusal, UsageError, VerificationError
from sequester.ledger import rows
from sequester.ledger.budgets import Budget, Tree
from sequester.ledger.known import Known
from sequester.ledger.policy import Policy
from sequester.ledger.rows import Draft, Row
from sequester.ledger.store import Store, Transaction

FORMAT = 2
_STATE = ""  # The balance that no budget can be called.
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Header:
    """What the first row says.

    Attributes:
        id: Hash of the first row, and so of everything it says.
        public_key: Whose signature makes a checkpoint.
        fingerprint_key_hash: SHA-256 of the secret key of its fingerprints.
    """

    id: str
    public_key: str
    fingerprint_key_hash: str

    @classmethod
    def of(cls, first: Row | None) -> Header:
        """Read the first row.

        Raises:
            VerificationError: SQ-330 if there is none, or it is damaged.
            UsageError: SQ-309 for a format of a later version.
        """
        if first is None or not first.well_typed() or first.hash != first.digest():
            raise VerificationError(330, "row 1 is missing or was changed: this is no ledger")
        fields = first.fields()
        if fields["format"] != FORMAT:
            raise UsageError(
                309,
                f"this ledger has format {fields['format']}, this version reads {FORMAT}; use a "
                "newer version of sequester",
            )
        return cls(first.hash, fields["public_key"], fields["fingerprint_key_hash"])


class Book:
    """One open transaction with the budgets as they are in it."""

    def __init__(
        self, transaction: Transaction, now_ms: int, known: Known, policies: dict[int, Policy]
    ) -> None:
        self.transaction = transaction
        self.now_ms = now_ms
        self._known = known
        texts = transaction.balances()
        self.policy_row, self.fingerprint_key = read_state(texts.get(_STATE))
        self.tree = Tree({name: known.budget(name, texts[name]) for name in texts if name})
        policy = policies.get(self.policy_row)
        if policy is None:
            row = transaction.row(self.policy_row)
            if row is None or row.hash != row.digest():
                raise VerificationError(
                    330, f"row {self.policy_row}, which holds the policy, was changed or removed"
                )
            policy = policies[self.policy_row] = Policy.from_fields(policy_fields(row))
        self.policy = policy

    def append(self, draft: Draft) -> Row:
        """Add a row behind the newest one.

        Raises:
            VerificationError: SQ-330 if the newest row is damaged.
            LedgerRefusal: SQ-306 if the clock lies before the newest row.
        """
        last = self.transaction.last()
        newest_ms = self._known.time_of(last)
        if draft.kind != rows.POLICY:
            # One clock far ahead would lock everybody out; a signed policy is the way back in.
            check_clock(newest_ms, self.now_ms, self.policy.clock_tolerance_s)
        row = Row.after(last, draft)
        self.transaction.append(row)
        self._known.appended(row, self.now_ms)
        return row

    def save(self, budget: Budget) -> None:
        """Keep a budget's new balance."""
        self.transaction.put_balance(budget.name, self._known.text(budget))

    def use_policy(self, row: Row) -> None:
        """Make the policy in `row` the one in force."""
        self.transaction.put_balance(_STATE, seal_state(row.seq, self.fingerprint_key))


class Desk:
    """Opens books on one store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self._clock = clock
        self._known = Known()
        self._policies: dict[int, Policy] = {}

    def now_ms(self) -> int:
        """Milliseconds since 1970, as the clock says."""
        return round(self._clock() * 1000)

    def writing(self) -> AbstractContextManager[Book]:
        """A book that excludes other writers; what it appends is durable when it closes."""
        return _Writing(self)

    def book(self, transaction: Transaction) -> Book:
        """The budgets as they are in `transaction`."""
        return Book(transaction, self.now_ms(), self._known, self._policies)

    @contextmanager
    def reading(self) -> Iterator[Book]:
        """A book on one consistent state."""
        with self.store.reading() as transaction:
            yield self.book(transaction)


class _Writing:
    """A store's writing transaction with a book on it; cheaper than a generator."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._open = desk, desk.store.writing()

    def __enter__(self) -> Book:
        transaction = self._open.__enter__()
        try:
            return self._desk.book(transaction)
        except BaseException:
            self._open.__exit__(*sys.exc_info())
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)


def check_clock(newest_ms: int, now_ms: int, tolerance_s: float) -> None:
    """Refuse a clock that lies before the newest row.

    Raises:
        LedgerRefusal: SQ-306.
    """
    behind_s = (newest_ms - now_ms) / 1000
    if behind_s > tolerance_s:
        raise LedgerRefusal(
            306,
            f"this machine's clock lies {behind_s:.0f} s before the ledger's newest row "
            f"(tolerated: {tolerance_s:g} s); nothing was charged. Set the clock right, or have a "
            "granter sign a policy with another clock_tolerance_s if the row's clock was wrong",
        )


def check_key(key: str) -> str:
    """An idempotency key as given, if it can be one.

    Raises:
        UsageError: SQ-314.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise UsageError(
            314,
            "an idempotency key is 1 to 200 visible ASCII characters without spaces, made and "
            "kept by the caller before it asks",
        )
    return key


def check_fingerprint(people: str | None) -> str | None:
    """A keyed fingerprint as given, if it is one.

    Raises:
        UsageError: SQ-314.
    """
    if people is not None and not (isinstance(people, str) and _FINGERPRINT.fullmatch(people)):
        raise UsageError(
            314, "a fingerprint is 64 hexadecimal digits, made with Ledger.fingerprint_key"
        )
    return people


def check_text(text: str, what: str, *, most: int = 500) -> str:
    """Free text as given, if it is short and printable.

    Raises:
        UsageError: SQ-314.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > most or not text.isprintable():
        raise UsageError(314, f"{what} is 1 to {most} printable characters on one line")
    return text


def policy_fields(row: Row) -> Any:
    """The policy inside a ledger or policy row."""
    fields = row.fields()
    return fields["policy"] if row.kind == rows.LEDGER else fields["signed"]["document"]["policy"]


def seal_state(policy_row: int, fingerprint_key: str) -> str:
    """What a store keeps beside the balances and never exports, sealed.

    Args:
        policy_row: Which row holds the policy in force.
        fingerprint_key: Secret key of the fingerprints, 64 hexadecimal digits.
    """
    body = canonical.dumps({"fingerprint_key": fingerprint_key, "policy_row": policy_row})
    return f"{hashlib.sha256(body.encode()).hexdigest()} {body}"


@lru_cache(maxsize=16)
def read_state(text: object) -> tuple[int, str]:
    """The inverse of `seal_state`.

    Raises:
        VerificationError: SQ-332 if the seal does not match.
    """
    seal, _, body = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest() != seal:
        raise VerificationError(332, "the ledger's stored state is damaged; nothing was charged")
    fields = json.loads(body)
    return int(fields["policy_row"]), fields["fingerprint_key"]
