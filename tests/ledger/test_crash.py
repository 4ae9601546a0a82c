"""kill -9 at random instants: no charge lost, none doubled. The long run is in benchmarks."""

from pathlib import Path

import pytest

from tests.ledger.conftest import PROGRAMS
from tests.ledger.crash import fuzz
from tests.ledger.server import Server

needs_server = pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL's programs are missing")


def fresh_files(folder: Path):
    numbers = iter(range(10_000))
    return lambda: f"sqlite:///{folder}/{next(numbers)}.db"


def test_sqlite_survives_kills(tmp_path: Path) -> None:
    tally = fuzz(fresh_files(tmp_path), tmp_path / "key", kills=40, writers=4, seed=1)
    assert tally.confirmed > 40
    assert (tally.lost, tally.doubled, tally.problems) == (0, 0, [])


@pytest.mark.postgres
@needs_server
def test_postgres_survives_kills_and_a_crash_of_the_server(server: Server, tmp_path: Path) -> None:
    def crash_server() -> None:
        server.crash()
        server.start()

    tally = fuzz(
        server.database,
        tmp_path / "key",
        kills=24,
        writers=4,
        seed=3,
        crash_server=crash_server,
        crash_share=0.3,
    )
    assert tally.server_crashes > 0
    assert tally.confirmed > 15
    assert (tally.lost, tally.doubled, tally.problems) == (0, 0, [])


def test_the_reckoning_finds_a_charge_confirmed_too_early(tmp_path: Path) -> None:
    tally = fuzz(
        fresh_files(tmp_path),
        tmp_path / "key",
        kills=32,
        writers=4,
        seed=4,
        acknowledge_early=True,
    )
    assert tally.lost > 0
