"""Every ledger test that can runs on both stores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sequester.ledger import Ledger, Policy
from tests.ledger.plans import Clock
from tests.ledger.server import Server, programs

PROGRAMS = programs()
both_stores = pytest.mark.parametrize(
    "url",
    [
        "sqlite",
        pytest.param(
            "postgres",
            marks=[
                pytest.mark.postgres,
                pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL's programs are missing"),
            ],
        ),
    ],
    indirect=True,
)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if PROGRAMS is None:
        pytest.skip("PostgreSQL's programs are missing: apt-get install postgresql")
    running = Server(PROGRAMS)
    yield running
    running.stop()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for a ledger: SQLite unless parametrised by `both_stores`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/budget.db"
    server: Server = request.getfixturevalue("server")
    return server.database()


Make = Callable[..., Ledger]


@pytest.fixture
def make(url: str, tmp_path: Path) -> Iterator[Make]:
    """Create the ledger at `url`, with options; closed at the end."""
    made: list[Ledger] = []

    def create(policy: Policy | None = None, clock: Clock | None = None) -> Ledger:
        ledger = Ledger.create(
            url, policy=policy, key=tmp_path / "ledger.key", clock=clock or Clock()
        )
        made.append(ledger)
        return ledger

    yield create
    for ledger in made:
        ledger.close()


@pytest.fixture
def ledger(make: Make) -> Ledger:
    return make()
