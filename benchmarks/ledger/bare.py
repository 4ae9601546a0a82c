"""The yardstick: what the ledger wrote, written again by hand-written SQL and nothing else.

The same rows and balances, byte for byte, into the same tables and indexes, in as many
transactions, with the same durability (SQLite: WAL, synchronous=FULL; PostgreSQL: its defaults), on
the same file system. Nothing is read, checked, hashed or locked beforehand.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from sequester.ledger.rows import Row
from sequester.ledger.sql import APPEND, PUT_BALANCE

Written = tuple[Row, tuple[str, str] | None]
Bare = Callable[[Written], None]


def sqlite_file(path: Path) -> Bare:
    """A new file with the ledger's own schema."""
    from sequester.ledger.sqlite import _SCHEMA

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for statement in _SCHEMA:
        connection.execute(statement)

    def commit(written: Written) -> None:
        row, balance = written
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(APPEND, row)
        if balance is not None:
            connection.execute(PUT_BALANCE, balance)
        connection.execute("COMMIT")

    return commit


def postgres_database(url: str) -> Bare:
    """A new database with the ledger's own schema."""
    import psycopg

    from sequester.ledger.postgres import _SCHEMA

    connection = psycopg.connect(url, autocommit=True)
    for statement in _SCHEMA:
        connection.execute(statement)
    append, put = (text.replace("?", "%s") for text in (APPEND, PUT_BALANCE))

    def commit(written: Written) -> None:
        row, balance = written
        with connection.transaction():
            connection.execute(append, row)
            if balance is not None:
                connection.execute(put, balance)

    return commit
