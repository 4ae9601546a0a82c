"""kill -9 at random instants, thousands of times, on both stores; prints what was counted.

    python -m benchmarks.ledger.kills --kills 2000

Every PostgreSQL run also crashes the server now and then. A planted fault (confirming before the
row is durable) must be found, or the counts mean nothing. Limit: 0 lost, 0 doubled, 0 problems.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.ledger.crash import Tally, fuzz
from tests.ledger.server import Server, programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = itertools.count()

        def fresh_file() -> str:
            return f"sqlite:///{folder}/{next(count)}.db"

        if options.store != "postgres":
            tally = measured("SQLite", fresh_file, folder, options)
            bad += tally.lost + tally.doubled + len(tally.problems)
        if options.store != "sqlite" and (found := programs()) is not None:
            server = Server(found)

            def crash_server() -> None:
                server.crash()
                server.start()

            try:
                tally = measured("PostgreSQL", server.database, folder, options, crash_server)
            finally:
                server.stop()
            bad += tally.lost + tally.doubled + len(tally.problems)
        planted = fuzz(
            fresh_file, folder / "key", kills=100, writers=4, seed=1, acknowledge_early=True
        )
        print(f"planted fault: lost {planted.lost} of {planted.confirmed} (must be > 0)")
        bad += planted.lost == 0
    raise SystemExit(1 if bad else 0)


def measured(
    name: str,
    fresh: Callable[[], str],
    folder: Path,
    options: argparse.Namespace,
    crash_server: Callable[[], None] | None = None,
) -> Tally:
    begun = time.monotonic()
    tally = fuzz(
        fresh,
        folder / "key",
        kills=options.kills,
        writers=options.writers,
        seed=options.seed,
        crash_server=crash_server,
        crash_share=0.03 if crash_server else 0.0,
    )
    print(f"{name}: {tally.line()}; {time.monotonic() - begun:.0f} s", flush=True)
    for problem in tally.problems[:5]:
        print("  ", problem)
    return tally


if __name__ == "__main__":
    main()
