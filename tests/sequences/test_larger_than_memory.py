"""Reading in stretches and sorting on disk gives what reading at once gives, and leaves nothing."""

import gc
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequester.core.errors import UsageError
from sequester.sequences import (
    Layout,
    People,
    Query,
    Schema,
    Time,
    Wide,
    room,
    sources,
    spill,
    textfile,
)

MEMORY = 256 << 20
FULL = Schema(
    time=Time(kind="step"),
    numeric=("v", "age"),
    categorical=("w", "group"),
    text=("said",),
    static=("age", "group"),
    site="town",
)


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """37 rows a stretch and a batch, so that people and moments span them."""
    monkeypatch.setattr(spill, "MOST_ROWS", 37)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(7)
    people = rng.permutation(np.repeat(np.arange(40), 25))
    values = [None if v > 1.5 else float(v) for v in rng.normal(size=1000)]
    return pa.table(
        {
            "person": [f"{'ÅØé'[i % 3]}{i:03d}" for i in people],
            "time": pa.array(rng.integers(0, 12, 1000)),  # many repeats
            "v": pa.array(values, pa.float64()),
            "w": [["walk", "bus", None][i] for i in rng.integers(0, 3, 1000)],
            "said": [["hi, you", 'a "q"', "ü", None][i] for i in rng.integers(0, 4, 1000)],
            "town": [["north", "south"][i % 2] for i in people],
            "age": [None if r < 5 else 20.0 + i for r, i in enumerate(people)],
            "group": [None if i % 7 == 0 else f"g{i % 5}" for i in people],
        }
    )


def same(source: object, schema: Schema, folder: Path, **more: object) -> People:
    """Both ways of reading, compared in content, order within a moment, and counts."""
    at_once = People.read(source, schema, **more)
    spilled = People.read(source, schema, memory=MEMORY, spill=folder, **more)
    assert not list(folder.iterdir()), "something private was left on the disk"
    assert spilled.fingerprint() == at_once.fingerprint()
    assert spilled.facts == at_once.facts
    assert spilled.time_kind == at_once.time_kind
    assert dict(spilled.kinds) == dict(at_once.kinds)
    for name in at_once.columns:
        ours, theirs = spilled.column(name).to_pylist(), at_once.column(name).to_pylist()
        assert ours == theirs, name
    return spilled


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("rule", ["keep", "first", "last", "mean"])
def test_merged_repeats_static_columns_sites_and_texts(
    rule: str, table: pa.Table, disk: Path
) -> None:
    people = same(table, replace(FULL, repeats=rule), disk)
    assert people.facts.conflicted_people > 0
    assert people.is_static("age")
    some = np.array([3, 7, 11])
    at_once = People.read(table, replace(FULL, repeats=rule))
    assert people.select(some).fingerprint() == at_once.select(some).fingerprint()
    key = b"k" * 16
    assert people.bounded(3, key).fingerprint() == at_once.bounded(3, key).fingerprint()


def test_columns_may_have_any_name(table: pa.Table, disk: Path) -> None:
    odd = {"v": "__time", "w": "code", "said": 'x" y; --', "age": "c0", "group": "file_row_number"}
    renamed = table.rename_columns([odd.get(name, name) for name in table.column_names])
    schema = Schema(
        time=Time(kind="step"),
        numeric=("__time", "c0"),
        categorical=("code", "file_row_number"),
        text=('x" y; --',),
        static=("c0", "file_row_number"),
        site="town",
    )
    same(renamed, schema, disk)


def test_refused_repeats_are_counted_over_the_whole(table: pa.Table, disk: Path) -> None:
    refusals = []
    for memory in (None, MEMORY):
        with pytest.raises(UsageError, match="SQ-120") as refusal:
            People.read(table, replace(FULL, repeats="refuse"), memory=memory, spill=disk)
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]
    assert not list(disk.iterdir())


def write(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".jsonl":  # absent where missing: a column may be absent from a stretch
        lines = ({k: v for k, v in row.items() if v is not None} for row in table.to_pylist())
        path.write_text("\n".join(json.dumps(line) for line in lines))
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=300)
    elif path.suffix == ".arrow":
        feather.write_feather(table, path, chunksize=90)
    else:
        pacsv.write_csv(table, path)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.arrow"])
def test_every_kind_of_file(
    name: str, table: pa.Table, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BATCH_BYTES", 5000)
    monkeypatch.setattr(textfile, "BLOCK", 5000)
    path = write(table, tmp_path / name)
    people = same(path, FULL, disk)
    assert people.fingerprint() == People.read(table, FULL).fingerprint()
    same(Query(f"SELECT * FROM '{path}'"), FULL, disk) if name == "a.parquet" else None
    with pytest.raises(UsageError, match="SQ-102"):
        People.read(path, replace(FULL, numeric=("v", "age", "lost")), memory=MEMORY, spill=disk)


def test_a_folder_of_small_files_and_a_second_source(tmp_path: Path, disk: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for i in range(30):
        rows = "".join(f"{t},{v:.3f}\n" for t, v in zip(range(9), rng.normal(size=9), strict=True))
        (folder / f"p{i}.csv").write_text("time,v\n" + rows)
    second = pa.table({"person": [f"p{i}" for i in range(32)], "age": np.arange(32.0)})
    schema = Schema(numeric=("v", "age"), static=("age",))
    people = same(f"{folder}/{{person}}.csv", schema, disk, static=second)
    assert (len(people), people.records, (people.counts == 0).sum()) == (32, 270, 2)
    twice = pa.table({"person": ["p1", "p1"], "age": [1.0, 2.0]})
    with pytest.raises(UsageError, match="SQ-127"):
        People.read(f"{folder}/{{person}}.csv", schema, static=twice, memory=MEMORY, spill=disk)


def test_long_tables_with_static_measurements(disk: Path) -> None:
    rng = np.random.default_rng(2)
    rows = 600
    names = np.array(["hr", "bp", "Age", "noise"])[rng.integers(0, 4, rows)]
    person = rng.integers(0, 12, rows)
    value = np.where(names == "Age", 30.0 + person, np.round(rng.normal(size=rows), 2))
    value[rng.integers(0, rows, 30)] = -1.0
    long = pa.table(
        {
            "person": [f"p{i}" for i in person],
            "time": rng.integers(0, 10, rows),
            "what": names,
            "number": value,
        }
    )
    for rule in ("keep", "mean"):
        schema = Schema(
            time=Time(kind="step"),
            parameter="what",
            value="number",
            numeric=("hr", "bp", "Age"),
            static=("Age",),
            ignore=("noise",),
            missing={"Age": ("-1",), "bp": ("-1",)},
            repeats=rule,
        )
        people = same(long, schema, disk)
        assert people.facts.dropped["what: ignored as declared"] == (names == "noise").sum()


def test_wide_tables(disk: Path) -> None:
    rng = np.random.default_rng(3)
    moments = ("t0", "t1", "t2", "t3")
    wide = pa.table(
        {"person": [f"p{i}" for i in range(90)]} | {m: rng.normal(size=90) for m in moments}
    )
    schema = Schema(time=Time(""), wide=Wide(moments, "hr"), numeric=("hr",))
    assert same(wide, schema, disk).records == 360


def test_clocks_wrap_across_stretches(disk: Path) -> None:
    """Two people's clocks, interleaved: each passes midnight three times."""
    minutes = np.arange(0, 4 * 1440, 17)
    clock = [f"{m // 60 % 24:02d}:{m % 60:02d}" for m in minutes for _ in range(2)]
    table = pa.table({"person": ["a", "b"] * len(minutes), "time": clock, "v": [1.0] * len(clock)})
    people = same(table, Schema(time=Time(kind="clock"), numeric=("v",)), disk)
    assert (people.time[: len(minutes)] // 60_000_000 == minutes).all()
    back = table.take(pa.array([0, 4, *range(5, 600), 1]))
    for rule in ("drop-row", "drop-person"):
        same(back, Schema(time=Time(kind="clock"), numeric=("v",), bad_values=rule), disk)


def test_rows_without_a_time_and_people_who_are_left_out(disk: Path) -> None:
    rng = np.random.default_rng(4)
    cells = ["oops" if i == 411 else f"{v:.2f}" for i, v in enumerate(rng.normal(size=800))]
    table = pa.table(
        {
            "person": [f"p{i}" for i in rng.integers(0, 9, 800)],
            "v": cells,
            "age": ["3"] * 800,
            "town": ["x"] * 800,
        }
    )
    schema = Schema(
        time=Time(""), numeric=("v", "age"), static=("age",), site="town", bad_values="drop-person"
    )
    people = same(table, schema, disk)
    assert (people.counts == 0).sum() == 1
    assert people.per_person("age").null_count == 1
    with pytest.raises(UsageError, match=r"SQ-109.*row 412"):
        People.read(table, replace(schema, bad_values="refuse"), memory=MEMORY, spill=disk)


def test_layouts_that_are_no_plain_csv(tmp_path: Path, disk: Path) -> None:
    rng = np.random.default_rng(5)
    padded = tmp_path / "padded.txt"
    padded.write_text(
        "\n".join(f"  p{i}   {t}\t {t * 7 % 5}  " for i in range(9) for t in range(50)) + "\n"
    )
    layout = Layout(form="whitespace", header=False, names=("person", "time", "v"))
    assert same(padded, Schema(numeric=("v",), layout=layout), disk).records == 450
    said = tmp_path / "said.txt"
    said.write_text(
        "".join(f"P{rng.integers(9)}:\nline {i}\nmore\n{'  ' * (i % 2)}\n\n" for i in range(200))
    )
    speakers = Schema(time=Time(""), text=("text",), layout=Layout(form="speakers"))
    assert same(said, speakers, disk).text("text")[0].as_py().endswith("more")


RECORD = st.tuples(
    st.sampled_from(["ana", " ana", "bo", "çelik", "c\u0327elik", "李"]),
    st.integers(-3, 6),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.one_of(st.none(), st.sampled_from(["home", "work", "gym"])),
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(RECORD, min_size=1, max_size=200), st.sampled_from(["keep", "first", "last", "mean"])
)
def test_any_records_are_read_alike(disk: Path, rows: list[tuple], rule: str) -> None:
    person, time, v, w = zip(*rows, strict=True)
    table = pa.table(
        {
            "person": pa.array(person, pa.string()),
            "time": pa.array(time, pa.int64()),
            "v": pa.array(v, pa.float64()),
            "w": pa.array(w, pa.string()),
        }
    )
    schema = Schema(time=Time(kind="step"), numeric=("v",), categorical=("w",), repeats=rule)
    same(table, schema, disk)


def test_what_the_whole_column_would_decide_must_be_declared(table: pa.Table, disk: Path) -> None:
    def refused(code: int, source: pa.Table, schema: Schema, memory: int = MEMORY) -> None:
        with pytest.raises(UsageError, match=f"SQ-{code}"):
            People.read(source, schema, memory=memory, spill=disk)
        assert not list(disk.iterdir())

    refused(124, table, Schema())
    refused(124, table, FULL, memory=MEMORY - 1)
    times = ["2024-05-01 10:00"] * 37
    other = pa.table({"person": ["a"] * 74, "time": times + times, "v": [1.0] * 74})
    refused(124, other, Schema(numeric=("v",)))
    mixed = pa.table({"person": ["a"] * 74, "time": ["1"] * 37 + ["00:05"] * 37, "v": [1.0] * 74})
    refused(124, mixed, Schema(time=Time(kind="elapsed"), numeric=("v",)))
    forms = ("%Y-%m-%d %H:%M%z", "%Y-%m-%d %H:%M")
    zoned = pa.table(
        {"person": ["a"] * 74, "time": ["2024-05-01 10:00+0200"] * 37 + times, "v": [1.0] * 74}
    )
    refused(112, zoned, Schema(time=Time(formats=forms), numeric=("v",)))
    moved = table.set_column(5, "town", pa.array(["x", "y"] * 500))
    refused(127, moved, FULL)
    refused(127, table.set_column(6, "age", pa.array(np.arange(1000.0))), FULL)
    refused(107, table.slice(0, 0), FULL)
    stamps = other.set_column(1, "time", other["time"].cast(pa.timestamp("us")))
    same(stamps, Schema(numeric=("v",)), disk)


def test_what_is_on_disk_is_private_and_gone(
    table: pa.Table, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder is for its owner alone, even under a careless umask."""
    seen: dict[str, int] = {}

    def watch() -> None:
        for path in disk.rglob("*"):
            seen[path.name] = stat.S_IMODE(path.stat().st_mode)

    original = spill.MappedColumns.append

    def append(*arguments: object) -> None:
        watch()
        original(*arguments)
        watch()

    monkeypatch.setattr(spill.MappedColumns, "append", append)
    before = os.umask(0)
    try:
        people = People.read(table, FULL, memory=MEMORY, spill=disk)
    finally:
        os.umask(before)
    assert {"typed.parquet", "time", "0.data"} <= set(seen)
    outer = [mode for name, mode in seen.items() if name.startswith("sequester-")]
    assert outer == [0o700]
    assert all(mode & 0o077 == 0 for name, mode in seen.items() if not name.startswith("sort"))
    assert not list(disk.iterdir())
    first = people.time[0]
    part = people.select(np.array([0]))
    del people
    gc.collect()
    assert part.time[0] == first  # the mapping outlives the whole


def test_a_killed_process_leaves_nothing_once_it_has_read(disk: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("person,time,v\n" + "".join(f"p{i % 9},{i},{i}\n" for i in range(500)))
    program = (
        "import os, signal, sys; from sequester.sequences import People, Schema\n"
        f"p = People.read({str(path)!r}, Schema(numeric=('v',)), memory={MEMORY}, "
        f"spill={str(disk)!r})\n"
        "assert p.records == 500\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    assert not list(disk.iterdir())


def test_what_cannot_fit_is_refused_with_the_way_out(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the system's free memory and by the limit of a container, whichever is less."""
    system, group = tmp_path / "meminfo", tmp_path / "group"
    monkeypatch.setattr(room, "_SYSTEM", system)
    monkeypatch.setattr(room, "_GROUP", group)
    wide = pa.table({"person": ["a"] * 4000, "time": range(4000), "v": [1.0] * 4000})
    schema = Schema(time=Time(kind="step"), numeric=("v",))
    assert len(People.read(wide, schema)) == 1  # nothing is known about this machine
    system.write_text("MemTotal: 9 kB\nMemAvailable:   200000 kB\n")
    assert room.available() == 200_000 << 10
    group.write_text("max\n")
    assert len(People.read(wide, schema)) == 1
    group.write_text(f"{3 * wide.nbytes}\n")
    assert len(People.read(wide, schema)) == 1
    group.write_text(f"{3 * wide.nbytes - 1}\n")
    with pytest.raises(UsageError, match=r"^SQ-130 .*--memory 512"):
        People.read(wide, schema)
    assert len(People.read(wide, schema, memory=MEMORY, spill=disk)) == 1
