"""A budget belongs to the data that its first run used."""

from pathlib import Path

import pytest

from sequester.core.errors import LedgerRefusal
from sequester.ledger import Ledger
from sequester.training import LedgerSection, Study, train
from tests.training.population import people, study


def test_a_budget_belongs_to_the_data_of_its_first_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 60.0, 1e-3)

    def asked(budget: str, run: int) -> Study:
        section = LedgerSection(url=url, budget=budget)
        return study(ledger=section, training__steps=2, privacy__insecure_test_seed=run)

    whole = people()
    train(asked("town", 1), out=tmp_path, people=whole)
    run = train(asked("town", 2), out=tmp_path, people=people())  # the same, read again
    assert run.claim is not None
    assert run.claim.fields["ledger"]["rule"] in ("filter", "fixed")
    with Ledger.open(url) as ledger:
        (standing,) = ledger.budgets()
        assert standing.budget.people == whole.fingerprint(ledger.fingerprint_key())
        before = standing.spent
        # Keyed: nobody who lacks the ledger's secret can try a guess about the last person.
        assert standing.budget.people != whole.fingerprint()
    with pytest.raises(LedgerRefusal, match=r"^SQ-322 "):
        train(asked("town", 3), out=tmp_path, people=people(91))
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent == before
        ledger.create_budget("later", "tiny", 60.0, 1e-3, parent="town", share="window")
    train(asked("later", 4), out=tmp_path, people=people(91))
    with Ledger.open(url) as ledger:
        spent = {s.budget.name: s.spent for s in ledger.budgets()}
        assert spent["town"] > before
        ledger.verify()
