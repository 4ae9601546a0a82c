"""`sequester ledger` where a data holder divides a budget, or adds what was forgotten."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sequester.accounting import to_json
from sequester.cli.ledger import command
from sequester.core.errors import LedgerRefusal, UsageError
from sequester.ledger import Ledger
from tests.ledger.plans import Steps


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = str(tmp_path / "budget.db")
    run("init", place)
    terms = ("--dataset", "t", "--epsilon", "3", "--delta", "1e-6")
    run("budget", place, "town", *terms)
    for name, share in (("north", "population"), ("south", "population"), ("2024", "window")):
        run("budget", place, name, *terms, "--parent", "town", "--share", share)
    return place


def run(*arguments: str) -> dict:
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def spent(url: str) -> dict[str, float]:
    return {b["name"]: b["spent"] for b in run("show", url)["budgets"]}


def charge(url: str, budget: str, steps: int) -> int:
    with Ledger.open(f"sqlite:///{url}") as ledger:
        return ledger.reserve(Steps(steps), budget=budget, key=f"{budget}-{steps}").row


def test_disjoint_people_pay_in_parallel_and_windows_add_up(url: str) -> None:
    charge(url, "north", 300)
    one = spent(url)
    charge(url, "south", 300)
    both = spent(url)
    assert both["town"] == one["town"] == both["north"] == both["south"] > 0.0
    charge(url, "2024", 300)
    all_three = spent(url)
    assert all_three["town"] > both["town"]
    assert all_three["north"] == both["north"]
    with pytest.raises(LedgerRefusal, match=r"^SQ-312 budget 'town' would pass"):
        charge(url, "2024", 3000)
    assert run("verify", url)["intact"] is True
    shown = {b["name"]: (b["parent"], b["share"]) for b in run("show", url)["budgets"]}
    assert shown["north"] == ("town", "population")
    assert shown["2024"] == ("town", "window")


def test_what_was_forgotten_is_added_once(url: str, tmp_path: Path) -> None:
    row = str(charge(url, "town", 100))
    before = spent(url)["town"]
    event = tmp_path / "event.json"
    event.write_text(to_json(Steps(20).event()))
    asked = ("correct", url, row, "--event", str(event), "--why", "a lost run", "--key", "fix-1")
    added = run(*asked)
    assert spent(url)["town"] > before
    assert run(*asked)["row"] == added["row"]
    claim = tmp_path / "claim.json"
    claim.write_text(json.dumps({"events": json.loads(to_json(Steps(20).event())), "delta": 1e-6}))
    again = ("correct", url, row, "--event", str(claim), "--why", "another", "--key", "fix-2")
    assert run(*again)["row"] == added["row"] + 1
    assert run("verify", url)["intact"] is True
    for text in ("", "[]", '{"epsilon": 1}', '{"events": 3}', '{"type": "os.system"}'):
        event.write_text(text)
        with pytest.raises(UsageError, match=r"^SQ-212 "):
            run(*asked)
