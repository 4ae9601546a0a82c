"""Many writers and one ceiling."""

import pytest

from sequester.core.errors import VerificationError
from sequester.ledger import Ledger
from tests.ledger.conftest import Make, both_stores
from tests.ledger.race import CEILING, fits, race


@both_stores
def test_sixteen_writers_never_pass_the_ceiling(url: str, make: Make) -> None:
    make().create_budget("town", "town-2024", CEILING, 1e-6)
    assert race(url, writers=16) == fits() > 20
    with Ledger.open(url) as ledger:
        ledger.verify()
        assert ledger.budgets()[0].spent <= CEILING


def test_the_race_finds_a_check_before_the_lock(url: str, make: Make) -> None:
    make().create_budget("town", "town-2024", CEILING, 1e-6)
    assert race(url, writers=16, decide_early=True) > fits()
    with Ledger.open(url) as ledger, pytest.raises(VerificationError, match="passes the ceiling"):
        ledger.verify()
