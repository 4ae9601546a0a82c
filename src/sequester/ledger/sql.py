"""The statements, the same for SQLite and PostgreSQL; written by hand, values always bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sequester.ledger.rows import Row

_LAST = (
    "SELECT seq, key, kind, budget, ref, body, prev, hash FROM sequester_entry "
    "ORDER BY seq DESC LIMIT 1"
)
_ROW = "SELECT seq, key, kind, budget, ref, body, prev, hash FROM sequester_entry WHERE seq = ?"
_BY_KEY = "SELECT seq, key, kind, budget, ref, body, prev, hash FROM sequester_entry WHERE key = ?"
_ABOUT = (
    "SELECT seq, key, kind, budget, ref, body, prev, hash FROM sequester_entry "
    "WHERE ref = ? ORDER BY seq"
)
_ROWS = "SELECT seq, key, kind, budget, ref, body, prev, hash FROM sequester_entry ORDER BY seq"
APPEND = (
    "INSERT INTO sequester_entry(seq, key, kind, budget, ref, body, prev, hash) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_BALANCES = "SELECT budget, body FROM sequester_balance"
PUT_BALANCE = (
    "INSERT INTO sequester_balance(budget, body) VALUES (?, ?) "
    "ON CONFLICT(budget) DO UPDATE SET body = excluded.body"
)

Values = tuple[Any, ...]


class SqlTransaction:
    """`store.Transaction` on any connection that runs SQL."""

    def __init__(
        self,
        run: Callable[[str, Values], Any],
        stream: Callable[[str], Iterable[Values]],
        mark: str = "?",
    ) -> None:
        """Use a connection.

        Args:
            run: Executes a statement with bound values; the result fetches tuples.
            stream: Executes a statement whose result may not fit in memory.
            mark: How a bound value is written in a statement.
        """
        self._run = run if mark == "?" else _marked(run, mark)
        self._stream = stream

    def last(self) -> Row | None:
        """The newest row."""
        return self._one(_LAST, ())

    def row(self, seq: int) -> Row | None:
        """The row with this number."""
        return self._one(_ROW, (seq,))

    def by_key(self, key: str) -> Row | None:
        """The row with this idempotency key."""
        return self._one(_BY_KEY, (key,))

    def about(self, seq: int) -> list[Row]:
        """The rows that begin or settle reservation `seq`."""
        return [Row._make(values) for values in self._run(_ABOUT, (seq,)).fetchall()]

    def rows(self) -> Iterator[Row]:
        """All rows in order, streamed."""
        for values in self._stream(_ROWS):
            yield Row._make(values)

    def append(self, row: Row) -> None:
        """Add a row."""
        self._run(APPEND, row)

    def balances(self) -> dict[str, str]:
        """Budget → its balance as text."""
        return dict(self._run(_BALANCES, ()).fetchall())

    def put_balance(self, budget: str, text: str) -> None:
        """Replace one balance."""
        self._run(PUT_BALANCE, (budget, text))

    def _one(self, statement: str, values: Values) -> Row | None:
        found = self._run(statement, values).fetchone()
        return None if found is None else Row._make(found)


def _marked(run: Callable[[str, Values], Any], mark: str) -> Callable[[str, Values], Any]:
    return lambda statement, values: run(statement.replace("?", mark), values)
