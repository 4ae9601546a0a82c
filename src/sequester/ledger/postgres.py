"""The shared store: two tables in a PostgreSQL database.

An advisory lock of the transaction lets one writer in at a time, so that there is one chain;
the primary key would stop a second chain anyway. A server that does not flush to disk is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sequester.core.errors import LedgerRefusal, SequesterError, UsageError, VerificationError
from sequester.ledger.sql import SqlTransaction, Values

try:
    import psycopg
except ImportError as error:
    raise UsageError(
        300, "a PostgreSQL ledger needs psycopg: pip install 'sequester[postgres]'"
    ) from error

_LOCK = 0x5351_5354_4C44_4752  # "SQSTLDGR"
_SCHEMA = (
    "CREATE TABLE sequester_entry(seq bigint PRIMARY KEY, key text UNIQUE, kind text NOT NULL, "
    "budget text NOT NULL, ref bigint, body text NOT NULL, prev text NOT NULL, "
    "hash text NOT NULL)",
    "CREATE UNIQUE INDEX sequester_entry_once ON sequester_entry(ref, kind) WHERE ref IS NOT NULL",
    "CREATE TABLE sequester_balance(budget text PRIMARY KEY, body text NOT NULL)",
    "CREATE FUNCTION sequester_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'rows are never changed or removed'; END $$",
    "CREATE TRIGGER sequester_entry_rows BEFORE UPDATE OR DELETE ON sequester_entry "
    "FOR EACH ROW EXECUTE FUNCTION sequester_refuse()",
    "CREATE TRIGGER sequester_entry_all BEFORE TRUNCATE ON sequester_entry "
    "FOR EACH STATEMENT EXECUTE FUNCTION sequester_refuse()",
)
_MUST_BE_ON = ("fsync", "full_page_writes", "synchronous_commit")


class PostgresStore:
    """Two tables on a server."""

    def __init__(self, url: str, *, create: bool, timeout_s: float) -> None:
        """Connect, and make the tables if asked to.

        Raises:
            UsageError: SQ-301 or 302 if they are missing, or already there.
            LedgerRefusal: SQ-303 if the server does not flush to disk or cannot be reached.
        """
        self.url = url
        self._timeout = timeout_s
        self._process = os.getpid()
        with _clear():
            self._connection = self._connect()
            try:
                self._prepare(create=create)
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def writing(self) -> Iterator[SqlTransaction]:
        """See `store.Store`."""
        with _clear(), self._ready().transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            yield self._transaction()

    @contextmanager
    def reading(self) -> Iterator[SqlTransaction]:
        """See `store.Store`."""
        with _clear(), self._ready().transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield self._transaction()

    def check(self) -> None:
        """Whether the guards against changing rows are in place; pages are the server's duty."""
        with _clear():
            guards = self._ready().execute(
                "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'sequester_entry'::regclass "
                "AND tgname IN ('sequester_entry_rows', 'sequester_entry_all') "
                "AND tgenabled <> 'D'"
            )
            if guards.fetchone() != (2,):
                raise VerificationError(
                    331, "the ledger's guards against changing rows are missing or disabled"
                )

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _prepare(self, *, create: bool) -> None:
        there = self._value("SELECT to_regclass('sequester_entry')") is not None
        if create and there:
            raise UsageError(
                302, "this database holds a ledger already; a ledger is never overwritten"
            )
        if not create and not there:
            raise UsageError(
                301, "no ledger in this database; 'sequester ledger init URL' makes one"
            )
        if create:
            with self._connection.transaction():
                for statement in _SCHEMA:
                    self._connection.execute(statement.encode())

    def _connect(self) -> psycopg.Connection[Values]:
        connection = psycopg.connect(
            self.url, autocommit=True, connect_timeout=max(2, round(self._timeout))
        )
        try:
            connection.execute(f"SET lock_timeout = {round(self._timeout * 1000)}")
            connection.execute("SET synchronous_commit = on")
            off = [
                name
                for name in _MUST_BE_ON
                if connection.execute(f"SHOW {name}").fetchone() != ("on",)
            ]
            if off:
                raise LedgerRefusal(
                    303,
                    f"this server runs with {', '.join(off)} off and could forget a charge; a "
                    "ledger needs it on",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _ready(self) -> psycopg.Connection[Values]:
        """The connection, made again if the server went away in between."""
        if os.getpid() != self._process:
            raise SequesterError(
                308, "this process is a fork of the one that opened the ledger; open it again"
            )
        if self._connection.closed or self._connection.broken:
            self._connection = self._connect()
        return self._connection

    def _transaction(self) -> SqlTransaction:
        connection = self._connection

        def stream(statement: str) -> Iterable[Values]:
            with connection.cursor(name="sequester_rows") as cursor:
                cursor.itersize = 5000
                yield from cursor.execute(statement.encode())

        def run(statement: str, values: Values) -> Any:
            return connection.execute(statement.encode(), values)

        return SqlTransaction(run, stream, mark="%s")

    def _value(self, statement: str) -> Any:
        found = self._connection.execute(statement.encode()).fetchone()
        return None if found is None else found[0]


@contextmanager
def _clear() -> Iterator[None]:
    """Turn what the server says into refusals that say what to do; never show the URL."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise LedgerRefusal(
            305, "another process holds the ledger; nothing was charged. Try again"
        ) from error
    except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.InsufficientPrivilege) as error:
        raise LedgerRefusal(
            304, f"the ledger cannot be written ({_words(error)}); nothing was charged"
        ) from error
    except psycopg.errors.IntegrityError as error:
        raise VerificationError(331, f"the stored rows disagree: {_words(error)}") from error
    except psycopg.Error as error:
        raise LedgerRefusal(
            303,
            f"the server did not confirm the ledger's row ({_words(error)}). Repeat with the same "
            "key: it is charged once, whatever happened",
        ) from error


def _words(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__
