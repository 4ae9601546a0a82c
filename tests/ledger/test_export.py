"""The ledger for other eyes."""

import csv
import hashlib
import io
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sequester.accounting import Gaussian
from sequester.cli.ledger import command
from sequester.ledger import Ledger, export
from sequester.ledger.signing import read_key
from tests.ledger.plans import Once, Steps
from tests.ledger.test_tamper import fill

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "|calc", "%x", "\uff1d1+1", "\uff20x")


@pytest.fixture
def filled(ledger: Ledger, tmp_path: Path) -> Ledger:
    fill(ledger, tmp_path / "ledger.key")
    return ledger


def test_json_lets_a_stranger_recompute_the_chain(filled: Ledger) -> None:
    # A verifier of ten lines that shares no code with ours.
    told = json.loads(export.to_json(filled))
    prev = "0" * 64
    for number, row in enumerate(told["rows"], 1):
        key = "-" if row["key"] is None else f"{len(row['key'])}:{row['key']}"
        ref = "-" if row["ref"] is None else str(row["ref"])
        framed = (
            f"sequester row 1|{prev}|{number}|{key}|{len(row['kind'])}:{row['kind']}|"
            f"{len(row['budget'])}:{row['budget']}|{ref}|{row['body']}"
        )
        assert hashlib.sha256(framed.encode()).hexdigest() == row["hash"]
        prev = row["hash"]
    assert told["rows"][0]["hash"] == told["ledger"] == filled.id
    assert len(told["rows"]) == filled.entries()


@pytest.mark.parametrize("formula", FORMULAS)
def test_no_cell_is_a_formula(ledger: Ledger, formula: str) -> None:
    assert export.safe_cell(formula) == f"'{formula}"
    assert export.safe_cell("plain") == "plain"
    text = formula.replace("\t", "")  # reasons are printable; a tab never gets that far
    ledger.create_budget("town", text, 3.0, 1e-6)
    held = ledger.reserve(Steps(1), budget="town", key=text.strip() if text.isascii() else "run")
    held.void(text)
    table = list(csv.reader(io.StringIO(export.to_csv(ledger))))
    assert len(table) == 1 + ledger.entries()
    for line in table:
        for cell in line:
            assert not cell.lstrip().startswith(("=", "+", "-", "@", "|", "%", "\t"))


def test_the_board_reads_what_happened(filled: Ledger) -> None:
    filled.reserve(Once(Gaussian(9.0)), budget="town", key="open")
    page = export.to_board(filled)
    for words in (
        "A. Holder raised town from ε = 3 to 3.5: a second study",
        "finished (row 5); corrected upwards (row 8): one step was missing",
        "never started (row 7): not started",
        "reserved, counted in full",
        "Ceiling ε = 3.5",
        filled.id,
    ):
        assert words in page, words


def test_the_board_page_runs_no_markup(ledger: Ledger) -> None:
    ledger.create_budget("town", "<script>alert(1)</script>|x", 3.0, 1e-6)
    page = export.to_board(ledger)
    assert "<script>" not in page.replace("\\<script", "")
    assert "\\|x" in page


def run(*arguments: str) -> dict:
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_verb_from_first_to_last(tmp_path: Path) -> None:
    url, key = str(tmp_path / "budget.db"), str(tmp_path / "budget.db.key")
    assert run("init", url)["entries"] == 1
    made = run("budget", url, "town", "--dataset", "t", "--epsilon", "3", "--delta", "1e-6")
    assert made["budgets"][0]["remaining"] == 3.0
    with Ledger.open(f"sqlite:///{url}") as ledger:
        ledger.reserve(Steps(500), budget="town", key="a")
    shown = run("show", url)
    assert shown["intact"] is True
    budget = shown["budgets"][0]
    assert {"name", "epsilon", "delta", "spent", "remaining"} <= set(budget)
    assert budget["spent"] + budget["remaining"] == pytest.approx(3.0)
    witness = str(tmp_path / "checkpoint.json")
    run("checkpoint", url, "--out", witness)
    assert run("verify", url, "--checkpoint", witness)["intact"] is True
    granter = run("key", str(tmp_path / "granter.key"))["public_key"]
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[granters]]\nname = "Board"\npublic_key = "{granter}"\n')
    who = ("--who", "Board", "--why", "approved")
    run("policy", url, "--replace", str(policy), *who, "--key", key)
    signed = str(tmp_path / "grant.json")
    asked = ("grant", url, "town", "--epsilon", "4", *who)
    run(*asked, "--key", str(tmp_path / "granter.key"), "--out", signed)
    assert run("grant", url, "--file", signed)["budgets"][0]["epsilon"] == 4.0
    for kind in ("json", "csv", "board"):
        out = tmp_path / f"out.{kind}"
        run("export", url, "--format", kind, "--out", str(out))
        assert len(out.read_text()) > 500
    assert run("verify", url)["entries"] == 5
    assert read_key(Path(key))


def test_refusals_end_with_their_exit_codes(tmp_path: Path) -> None:
    program = "from sequester.cli.main import main; main()"

    def sequester(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", program, "ledger", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert sequester("show", "none.db")[0] == 2
    assert sequester("init", "b.db")[0] == 0
    assert sequester("grant", "b.db", "town")[0] == 2
    assert sequester("verify", "b.db")[0] == 0
    with sqlite3.connect(tmp_path / "b.db") as other:
        other.execute("UPDATE sequester_balance SET body = 'x'")
    other.close()
    status, out, err = sequester("verify", "b.db", "--json")
    assert status == 4
    assert json.loads(out)["intact"] is False
    assert "SQ-332" in err
