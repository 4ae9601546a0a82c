"""How fast charges are, beside bare commits of the same bytes (`bare.py`) on the same disk.

    python -m benchmarks.ledger.speed

Ledger and bare commits take turns, because disks drift: 20 charges, then the same rows bare. The
ratio is the median over the turns; a rate is transactions in all over seconds in all.
"""

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.ledger.plans import Once
from tests.ledger.server import Server, programs

from benchmarks.ledger.bare import Bare, Written, postgres_database, sqlite_file
from sequester.accounting import Gaussian
from sequester.ledger import Ledger, rows
from sequester.ledger.charges import charge_of
from sequester.ledger.reservations import event_fields
from sequester.ledger.rows import Draft, Row

TURNS, CHARGES = 150, 20
PLAN = Once(Gaussian(2000.0))
LIMIT = 0.70


def reserve(ledger: Ledger, number: int) -> None:
    """One transaction: a reservation."""
    ledger.reserve(PLAN, budget="town", key=f"r{number}")


def run(ledger: Ledger, number: int) -> None:
    """Three transactions, the life of a run: reserve, begin, commit."""
    held = ledger.reserve(PLAN, budget="town", key=f"run{number}")
    held.begin()
    held.commit(PLAN.event())


def compare(name: str, ledger: Ledger, bare: Bare, charge: Callable[[Ledger, int], None]) -> bool:
    """Print both rates and their ratio; whether the ratio keeps the limit."""
    seconds, ratios, written = [0.0, 0.0], [], 0
    number = itertools.count()
    for turn in range(TURNS):
        first = ledger.entries() + 1
        begun = time.perf_counter()
        for _ in range(CHARGES):
            charge(ledger, next(number))
        ours = time.perf_counter() - begun
        again = list(newest(ledger, first))
        begun = time.perf_counter()
        for one in again:
            bare(one)
        theirs = time.perf_counter() - begun
        if turn:  # the first one warms up
            seconds = [seconds[0] + ours, seconds[1] + theirs]
            ratios.append(theirs / ours)
            written += len(again)
    ratio = statistics.median(ratios)
    said = f">= {LIMIT:.2f} {'met' if ratio >= LIMIT else 'MISSED'}" if "SQLite" in name else ""
    rates = f"{written / seconds[0]:10.0f} {written / seconds[1]:10.0f}"
    print(f"{name:44} {rates} {ratio:7.2f}  {said}", flush=True)
    return ratio >= LIMIT


def newest(ledger: Ledger, first: int) -> list[Written]:
    """The rows from number `first` on, each with the balance that went with it."""
    with ledger._store.reading() as transaction:
        listed = [transaction.row(seq) for seq in range(first, ledger_size(transaction) + 1)]
        balance = "town", transaction.balances()["town"]
    return [(row, None if row.kind == rows.BEGIN else balance) for row in listed if row]


def ledger_size(transaction: object) -> int:
    last = transaction.last()  # type: ignore[attr-defined]
    return last.seq if last else 0


def fill(ledger: Ledger, count: int) -> None:
    """`count` reservations written in one transaction, as a long life would have left them."""
    charge = charge_of(PLAN.event(), PLAN.adjacency)
    with ledger._desk.writing() as book:
        fields = {
            "alone": None,
            "charge": charge.to_json(),
            "event": event_fields(PLAN.event()),
            "expires_ms": book.now_ms + 2_592_000_000,
            "people": None,
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
    print(f"{'what':44} {'ours/s':>10} {'bare/s':>10} {'ratio':>7}  limit")
    kept = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, charge in (
            ("SQLite, reserve", reserve),
            ("SQLite, reserve + begin + commit", run),
        ):
            place = folder / charge.__name__
            with Ledger.create(f"sqlite:///{place}.db") as ledger:
                ledger.create_budget("town", "t", 50.0, 1e-6)
                bare = sqlite_file(folder / f"{charge.__name__}-bare.db")
                kept.append(compare(what, ledger, bare, charge))
        kept.append(long_life(folder))
        if (found := programs()) is not None:
            server = Server(found)
            try:
                with Ledger.create(server.database(), key=folder / "pg.key") as ledger:
                    ledger.create_budget("town", "t", 50.0, 1e-6)
                    compare(
                        "PostgreSQL, reserve", ledger, postgres_database(server.database()), reserve
                    )
            finally:
                server.stop()
    raise SystemExit(0 if all(kept) else 1)


def long_life(folder: Path) -> bool:
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
    kept = max(times) < 50.0
    print(
        f"{'reserve among 100,000 rows, ms: slowest':44} {max(times):10.2f} {'':18}  < 50 "
        f"{'met' if kept else 'MISSED'}"
    )
    print(f"{'open with 100,000 rows, ms':44} {opened * 1000:10.1f} {'':18}  < 1000")
    print(f"{'verify, rows/s':44} {count / verified:10.0f}   ({size_mb:.0f} MB)")
    print(f"{'verify, rows/s of processor time':44} {count / verified_cpu:10.0f}")
    return kept


if __name__ == "__main__":
    main()
