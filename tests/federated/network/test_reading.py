"""How a site's file is read is its holder's word: a study moves no row, no name and no person."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from sequester.federated.network import attempts
from sequester.federated.network.frames import Enrolled, Refused
from sequester.federated.network.node import Node
from sequester.federated.network.reading import Reading
from sequester.ledger import Ledger
from sequester.sequences import Schema
from sequester.sequences.schema import Layout, Time
from tests.federated.network.asking import ask_node, ask_of, enrol_of, enrolled, node_at
from tests.federated.network.world import POLICY, make_study, write_sites

BOUNDS = {"lower": -4.0, "upper": 4.0}


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


def spent(folder):
    file = folder / "ledger.db"
    if not file.exists():
        return 0
    with Ledger.open(f"sqlite:///{file}") as ledger:
        return ledger.budgets()[0].spent


LAYOUT = {
    "form": "speakers",
    "delimiter": ";",
    "header": False,
    "names": ["nobody", "person", "site", "value", "label"],
    "skip_lines": 1,
    "encoding": "utf-16",
    "ragged": "drop-row",
    "multiline": True,
}
TIME = {
    "column": "label",
    "clock_column": "value",
    "kind": "absolute",
    "formats": ["%Y"],
    "unit": "ms",
    "zone": "UTC",
    "earliest": "2000-01-01",
    "latest": "2001-01-01",
}
REST = {
    "person": "visit",
    "numeric": ["value"],
    "categorical": ["visit"],
    "text": ["site"],
    "static": ["value"],
    "site": "site",
    "parameter": "site",
    "value": "value",
    "wide": {"columns": ["value"], "value": "x"},
    "ignore": ["time"],
    "missing": {"person": ["a003"]},
    "replace": {"value": {"sick": 1.0}},
    "bad_values": "refuse",
    "repeats": "first",
    "fold_case": True,
    "erased": "/x",
    "erased_key": "/y",
}
ASKED = {
    **{f"layout.{name}": {"layout": {name: value}} for name, value in LAYOUT.items()},
    **{f"time.{name}": {"time": {name: value}} for name, value in TIME.items()},
    **{name: {name: value} for name, value in REST.items() if not isinstance(value, dict)},
    "missing.person": {"missing": {"person": ["a003"]}},
    "missing.*": {"missing": {"*": ["0"]}},
    "missing.time": {"missing": {"time": ["0"]}},
    "missing.site": {"missing": {"site": ["a"]}},
    "replace.value": {"replace": {"value": {"sick": 1.0}}},
    "wide.columns": {"wide": {"columns": ["value"]}},
    "layout.typo": {"layout": {"typo": 1}},
}

PAIRS = {"parameter", "value", "erased", "erased_key"}


def test_every_setting_of_a_reading_is_asked_below():
    assert set(LAYOUT) == {field.name for field in dataclasses.fields(Layout)}
    assert set(TIME) == {field.name for field in dataclasses.fields(Time)}
    assert set(REST) | {"layout", "time"} == {field.name for field in dataclasses.fields(Schema)}


@pytest.mark.parametrize("name", ASKED)
def test_a_study_says_nothing_of_how_the_file_is_read(name, data, tmp_path):
    header, _ = ask_node(
        node_at(data, tmp_path), enrol_of(make_study(data, data={"read": ASKED[name]}))
    )
    assert isinstance(header, Refused)
    assert header.code in (653, 655)  # 653: two declarations of one column do not go together
    if header.code == 655:
        assert f": {name}" in header.message or f", {name}" in header.message
    else:
        assert name in {"time.column", "numeric", "text", "categorical"} | PAIRS
    assert spent(tmp_path / "node") == 0


def test_the_column_of_times_is_the_holders_too(data, tmp_path):
    for column in ("", "label", "value"):
        study = make_study(data, data={"time": column, "label": "site", "features": {"x": BOUNDS}})
        header, _ = ask_node(node_at(data, tmp_path), enrol_of(study))
        assert (header.code, "time.column" in header.message) == (655, True)


def test_what_a_study_repeats_of_its_holders_words_is_taken(data, tmp_path):
    (data / "a" / "reading.toml").write_text(
        'bad_values = "drop-row"\n[time]\nkind = "step"\n[missing]\nvalue = ["-9"]\n'
    )
    read = {
        "ignore": ["*"],
        "bad_values": "drop-row",
        "time": {"kind": "step", "column": "time"},
        "layout": {"header": True},
        "missing": {"value": ["-8"], "label": ["9"]},
    }
    study = make_study(data, data={"read": read})
    node = node_at(data, tmp_path)
    enrolled(node, study)
    got = node._terms[2].study.data.read["missing"]
    assert {name: tuple(words) for name, words in got.items()} == {
        "value": ("-9", "-8"),
        "label": ("9",),
    }


WRONG = {
    "a typo": 'bad_valus = "mask"',
    "a typo inside": "[layout]\nskip_line = 3",
    "refusing": 'bad_values = "refuse"',
    "the person": 'person = "visit"',
    "a feature": 'numeric = ["value"]',
    "no TOML": "=",
    "a layout that cannot be": '[layout]\ndelimiter = "ab"',
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_reading_that_is_none_is_refused(kind, data, tmp_path, caplog):
    (data / "a" / "reading.toml").write_text(WRONG[kind])
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(make_study(data)))
    assert header.code == 656
    assert "reading.toml:" in caplog.text  # the holder hears what is wrong
    assert spent(tmp_path / "node") == 0


def test_a_holder_may_say_all_but_persons_and_features():
    fields = {field.name for field in dataclasses.fields(Schema)}
    theirs = {"person", "numeric", "categorical", "text", "erased", "erased_key"}
    assert set(Reading.__struct_fields__) == fields - theirs


def test_a_holders_layout_reads_the_file(data, tmp_path):
    file = data / "a" / "people.csv"
    lines = file.read_text().splitlines()[1:]
    file.write_text("# exported\n" + "\n".join(lines).replace(",", ";") + "\n")
    (data / "a" / "reading.toml").write_text(
        '[layout]\nheader = false\nskip_lines = 1\ndelimiter = ";"\n'
        'names = ["person", "time", "site", "value", "label"]\n'
    )
    study = make_study(data, {"placement": "cross-device"}, training={"sampling_rate": 1.0})
    assert enrolled(node_at(data, tmp_path), study).clients > 1


def _rows(without=None):
    generator = np.random.default_rng(0)
    lines, visit = ["person,visit,time,site,value,label"], 0
    for person in range(10):
        for time in range(20):
            value, label = generator.normal(), int(generator.random() < 0.5)
            if person == 0:
                value, label = 3.0, 1
            if person != without:
                lines.append(f"p{person:03d},v{visit},{time},a,{value:.3f},{label}")
            visit += 1
    return "\n".join(lines) + "\n"


def test_one_person_moves_a_sites_sum_by_no_more_than_the_bound(tmp_path):
    """Also under a study that declares as much as a study may."""
    sums = []
    for number, without in enumerate((None, 0)):
        folder = tmp_path / str(number) / "a"
        folder.mkdir(parents=True)
        (folder / "people.csv").write_text(_rows(without))
        (folder / "policy.toml").write_text(POLICY)
        study = make_study(
            folder.parent,
            data={
                "window": 1,
                "stride": 1,
                "population": 300,
                "person": "visit",
                "holdout": {"share": 0.0001},
                "read": {"missing": {"value": ["0.5"]}},
            },
            training={"sampling_rate": 1.0, "steps": 1},
        )
        node = Node("a", folder / "people.csv", tmp_path / str(number) / "node")
        badge = enrolled(node, study).badge
        _, tensors = ask_node(node, *ask_of(study), badge=badge)
        sums.append(tensors["deltas"][0][:-2])
    assert np.linalg.norm(sums[0] - sums[1]) <= study.privacy.clip * (1 + 1e-6)


@pytest.mark.parametrize("word", ["flu", "sick", "1e999", "2.5"])
@pytest.mark.parametrize("rule", ["mask", "drop-row", "drop-person"])
def test_no_word_of_a_record_decides_whether_a_site_enrols(word, rule, data, tmp_path):
    """Words are declared as numbers; then one record has another word, and nobody hears of it."""
    file = data / "a" / "people.csv"
    head, *lines = file.read_text().splitlines()
    more = [f"{line},{word if number == 9 else 'flu'}" for number, line in enumerate(lines)]
    file.write_text("\n".join([f"{head},dx", *more]) + "\n")
    (data / "a" / "reading.toml").write_text(f'bad_values = "{rule}"')
    for number, about in enumerate(
        (
            {"features": {"value": BOUNDS, "dx": {"lower": 0.0, "upper": 1.0}}},
            {"label": "dx"},
            {"categories": {"dx": {"values": ["flu", "cold"]}}},
            {"features": {"dx": BOUNDS}, "task": "forecast", "label": "dx"},
        )
    ):
        node = replace(node_at(data, tmp_path), folder=tmp_path / f"node{number}")
        enrolled(node, make_study(data, data=about))


SHAPES = {
    "long windows": {"window": 500, "stride": 500},
    "a far horizon": {"task": "forecast", "label": "value", "horizon": 4, "window": 2},
    "one window a person": {"max_per_person": 1},
    "filled": {"fill": "forward", "missing_flags": True},
    "a label a window": {"level": "window"},
    "a label a person": {"level": "person"},
    "nobody's site": {"holdout": {"column": "site", "value": "nowhere"}},
    "everybody's site": {"holdout": {"column": "site", "value": "a"}},
    "words of others": {"categories": {"site": {"values": ["x", "y"]}}},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_no_declaration_makes_a_site_unreadable(kind, data, tmp_path):
    study = make_study(data, data=SHAPES[kind])
    badge = enrolled(node_at(data, tmp_path), study).badge
    ask, model = ask_of(study)
    header, _ = ask_node(node_at(data, tmp_path), ask, model, badge=badge)
    assert not isinstance(header, Refused)


def broken(data):
    """A file that no study can read, whatever it declares."""
    file = data / "a" / "people.csv"
    file.write_text(file.read_text() + "a001,7\n")


def named(study, run):
    begun = msgspec.json.decode(enrol_of(study).begun)
    return enrol_of(study, run=run, begun=msgspec.json.encode(begun | {"run": run}).decode())


def test_a_node_that_cannot_read_its_people_says_so_three_times_at_most(data, tmp_path):
    study = make_study(data)
    folder = tmp_path / "node"
    whole = (data / "a" / "people.csv").read_text()
    enrolled(node_at(data, tmp_path), study)
    assert not (folder / attempts.FILE).exists()
    broken(data)
    charged = []
    for number in range(attempts.MOST + 2):
        header, _ = ask_node(node_at(data, tmp_path), named(study, f"again-{number}"))
        assert header.code == (639 if number < attempts.MOST else 657)
        charged.append(spent(folder))
    assert charged[0] < charged[1] < charged[2] == charged[3] == charged[4]
    (data / "a" / "people.csv").write_text(whole)
    assert ask_node(node_at(data, tmp_path), named(study, "whole"))[0].code == 657
    (folder / attempts.FILE).unlink()
    assert isinstance(ask_node(node_at(data, tmp_path), named(study, "whole"))[0], Enrolled)


def test_one_charge_does_not_pay_for_the_answers_to_other_studies(data, tmp_path):
    """A run that failed is charged; under its name another study asks something else."""
    broken(data)
    codes = []
    for lower in range(-9, -4):
        study = make_study(data, data={"features": {"value": {"lower": lower, "upper": 4.0}}})
        codes.append(ask_node(node_at(data, tmp_path), enrol_of(study))[0].code)
    assert codes == [639] * attempts.MOST + [657] * 2


def test_the_same_question_again_is_one_attempt(data, tmp_path):
    broken(data)
    study = make_study(data)
    codes = {ask_node(node_at(data, tmp_path), enrol_of(study))[0].code for _ in range(5)}
    assert codes == {639}


DAYS = [datetime.datetime(2020, 1, 1 + day) for day in range(6)]
TIMES = {
    "a date": (None, [f"{day:%Y-%m-%d}" for day in DAYS]),
    "a date, declared": ({"kind": "absolute"}, [f"{day:%Y-%m-%d}" for day in DAYS]),
    "a stamp": ({"kind": "absolute"}, [f"{day:%Y-%m-%dT%H:%M}" for day in DAYS]),
    "a zone": (
        {"kind": "absolute", "zone": "Europe/Berlin"},
        [f"{day:%Y-%m-%dT%H:%M}" for day in DAYS],
    ),
    "a format": (
        {"kind": "absolute", "formats": ["%d.%m.%Y"]},
        [f"{day:%d.%m.%Y}" for day in DAYS],
    ),
    "an epoch": ({"kind": "absolute", "unit": "s"}, [1_600_000_000 + day for day in range(6)]),
    "elapsed": ({"kind": "elapsed"}, [f"0{hour}:10" for hour in range(6)]),
    "elapsed seconds": ({"kind": "elapsed", "unit": "s"}, list(range(6))),
    "a clock": ({"kind": "clock"}, [f"0{hour}:10" for hour in range(6)]),
    "a step": ({"kind": "step"}, list(range(6))),
    "steps": (None, list(range(6))),
}


@pytest.mark.parametrize("kind", ["csv", "parquet", "typed parquet"])
@pytest.mark.parametrize("time", [*TIMES, "date and clock"])
def test_every_kind_of_time_enrols(time, kind, data, tmp_path):
    """Before anything is charged, names and types are looked at; how a time is written is not."""
    said, written = TIMES.get(time, ({"column": "day", "clock_column": "clock"}, []))
    if time == "date and clock":
        columns = {"day": [f"{day:%Y-%m-%d}" for day in DAYS], "clock": ["10:00"] * 6}
    elif kind == "typed parquet" and time in ("a date", "a date, declared", "a zone"):
        columns = {"time": DAYS}
    else:
        columns = {"time": written}
    rows = {name: values * 6 for name, values in columns.items()}
    persons = [f"p{person}" for person in range(6) for _ in range(6)]
    table = pa.table(
        {"person": persons, **rows, "site": ["a"] * 36, "value": [0.5] * 36, "label": [0, 1] * 18}
    )
    file = data / "a" / ("people.csv" if kind == "csv" else "people.parquet")
    if kind == "csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pyarrow.parquet.write_table(table, file)
    if said:
        lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in said.items()]
        (data / "a" / "reading.toml").write_text("\n".join(["[time]", *lines]) + "\n")
    enrolled(replace(node_at(data, tmp_path), data=file), make_study(data))


def test_a_wide_table_enrols(data, tmp_path):
    rows = "".join(f"p{n},a,{n},2,3\n" for n in range(6))
    (data / "a" / "people.csv").write_text("person,site,m1,m2,m3\n" + rows)
    said = '[wide]\ncolumns = ["m1", "m2", "m3"]\n[time]\ncolumn = ""\n'
    (data / "a" / "reading.toml").write_text(said)
    about = {"label": "value", "task": "forecast", "window": 2, "stride": 2}
    enrolled(node_at(data, tmp_path), make_study(data, data=about))
