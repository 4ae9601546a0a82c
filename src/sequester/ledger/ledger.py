"""The ledger: open it, make budgets, reserve, grant, verify."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sequester.accounting import Event
from sequester.core.errors import UsageError
from sequester.core.files import check_name
from sequester.core.values import check_delta
from sequester.ledger import fitting, rows
from sequester.ledger.budgets import Budget
from sequester.ledger.charges import charge_of
from sequester.ledger.desk import Desk, Header, check_fingerprint, check_key, check_text
from sequester.ledger.founding import found, key_beside
from sequester.ledger.grants import Grant, PolicyChange, check_grant, check_policy_change
from sequester.ledger.policy import Policy
from sequester.ledger.reservations import Chargeable, Reservation, Reserved, event_fields
from sequester.ledger.reserving import Request, handle, reserve, reused
from sequester.ledger.rows import Draft, Row
from sequester.ledger.signing import Signed, read_key
from sequester.ledger.store import Store, open_store
from sequester.ledger.verify import Verified, verify


@dataclass(frozen=True)
class Standing:
    """A budget as it stands.

    Attributes:
        budget: Its terms.
        spent: Upper bound on ε that any of its people bears, reservations included.
        remaining: Ceiling minus spent, never below 0.
    """

    budget: Budget
    spent: float
    remaining: float


class Ledger:
    """Budgets of data sets, and everything ever charged to them.

    >>> ledger = Ledger.create("sqlite:///budget.db")          # doctest: +SKIP
    >>> ledger.create_budget("town", "town-2024", 3.0, 1e-6)   # doctest: +SKIP
    >>> held = ledger.reserve(plan, budget="town", key="run-1")  # doctest: +SKIP
    >>> held.begin()                                           # doctest: +SKIP
    >>> row = held.commit(event_that_ran)                      # doctest: +SKIP
    """

    def __init__(
        self, store: Store, *, key: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Use `Ledger.open` or `Ledger.create`."""
        self._store = store
        self._key = key
        self._desk = Desk(store, clock)
        with store.reading() as transaction:
            self._header = Header.of(transaction.row(1))

    @classmethod
    def open(
        cls,
        url: str,
        *,
        key: Path | None = None,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> Ledger:
        """Open a ledger that exists.

        Args:
            url: "sqlite:///budget.db" or "postgresql://…".
            key: Its private key, for checkpoints only; an SQLite ledger's lies beside it.
            timeout_s: How long to wait for other writers.
            clock: Seconds since 1970; for tests.

        Raises:
            UsageError: SQ-300 or 301.
            LedgerRefusal: SQ-303 to 305 or 307 if the store cannot be used.
            VerificationError: SQ-330 or 331 if it is damaged.
        """
        store = open_store(url, create=False, timeout_s=timeout_s)
        try:
            return cls(store, key=key or key_beside(url), clock=clock)
        except BaseException:
            store.close()
            raise

    @classmethod
    def create(
        cls,
        url: str,
        *,
        policy: Policy | None = None,
        key: Path | None = None,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> Ledger:
        """Make a new ledger, and its key if there is none yet.

        Args:
            url: As for `open`; there must be no ledger there.
            policy: The data holder's; without granters in it, the ledger's own key may grant.
            key: Where the private key is, or shall be; beside an SQLite file by default.
            timeout_s: How long to wait for other writers.
            clock: Seconds since 1970; for tests.

        Raises:
            UsageError: SQ-300 or 302; SQ-344 without a place for the key.
        """
        place = key or key_beside(url)
        if place is None:
            raise UsageError(
                344, "say where the ledger's private key shall be kept; it signs checkpoints"
            )
        store = open_store(url, create=True, timeout_s=timeout_s)
        try:
            found(store, policy or Policy(), place, round(clock() * 1000))
            return cls(store, key=place, clock=clock)
        except BaseException:
            store.close()
            raise

    @property
    def id(self) -> str:
        """Hash of the first row, 64 hexadecimal digits."""
        return self._header.id

    @property
    def public_key(self) -> str:
        """Whose signature makes a checkpoint of this ledger."""
        return self._header.public_key

    def policy(self) -> Policy:
        """The data holder's policy in force."""
        with self._desk.reading() as book:
            return book.policy

    def policy_row(self) -> int:
        """The row that holds the policy in force."""
        with self._desk.reading() as book:
            return book.policy_row

    def create_budget(
        self,
        name: str,
        dataset: str,
        epsilon: float,
        delta: float,
        *,
        unit: str = "person",
        adjacency: str = "add-or-remove",
        parent: str | None = None,
        share: str | None = None,
    ) -> Budget:
        """Make a budget; the same request twice makes one.

        Args:
            name: 1 to 100 letters, digits, dots, dashes or underscores.
            dataset: The data set's fingerprint, or its name.
            epsilon: Ceiling, finite.
            delta: The ceiling's δ.
            unit: Whose presence it protects.
            adjacency: The neighbouring relation.
            parent: The budget it is part of; None for the one of the whole data set.
            share: "population" for disjoint people, "window" for other times of the same.

        Raises:
            UsageError: SQ-201, 310, 311, 314 or 320.
            LedgerRefusal: SQ-313 for a second root on a data set, SQ-340 by policy.
        """
        check_name(name, "a budget's name")
        check_text(dataset, "a data set's fingerprint or name", most=200)
        if not 0 < epsilon < math.inf:
            raise UsageError(314, f"a budget's epsilon must be > 0 and finite, got {epsilon}")
        budget = Budget(
            name, dataset, float(epsilon), check_delta(delta), unit, adjacency, parent, share
        )
        with self._desk.writing() as book:
            there = book.tree.budgets.get(name)
            if there is not None:
                made = book.transaction.by_key(f"budget:{name}")
                if made is None or made.fields()["terms"] != budget.terms():
                    raise UsageError(
                        311,
                        f"budget {name!r} exists with other terms: epsilon {there.epsilon:g}, "
                        f"delta {there.delta:g}, data set {there.dataset!r}; a ceiling "
                        "is raised by a grant only",
                    )
                return there
            book.policy.check_terms(unit, adjacency)
            book.policy.check_budget(dataset, budget.epsilon, budget.delta)
            book.tree.add(budget)
            fields = {"terms": budget.terms(), "time_ms": book.now_ms}
            book.append(Draft.of(rows.BUDGET, fields, budget=name, key=f"budget:{name}"))
            book.save(budget)
            return budget

    def fingerprint_key(self) -> bytes:
        """Secret key for the fingerprint of a budget's data; in no row and no export.

        Unkeyed, a fingerprint would tell whoever knows all records but one whether a guess
        about the last one is right.
        """
        with self._desk.reading() as book:
            return bytes.fromhex(book.fingerprint_key)

    def reserve(
        self,
        plan: Chargeable,
        *,
        budget: str,
        key: str,
        dataset: str | None = None,
        people: str | None = None,
    ) -> Reservation:
        """Charge the worst case of `plan`, durably, before anything is touched.

        The same key and plan again give the same reservation and charge nothing.

        Args:
            plan: What may be released at worst.
            budget: The budget to charge.
            key: Made and kept by the caller before it asks, so that it can ask again.
            dataset: Name of the data set about to be used; must be the budget's if given.
            people: Fingerprint of its content under `fingerprint_key`. The first one binds the
                budget; later ones must be the same.

        Raises:
            UsageError: SQ-310, or SQ-314 for a key that is none.
            LedgerRefusal: SQ-312 if a ceiling would be passed, SQ-315 or 316 for a key that was
                used otherwise or is settled, SQ-319 or 322 for another unit, adjacency or data
                set than the budget's, SQ-340 by policy.
        """
        request = Request(budget, check_key(key), dataset, check_fingerprint(people))
        return reserve(self._desk, self.id, plan, request)

    def most_steps(self, plan: Chargeable, *, budget: str) -> int | None:
        """How many of the plan's steps would be admitted now: all, fewer, or 0.

        None if its event has no steps that could be cut and does not fit.

        Raises:
            UsageError: SQ-310.
        """
        with self._desk.reading() as book:
            tree = book.tree
        return fitting.most_steps(tree, budget, plan.event())

    def reservation(self, key: str) -> Reservation:
        """The reservation made with `key`, settled or not.

        Raises:
            UsageError: SQ-323 if there is none.
        """
        with self._desk.reading() as book:
            row = book.transaction.by_key(f"run:{check_key(key)}")
        if row is None:
            raise UsageError(323, f"no reservation was made with the key {key!r}")
        return handle(self._desk, self.id, Reserved.of(row))

    def correct(self, row: int, missing: Event, reason: str, *, key: str) -> Row:
        """Add what reservation `row` failed to charge; nothing is ever subtracted.

        It happened, so it is charged whether or not it fits under the ceiling.

        Raises:
            UsageError: SQ-314 or 323.
            LedgerRefusal: SQ-315 for a key that was used otherwise.
        """
        check_key(key)
        check_text(reason, "a reason")
        with self._desk.writing() as book:
            about = book.transaction.row(row)
            if about is None or about.kind != rows.RESERVE:
                raise UsageError(323, f"row {row} of this ledger is no reservation")
            body = {"event": event_fields(missing), "reason": reason, "row": row}
            if (made := book.transaction.by_key(f"correct:{key}")) is not None:
                if any(made.fields()[name] != value for name, value in body.items()):
                    raise reused(key, made)
                return made
            charge = charge_of(missing, book.tree.get(about.budget).adjacency)
            changed = book.tree.charge(about.budget, charge)
            fields = body | {"charge": charge.to_json(), "time_ms": book.now_ms}
            added = book.append(
                Draft.of(rows.CORRECT, fields, budget=about.budget, key=f"correct:{key}")
            )
            book.save(changed)
            return added

    def grant(self, signed: Signed) -> Budget:
        """Raise a ceiling by a grant that one of the policy's granters signed.

        Raises:
            VerificationError: SQ-334 for a signature that does not hold.
            LedgerRefusal: SQ-342 for a signer who may not, SQ-343 for a grant that does not fit
                this ledger as it stands, SQ-340 beyond the policy's `most_epsilon`.
        """
        with self._desk.writing() as book:
            grant = Grant.of(signed)
            old = book.tree.get(grant.budget)
            check_grant(grant, signed, old, book.policy, self.id)
            new = book.tree.raise_ceiling(old.name, grant.epsilon)
            fields = {"signed": signed.to_json(), "time_ms": book.now_ms}
            book.append(Draft.of(rows.GRANT, fields, budget=new.name))
            book.save(new)
            return new

    def change_policy(self, signed: Signed) -> Policy:
        """Put another policy in force, signed by a granter of the present one.

        Raises:
            VerificationError, LedgerRefusal: as for `grant`.
        """
        with self._desk.writing() as book:
            change = PolicyChange.of(signed)
            check_policy_change(change, signed, book.policy, self.id, book.policy_row)
            fields = {"signed": signed.to_json(), "time_ms": book.now_ms}
            book.use_policy(book.append(Draft.of(rows.POLICY, fields)))
            return change.policy

    def budgets(self) -> list[Standing]:
        """All budgets by name, with what is spent and what remains."""
        with self._desk.reading() as book:
            tree = book.tree
        found = []
        for name in sorted(tree.budgets):
            spent, budget = tree.spent(name), tree.get(name)
            found.append(Standing(budget, spent, max(0.0, budget.epsilon - spent)))
        return found

    def entries(self) -> int:
        """Number of rows."""
        with self._store.reading() as transaction:
            last = transaction.last()
        return last.seq if last else 0

    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        with self._store.reading() as transaction:
            return list(transaction.rows())

    def checkpoint(self) -> Signed:
        """A signed statement of how far the ledger has come; keep it somewhere else.

        Raises:
            UsageError: SQ-344 without the ledger's private key.
        """
        if self._key is None:
            raise UsageError(344, "a checkpoint needs the ledger's private key")
        with self._store.reading() as transaction:
            last = transaction.last()
        document = {
            "head": last.hash if last else "",
            "ledger": self.id,
            "rows": last.seq if last else 0,
            "time_ms": self._desk.now_ms(),
        }
        return Signed.by(read_key(self._key), "checkpoint", document)

    def verify(self, checkpoints: Sequence[Signed] = ()) -> Verified:
        """Recompute the chain, every charge and every balance from the rows alone.

        Raises:
            VerificationError: SQ-330 naming the first bad row, SQ-331 for damage below the
                rows, SQ-332 for balances that do not follow from them, SQ-333 or 334 for
                checkpoints that disagree or are not this ledger's.
        """
        self._store.check()
        with self._store.reading() as transaction:
            return verify(transaction, checkpoints)

    def close(self) -> None:
        """Let go of files and connections."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
