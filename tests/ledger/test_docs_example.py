"""The Python of docs/ledger.md, as it stands there."""

import re
from pathlib import Path

import pytest

from sequester.ledger import Ledger
from tests.shared import ROOT


def test_the_pages_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "ledger.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    with Ledger.create("sqlite:///budget.db") as ledger:
        ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    exec(compile(program, "charge.py", "exec"), {"__name__": "charge"})
    assert "'remaining'" in capsys.readouterr().out
    with Ledger.open("sqlite:///budget.db") as ledger:
        assert ledger.verify().entries == 5
