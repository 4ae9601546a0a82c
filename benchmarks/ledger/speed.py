"""How fast charges are, beside bare commits of the same store on the same disk.

    python -m benchmarks.ledger.speed

A bare commit writes the same row and balance into the same tables, without reading, checking or
hashing anything (on PostgreSQL: one row of that size). The two take turns, because disks drift.
"""

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.ledger.plans import Once
from tests.ledger.server import Server, programs

from sequester.accounting import Gaussian
from sequester.ledger import Ledger, rows
from sequester.ledger.charges import charge_of
from sequester.ledger.reservations import event_fields
from sequester.ledger.rows import Draft, Row
from sequester.ledger.sqlite import _SCHEMA

COMMITS = 600
PLAN = Once(Gaussian(2000.0))


def compare(ledger: Ledger, bare: Callable[[int], object]) -> tuple[float, float, float]:
    """(ours, bare, ratio) in commits a second, from medians; the two take turns at every commit."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(COMMITS):
        for action, spent in zip(
            (lambda n: ledger.reserve(PLAN, budget="town", key=f"r{n}"), bare), times, strict=True
        ):
            begun = time.perf_counter()
            action(number)
            spent.append(time.perf_counter() - begun)
    ours, other = (1 / statistics.median(spent) for spent in times)
    return ours, other, ours / other


def bare_sqlite(path: Path, size: int) -> Callable[[int], object]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for statement in _SCHEMA:
        connection.execute(statement)
    text, balance = "x" * (size - 300), "x" * 500

    def commit(number: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO sequester_entry VALUES (?, ?, 'reserve', 'town', NULL, ?, ?, ?)",
            (number + 1, f"r{number}", text, "0" * 64, "0" * 64),
        )
        connection.execute(
            "INSERT OR REPLACE INTO sequester_balance VALUES ('town', ?)", (balance,)
        )
        connection.execute("COMMIT")

    return commit


def bare_postgres(url: str, size: int) -> Callable[[int], object]:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    connection.execute("CREATE TABLE bare(seq bigserial PRIMARY KEY, body text)")
    text = "x" * size

    def commit(number: int) -> None:
        connection.execute("INSERT INTO bare(body) VALUES (%s)", (text,))

    return commit


def fill(ledger: Ledger, count: int) -> None:
    """`count` reservations written in one transaction, as a long life would have left them."""
    charge = charge_of(PLAN.event(), PLAN.adjacency)
    with ledger._desk.writing() as book:
        fields = {
            "alone": None,
            "charge": charge.to_json(),
            "event": event_fields(PLAN.event()),
            "expires_ms": book.now_ms + 2_592_000_000,
            "population": None,
            "rule": "filter",
            "time_ms": book.now_ms,
            "unit": "person",
        }
        last = book.transaction.last()
        for number in range(count):
            draft = Draft.of(rows.RESERVE, fields, budget="town", key=f"run:old-{number}")
            last = Row.after(last, draft)
            book.transaction.append(last)
            balance = book.tree.charge("town", charge)
        book.save(balance)


def main() -> None:
    print(f"{'what':44} {'ours':>10} {'bare':>10} {'ratio':>7}  limit")
    size = 1100  # a reserve row and its balance, as stored
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Ledger.create(f"sqlite:///{folder}/budget.db") as ledger:
            ledger.create_budget("town", "t", 50.0, 1e-6)
            ours, bare, ratio = compare(ledger, bare_sqlite(folder / "bare.db", size))
        print(f"{'SQLite reserve, charges/s':44} {ours:10.0f} {bare:10.0f} {ratio:7.2f}  >= 0.70")
        long_life(folder)
        if (found := programs()) is not None:
            server = Server(found)
            try:
                url = server.database()
                with Ledger.create(url, key=folder / "pg.key") as ledger:
                    ledger.create_budget("town", "t", 50.0, 1e-6)
                    ours, bare, ratio = compare(ledger, bare_postgres(server.database(), size))
            finally:
                server.stop()
            print(f"{'PostgreSQL reserve, charges/s':44} {ours:10.0f} {bare:10.0f} {ratio:7.2f}")


def long_life(folder: Path) -> None:
    url, count = f"sqlite:///{folder}/long.db", 100_000
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "t", 500.0, 1e-6)
        fill(ledger, count)
    begun = time.perf_counter()
    with Ledger.open(url) as ledger:
        opened = time.perf_counter() - begun
        times = []
        for number in range(200):
            begun = time.perf_counter()
            ledger.reserve(PLAN, budget="town", key=f"new-{number}")
            times.append((time.perf_counter() - begun) * 1000)
        begun, begun_cpu = time.perf_counter(), time.process_time()
        ledger.verify()
        verified = time.perf_counter() - begun
        verified_cpu = time.process_time() - begun_cpu
    size_mb = os.path.getsize(folder / "long.db") / 1e6
    print(f"{'reserve among 100,000 rows, ms: median':44} {statistics.median(times):10.2f}")
    print(f"{'reserve among 100,000 rows, ms: slowest':44} {max(times):10.2f} {'':18}  < 50")
    print(f"{'open with 100,000 rows, ms':44} {opened * 1000:10.1f} {'':18}  < 1000")
    print(f"{'verify, rows/s':44} {count / verified:10.0f}   ({size_mb:.0f} MB)")
    print(f"{'verify, rows/s of processor time':44} {count / verified_cpu:10.0f}")


if __name__ == "__main__":
    main()
