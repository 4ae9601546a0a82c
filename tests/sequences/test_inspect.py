"""What `inspect` shows: right, complete, drawn, and without a name or a value in it."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from click.testing import CliRunner, Result

from sequester.cli.main import cli
from sequester.sequences import People, Schema, Time
from sequester.sequences.inspection import inspect
from sequester.sequences.pictures import bar, inspection_html
from tests.shared import needs_shared, shared

CANARY = "kanarienvogel"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, arguments)])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 canary identifiers with canary words and a canary number."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("canary") / "log.csv"
    person = np.repeat(np.arange(1000), 4)
    pacsv.write_csv(
        pa.table(
            {
                "person": [f"{CANARY}-{i}" for i in person],
                "time": ["2024-05-01 10:00", "2024-05-02 11:30", "2024-05-04 09:15", ""] * 1000,
                "place": [f"{CANARY}-place-{i}" for i in rng.integers(0, 50, 4000)],
                "value": [31337.25 if i % 7 else None for i in range(4000)],
            }
        ),
        path,
    )
    return path


def test_json_has_every_field_of_the_contract(log: Path) -> None:
    done = run(log, "--person", "person", "--time", "time", "--point", "place",
               "--bad-values", "drop-row", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {"persons", "records", "per_person", "span", "missing", "uniqueness", "warnings"} <= set(
        found
    )
    assert set(found["per_person"]) == {"min", "median", "p95", "max"}
    assert set(found["uniqueness"]) == {"1", "2", "3", "4"}
    assert (found["persons"], found["records"], found["rows"]) == (1000, 3000, 4000)
    assert found["per_person"] == {"min": 3, "median": 3.0, "p95": 3.0, "max": 3}
    assert found["uniqueness"]["4"] is None  # nobody has four
    assert sum(found["dropped"].values()) == 1000
    assert found["span"]["first"] == "2024-05-01T10:00:00"
    assert found["missing"]["value"] == pytest.approx(1 / 7, abs=0.01)
    assert found["gap"]["median"] == pytest.approx((25.5 + 45.75) / 2 * 3600, rel=0.5)


def test_nothing_shows_who_or_what(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = []
    for extra in ([], ["--json"], ["--out", str(page)]):
        done = run(log, "--bad-values", "drop-row", "--point", "place", *extra)
        assert done.exit_code == 0
        shown.append(done.output)
    broken = [
        run(log),  # a blank time, refused
        run(log, "--time", "place", "--bad-values", "drop-row"),
        run(log, "--person", "value", "--time", "nowhere"),
        run(log, "--time-format", "%d", "--bad-values", "mask"),
    ]
    assert all(done.exception is not None or done.exit_code for done in broken[:3])
    shown += [done.output + repr(done.exception) for done in broken]
    shown.append(page.read_text())
    for text in shown:
        assert CANARY not in text
        assert "31337" not in text
    assert page.stat().st_mode & 0o077 == 0


def test_the_page_is_whole_and_loads_nothing(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(log, "--bad-values", "drop-row", "--point", "place", "--out", page)
    text = page.read_text()
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.S):
        ET.fromstring(svg)
    assert text.count("<svg") >= 2
    assert not re.search(r"<script|https?://|src=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert len(text) < 100_000


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_pictures_alone(suffix: str, log: Path, tmp_path: Path) -> None:
    file = tmp_path / f"picture.{suffix}"
    done = run(log, "--bad-values", "drop-row", "--point", "place", "--out", file)
    assert done.exit_code == 0, done.output
    raw = file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    assert CANARY.encode() not in raw
    if suffix == "png":
        assert raw.startswith(b"\x89PNG")
        wide, high = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20))
        assert wide > 900
        assert high > 900  # three pictures
        return
    tree = ET.fromstring(raw.decode())
    bars = [node for node in tree.iter() if node.tag.endswith("rect")]
    assert len(bars) > 3 + 16  # of uniqueness, and of a histogram
    assert not [node for node in tree.iter() if node.tag.endswith(("script", "image", "a"))]


def test_other_pictures_are_refused(log: Path, tmp_path: Path) -> None:
    done = run(log, "--bad-values", "drop-row", "--out", tmp_path / "picture.jpg")
    assert "SQ-129" in repr(done.exception)
    assert not list(tmp_path.iterdir())


def test_every_row_left_out_is_told_by_reason_in_every_form(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(log, "--bad-values", "drop-row", "--point", "place", "--out", page)
    told = json.loads(run(log, "--bad-values", "drop-row", "--json").stdout)
    assert told["dropped"] == {"time: no readable time within the bounds": 1000}
    for shown in (done.output, page.read_text()):
        assert "time: no readable time within the bounds" in shown
        assert "1,000" in shown
        assert "no zone is declared" in shown  # how times were read


def test_a_label_is_looked_for_among_the_columns(tmp_path: Path) -> None:
    done = run("builtin:randhie", "--point", "mdvis", "--label", "label", "--json")
    assert not [words for words in json.loads(done.stdout)["warnings"] if "away" in words]
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, 3000)
    table = pa.table(
        {"person": np.arange(3000), "time": np.zeros(3000), "v": rng.normal(size=3000),
         "sure": label * 7.0, "label": label}
    )  # fmt: skip
    pacsv.write_csv(table, tmp_path / "a.csv")
    done = run(tmp_path / "a.csv", "--label", "label", "--json")
    (words,) = [w for w in json.loads(done.stdout)["warnings"] if "away" in w]
    assert "'sure'" in words
    assert "ε = 1" in words


def test_data_larger_than_memory(log: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'numeric = ["value"]\ncategorical = ["place"]\nbad_values = "drop-row"\n'
        '[time]\nformats = ["%Y-%m-%d %H:%M"]\n'
    )
    found = [
        json.loads(run(log, "--schema", schema, "--point", "place", "--json", *more).stdout)
        for more in ([], ["--memory", "256"])
    ]
    assert found[0] == found[1]


def test_hostile_column_names_are_shown_as_text() -> None:
    names = ["<script>alert(1)</script>", "{{7*7}}", "<svg onload=x>", "javascript:x"]
    table = pa.table({"person": ["a", "b"], "time": [1, 2]} | {n: [1.0, None] for n in names})
    people = People.read(table)
    page = inspection_html(inspect(people, {"1": 1.0}, names[0]), names[0])

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.found.add(tag)
            assert "onload" not in dict(attrs)

    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.found
    assert "&lt;script&gt;" in page


def test_warnings_say_what_is_odd() -> None:
    rng = np.random.default_rng(2)
    owner = np.concatenate([np.zeros(500, int), np.arange(1, 30)])
    table = pa.table(
        {
            "person": [f"p{i}" for i in owner],
            "time": np.concatenate([np.arange(499), [498], np.zeros(29, int)]),
            "v": rng.normal(size=529),
            "row": np.arange(529),
            "gone": pa.nulls(529, pa.float64()),
        }
    )
    people = People.read(table, Schema(time=Time(unit="s"), numeric=("v", "row", "gone")))
    words = " | ".join(inspect(people, {"1": 0.2, "2": 0.9}, "v").warnings)
    for part in ("1 of 30", "2 points", "30 people", "skewed", "'gone': 100 %", "'row'"):
        assert part in words, part
    calm = People.read(pa.table({"person": range(2000), "time": [1] * 2000, "v": [1.0] * 2000}))
    assert inspect(calm, {"1": 0.0}).warnings == []


@pytest.mark.parametrize(("share", "length"), [(0, 0), (1, 10), (0.5, 5), (0.51, 6), (2, 10)])
def test_bars_are_as_long_as_their_share(share: float, length: int) -> None:
    assert len(bar(share, 10)) == length


@needs_shared("data", "real", "foursquare_nyc")
def test_uniqueness_agrees_with_the_published_table() -> None:
    """shared/data/README.md, measured by other code on the same file."""
    path = shared("data", "real", "foursquare_nyc", "data.parquet")
    table = {
        ("0.01", "hour-of-week"): (0.523, 0.935, 0.992, 0.998),
        ("0.1", "hour-of-day"): (0.012, 0.094, 0.204, 0.334),
    }
    for (cell, clock), shares in table.items():
        done = run(
            path, "--point", f"lat={cell}", "--point", f"lon={cell}", "--clock", clock, "--json"
        )
        found = json.loads(done.stdout)["uniqueness"]
        for k, share in enumerate(shares, 1):
            assert found[str(k)] == pytest.approx(share, abs=0.02), (cell, clock, k)


def test_exit_codes_and_streams(tmp_path: Path) -> None:
    program = "from sequester.cli.main import main; main()"
    command = [sys.executable, "-c", program, "inspect"]
    missing = subprocess.run([*command, "nowhere.csv"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("SQ-101")
    fine = subprocess.run(
        [*command, "builtin:randhie", "--json", "--quiet", "--out", str(tmp_path / "a.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert fine.stderr == ""
    assert json.loads(fine.stdout)["persons"] == 5912


def test_a_schema_file_holds_what_options_cannot(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("2 1 Low\n1 1 7\n")
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'numeric = ["v"]\nbad_values = "refuse"\n[time]\ncolumn = "t"\nkind = "step"\n'
        '[layout]\nform = "whitespace"\nheader = false\nnames = ["t", "person", "v"]\n'
        "[replace.v]\nLow = 1.0\n"
    )
    done = run(tmp_path / "log.txt", "--schema", schema, "--json")
    assert json.loads(done.stdout)["records"] == 2
    schema.write_text('numerics = ["v"]\n')
    assert "numerics" in repr(run(tmp_path / "log.txt", "--schema", schema).exception)
