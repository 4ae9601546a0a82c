"""Where rows are kept: one small interface, and the way from a URL to a store behind it.

A store knows nothing about privacy. It promises: a writing transaction excludes every other
writer, in this process or another; once it ends without an error, its rows survive a power
cut; if it ends with one, none of them was written. Rows are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from sequester.core.errors import UsageError
from sequester.ledger.rows import Row


class Transaction(Protocol):
    """Reading and adding rows inside one transaction."""

    def last(self) -> Row | None:
        """The newest row."""
        ...

    def row(self, seq: int) -> Row | None:
        """The row with this number."""
        ...

    def by_key(self, key: str) -> Row | None:
        """The row with this idempotency key."""
        ...

    def about(self, seq: int) -> list[Row]:
        """The rows that begin or settle reservation `seq`."""
        ...

    def rows(self) -> Iterator[Row]:
        """All rows in order, streamed."""
        ...

    def append(self, row: Row) -> None:
        """Add a row."""
        ...

    def balances(self) -> dict[str, str]:
        """Budget → its balance as text, to be read only; `verify` recomputes it from the rows."""
        ...

    def put_balance(self, budget: str, text: str) -> None:
        """Replace one balance."""
        ...


class Store(Protocol):
    """A place that holds one ledger."""

    url: str

    def writing(self) -> AbstractContextManager[Transaction]:
        """A transaction that excludes all other writers and is durable when it ends."""
        ...

    def reading(self) -> AbstractContextManager[Transaction]:
        """A transaction on one consistent state."""
        ...

    def check(self) -> None:
        """Look for damage below the rows.

        Raises:
            VerificationError: SQ-331.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def open_store(url: str, *, create: bool, timeout_s: float) -> Store:
    """The store that `url` names.

    Args:
        url: "sqlite:///relative.db", "sqlite:////absolute.db" or "postgresql://…".
        create: Make it; it must not exist. Otherwise it must exist.
        timeout_s: How long to wait for other writers.

    Raises:
        UsageError: SQ-300 for another kind of URL; SQ-301 or 302 if it does not, or does, exist.
    """
    if url.startswith("sqlite:///"):
        from sequester.ledger.sqlite import SqliteStore

        return SqliteStore(url, create=create, timeout_s=timeout_s)
    if url.startswith(("postgresql://", "postgres://")):
        # psycopg is an extra, and slow to import: only who asks for PostgreSQL pays for it.
        from sequester.ledger.postgres import PostgresStore

        return PostgresStore(url, create=create, timeout_s=timeout_s)
    raise UsageError(
        300,
        "a ledger's URL starts with sqlite:/// (sqlite:///budget.db is a file here) or "
        f"postgresql://, got {_without_secret(url)!r}",
    )


def _without_secret(url: str) -> str:
    """The URL without what may be a password."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url
