"""The card: complete, escaped, self-contained, and silent about what it does not know."""

import copy
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sequester.cli.report import command
from sequester.core.errors import UsageError
from sequester.report import write_card
from sequester.report.plot import Line, chart, nice_ceiling, ticks

DOCS = Path(__file__).resolve().parents[2] / "docs"

CLAIM: dict[str, Any] = {
    "schema": "sequester/claim/1",
    "status": "private",
    "unit": "person",
    "unit_sentence": "Adding or removing all the records of any one person changes little.",
    "adjacency": "add-or-remove",
    "delta": 1e-5,
    "epsilon": 0.99996,
    "epsilon_estimate": 0.9995,
    "epsilon_rdp": 1.08,
    "accountant": "pld 1",
    "mu": 0.27,
    "tradeoff": {"fpr": [0.0, 0.01, 0.5, 1.0], "tpr": [1e-5, 0.02, 0.62, 1.0]},
    "attacker": {"advantage": 0.12, "tpr_at_fpr_1pct": 0.02, "posterior_from_half": 0.731},
    "person": {"epsilon": 0.99996, "max_contribution": None, "method": "the unit is the person"},
    "events": {"kind": "gaussian"},
    "population": 4000,
    "assumptions": ["the noise key is secret"],
    "not_evidenced": ["side channels"],
    "noise_source": "AES-256-CTR",
    "version": "0.1.0",
    "ledger": {
        "id": "abc",
        "row": 3,
        "hash": "f" * 64,
        "budget": "main",
        "spent": 1.0,
        "ceiling": 4.0,
        "remaining": 3.0,
    },
    "data": {"name": "randhie", "fingerprint": "a" * 64},
    "created": "2026-01-02T03:04:05Z",
}
FACTS: dict[str, Any] = {
    "schema": "sequester/facts/1",
    "status": "private",
    "study": "demo",
    "title": "Doctor visits",
    "task": "three or more visits next year",
    "data": {"description": "Yearly care.", "simulated": False, "declared": {"population": 4000}},
    "model": {"name": "GRU", "parameters": 1234},
    "plan": {"steps": 40, "sampling rate": 0.2},
    "curves": [
        {
            "title": "ε by step",
            "x_label": "step",
            "y_label": "ε",
            "x": [0, 1, 2],
            "y": [0.0, 0.5, 0.9],
            "limit": 1.0,
            "protection": "public",
        }
    ],
    "utility": [
        {
            "metric": "auc",
            "value": 0.791,
            "protection": "public hold-out",
            "people": 1000,
            "interval": [0.78, 0.80],
            "baseline": 0.727,
            "baseline_name": "persistence",
        }
    ],
}


def run_folder(tmp_path: Path, claim: object = CLAIM, facts: object = FACTS) -> Path:
    (tmp_path / "claim.json").write_text(json.dumps(claim))
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    return tmp_path


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_fixtures_follow_the_published_schemas() -> None:
    for value, name in ((CLAIM, "claim"), (FACTS, "facts")):
        jsonschema.validate(value, json.loads((DOCS / f"{name}.schema.json").read_text()))


def test_the_card_says_what_a_board_asks(tmp_path: Path) -> None:
    page = write_card(run_folder(tmp_path)).read_text()
    assert "all the records of any one person" in page
    assert ">1<" in page  # ε = 0.99996 is shown rounded up, never as 0.999.
    for phrase in (
        "Not evidenced",
        "side channels",
        "public hold-out",
        "0.791",
        "73.1 %",
        "remains",
    ):
        assert phrase in page
    assert len(page.encode()) < 400_000


def test_every_figure_is_explained_to_who_has_not_met_it(tmp_path: Path) -> None:
    page = write_card(run_folder(tmp_path)).read_text()
    for word in ("RDP", "estimate", "μ"):
        assert re.search(rf"<b>{word}</b>", page), word
    for sentence in (
        "without any of it",
        "“yes” is ranked above",
        "two bell curves",
        "promises nothing",
    ):
        assert sentence in page


@pytest.mark.parametrize(
    ("left", "shown"), [(2.99999, "2.99"), (0.0, "0"), (3, "3"), (6.73317, "6.73")]
)
def test_what_remains_is_rounded_down(tmp_path: Path, left: float, shown: str) -> None:
    claim = CLAIM | {"ledger": CLAIM["ledger"] | {"remaining": left, "id": "f" * 64}}
    page = write_card(run_folder(tmp_path, claim)).read_text()
    assert f"earlier runs; {shown} remains" in page
    assert "f" * 17 not in page  # longer than a narrow screen


def test_the_card_needs_no_network_and_runs_nothing(tmp_path: Path) -> None:
    elements = Elements()
    elements.feed(write_card(run_folder(tmp_path)).read_text())
    tags = {tag for tag, _ in elements.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "form"}
    for _, attributes in elements.seen:
        assert not any(name.startswith("on") for name in attributes)
        assert not any(
            "http" in (value or "") for name, value in attributes.items() if name != "http-equiv"
        )


HOSTILE = "<script>alert(1)</script>{{7*7}}\"'><svg onload=alert(2)>"


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [p for key, item in value.items() for p in paths(item, (*at, key))]
    if isinstance(value, list):
        return [p for index, item in enumerate(value) for p in paths(item, (*at, index))]
    return [at] if isinstance(value, str) else []


@pytest.mark.parametrize("which", ["claim", "facts"])
def test_hostile_text_in_any_field_stays_text(tmp_path: Path, which: str) -> None:
    closed = {"status", "unit", "protection", "schema"}
    for path in paths(CLAIM if which == "claim" else FACTS):
        if path[-1] in closed:
            continue
        changed = copy.deepcopy({"claim": CLAIM, "facts": FACTS})
        inner: Any = changed[which]
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = HOSTILE
        page = write_card(run_folder(tmp_path, changed["claim"], changed["facts"])).read_text()
        assert "<script" not in page
        assert "<svg onload" not in page
        assert ">49" not in page


def test_a_run_without_privacy_is_stamped(tmp_path: Path) -> None:
    claim = CLAIM | {"status": "NOT PRIVATE", "epsilon": "inf", "epsilon_rdp": "inf", "mu": None}
    claim["person"] = CLAIM["person"] | {"epsilon": "inf"}
    page = write_card(run_folder(tmp_path, claim)).read_text()
    assert "NOT PRIVATE" in page
    assert "∞" in page
    assert "strong guarantee" not in page


def test_a_test_seed_promises_nothing_whatever_its_epsilon(tmp_path: Path) -> None:
    page = write_card(run_folder(tmp_path, CLAIM | {"status": "NOT PRIVATE"})).read_text()
    for promise in ("≤", "at most", "can lie above", "upper bound", "guarantee:"):
        assert promise not in page, promise
    assert "were the noise secret" in page


@pytest.mark.parametrize("unit", ["person", "window", "step"])
@pytest.mark.parametrize("twin", [False, True], ids=["test seed", "no noise"])
def test_no_figure_of_a_run_without_privacy_stands_alone(
    tmp_path: Path, unit: str, *, twin: bool
) -> None:
    claim = CLAIM | {"status": "NOT PRIVATE", "unit": unit} | ({"events": {}} if twin else {})
    page = write_card(run_folder(tmp_path, claim)).read_text()
    tiles = re.findall(r"<div>([^<]*)<b>", page)
    assert len(tiles) == 4
    for tile in tiles:
        assert tile == "δ" or tile.endswith("without noise" if twin else "were the noise secret")
    assert page.index("NOT PRIVATE") < page.index("<b>1</b>")
    assert "PRIVATE FOR A" not in page


@pytest.mark.parametrize(("unit", "units"), [("window", "windows"), ("step", "records")])
def test_a_smaller_unit_is_never_called_a_person(tmp_path: Path, unit: str, units: str) -> None:
    person = {"epsilon": 6.73, "max_contribution": 2, "method": "mixture"}
    claim = CLAIM | {"unit": unit, "population": 640, "person": person}
    facts = copy.deepcopy(FACTS)
    facts["data"]["declared"]["population"] = 320
    page = write_card(run_folder(tmp_path, claim, facts)).read_text()
    assert f"640 {units} of 320 people declared" in page
    assert f">PRIVATE FOR A {unit.upper()}, NOT FOR A PERSON<" in page
    assert ">PRIVATE<" not in page
    attacked = page.split("What an attacker could gain")[1].split("Spent and remaining")[0]
    for word in ("members", "innocent"):
        assert word not in attacked, word
    # 1 / (1 + e^-6.73) = 0.99881: the person's odds stand beside the unit's.
    assert "99.9 % sure" in attacked
    assert "not about a person" in attacked


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [
        (0.1, "very strong"),
        (1.0, "a strong"),
        (1.01, "moderate"),
        (4.0, "moderate"),
        (10, "weak"),
        (10.1, "hardly a guarantee"),
        (900.0, "hardly a guarantee"),
    ],
)
def test_the_word_for_an_epsilon_stands_behind_its_odds(
    tmp_path: Path, epsilon: float, word: str
) -> None:
    claim = CLAIM | {"epsilon": epsilon, "person": CLAIM["person"] | {"epsilon": epsilon}}
    page = write_card(run_folder(tmp_path, claim)).read_text()
    said = next(line for line in page.splitlines() if line.startswith("<p>An ε of"))
    sure = float(re.findall(r"at most ([0-9.]+)\+? % sure", said)[0])
    truth = 100.0 / (1.0 + math.exp(-epsilon))
    assert truth - (0.1 if "+ %" in said else 0.0) <= sure <= truth + 0.11
    assert said.index("% sure") < said.index(word)
    assert "little" not in said


def test_a_window_claim_stands_next_to_the_person(tmp_path: Path) -> None:
    claim = CLAIM | {
        "unit": "window",
        "person": {"epsilon": 44.7, "max_contribution": 8, "method": "mixture"},
    }
    page = write_card(run_folder(tmp_path, claim)).read_text()
    assert re.search(r"not a person.*44\.7", page, flags=re.S)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    claim = CLAIM | {"ledger": None}
    page = write_card(run_folder(tmp_path, claim, FACTS | {"utility": []})).read_text()
    assert "was not charged to a ledger" in page
    assert "no audit has been run" in page


def test_private_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "metrics.jsonl").write_text('{"canary": "CANARY-61"}')
    assert "CANARY" not in write_card(run_folder(tmp_path)).read_text()


@pytest.mark.parametrize("broken", ["{", "[]", '{"schema": 1}', "\x00", "null"])
def test_a_broken_file_is_refused_and_the_old_card_stays(tmp_path: Path, broken: str) -> None:
    card = write_card(run_folder(tmp_path))
    before = card.read_text()
    (tmp_path / "claim.json").write_text(broken)
    with pytest.raises(UsageError, match="SQ-911"):
        write_card(tmp_path)
    assert card.read_text() == before


def test_an_unfinished_run_is_refused_by_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert result.exception.code == 910


def test_the_command_prints_the_path(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(run_folder(tmp_path)), "--json"])
    assert json.loads(result.stdout) == {
        "card": str(tmp_path / "card.html"),
        "claim": str(tmp_path / "claim.json"),
    }


def test_a_chart_passes_through_its_points() -> None:
    picture = chart([Line([0, 1], [0, 1], "a")], x_label="x", y_label="y", unit_square=True)
    assert 'd="M64.0 190.0 L328.0 12.0"' in picture
    assert chart([Line([0], [float("nan")], "a")], x_label="x", y_label="y") == ""


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    high = low + span
    assume(span > 1e-3 * high)
    found = ticks(low, high)
    assert len(found) <= 5
    slack = 1e-6 * span
    assert all(low - slack <= tick <= high + slack for tick in found)
    for tick in found:
        assert float(f"{tick:.12g}") == pytest.approx(tick, abs=1e-6 * span)
    steps = {round((b - a) / span, 6) for a, b in pairwise(found)}
    assert len(steps) <= 1


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1, 40, [10, 20, 30, 40]),
        (0, 1.25, [0, 0.5, 1.0]),
        (1, 15, [5, 10, 15]),
        (0, 9, [0, 5]),
        (1, 5, [1, 2, 3, 4, 5]),
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (3, 3, [3]),
    ],
)
def test_steps_are_counted_in_whole_round_numbers(
    low: float, high: float, shown: list[float]
) -> None:
    assert ticks(low, high) == pytest.approx(shown)


@pytest.mark.parametrize(
    ("value", "top"), [(0.9, 1.0), (1.0, 1.0), (3.1, 4.0), (0.0, 1.0), (47, 50)]
)
def test_an_axis_ends_on_a_round_number(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)


def test_the_name_of_a_limit_stays_inside_the_picture() -> None:
    for limit in (4.0, 2.0):
        picture = chart([Line([0, 1], [0, 1], "")], x_label="x", y_label="y", limit=limit)
        named = next(part for part in picture.split("<text ") if ">ceiling<" in part)
        assert float(named.split('y="')[1].split('"')[0]) >= 10, limit


def declaring(**declared: str) -> dict[str, Any]:
    """Facts with these declarations and a plan as long as a real one."""
    facts = copy.deepcopy(FACTS)
    facts["data"]["declared"] |= declared
    facts["plan"] = {f"setting {k}": k for k in range(12)}
    facts["curves"] = facts["curves"] * 3
    return facts


SIXTY = ", ".join(f"measurement_of_thing_{k} [{-k}, {1000 * k}]" for k in range(60))
WORD = "a_name_without_any_blank_that_goes_on_and_on_" * 4
WIDE = {"features": f"{WORD} [0, 1]", "hold-out": f"{WORD} = {WORD}"}


@pytest.mark.parametrize("features", ["pain [0, 10]", SIXTY, SIXTY * 4])
def test_a_long_declaration_has_lines_of_its_own(tmp_path: Path, features: str) -> None:
    page = write_card(run_folder(tmp_path, facts=declaring(features=features))).read_text()
    in_table = "<td>features</td>" in page
    assert in_table == (len(features) < 300)
    assert ("all of them in facts.json" in page) == (len(features) > 4000)
    assert len(page.encode()) < 400_000


@pytest.mark.skipif(not shutil.which("chromium"), reason="no browser to print with")
@pytest.mark.parametrize(
    "declared", [{"features": "pain [0, 10]"}, {"features": SIXTY}, WIDE], ids=len
)
def test_a_card_prints_on_two_pages(tmp_path: Path, declared: dict[str, str]) -> None:
    claim = CLAIM | {"assumptions": [f"Assumption {k} of a whole line or two." for k in range(7)]}
    card = write_card(run_folder(tmp_path, claim, declaring(**declared)))
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-component-update"
    flags += " disable-background-networking disable-sync no-pdf-header-footer"
    command_line = ["chromium", *(f"--{flag}" for flag in flags.split())]
    command_line += [f"--user-data-dir={tmp_path / 'browser'}"]
    command_line += [f"--print-to-pdf={tmp_path / 'card.pdf'}", card.as_uri()]
    subprocess.run(command_line, check=True, capture_output=True, timeout=120)
    printed = (tmp_path / "card.pdf").read_bytes()
    assert re.findall(rb"/Count (\d+)", printed) == [b"2"]
