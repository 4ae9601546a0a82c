"""Flip one bit of every byte of the stored rows of an SQLite file; `verify` must find each.

python -m benchmarks.ledger.flips
"""

import sqlite3
import tempfile
from pathlib import Path

from tests.ledger.test_tamper import fill, flips_missed

from sequester.ledger import Ledger


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "budget.db"
        with Ledger.create(f"sqlite:///{path}") as ledger:
            fill(ledger, path.with_name("budget.db.key"))
            listed = ledger.rows()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        tried, missed = flips_missed(path, listed, step=1)
    print(f"{len(listed)} rows, {tried} bytes flipped, {len(missed)} not found (limit 0)")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
