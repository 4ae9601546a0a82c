"""What must not depend on how the same records are kept: formats, orders, shapes, clocks."""

import csv
import io
import json
import tempfile
import unicodedata
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequester.sequences import People, Query, Schema, Time, Wide

DAY = 86_400_000_000
NAMES = ["ana", "çelik", "李", "O'Hara", "=1+1", "007", "7", "NA"]
SPELLINGS = [
    lambda name: name,
    lambda name: f" {name}",
    lambda name: f"{name}\t",
    lambda name: unicodedata.normalize("NFD", name),
]
WORDS = st.one_of(st.none(), st.sampled_from(["home", "work, the", 'a "gym"', "Ångström", "null"]))
TEXTS = st.one_of(st.none(), st.sampled_from(["said; so", "ends in blank ", "ü, 'quoted'", "-1"]))
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
RECORD = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(range(len(SPELLINGS))),
    st.integers(0, 2_000_000_000),
    NUMBERS,
    WORDS,
    TEXTS,
)
RECORDS = st.lists(RECORD, min_size=1, max_size=40)
SCHEMA = Schema(
    time=Time(formats=("%Y-%m-%dT%H:%M:%S",)),
    numeric=("v", "age"),
    categorical=("w", "kind"),
    text=("said",),
    static=("age", "kind"),
    site="town",
)
quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
few = settings(quick, max_examples=5)  # each reads two dozen sources


def table(rows: list[tuple]) -> pa.Table:
    """Static columns and sites follow from the name, whatever its spelling."""
    person, how, seconds, v, w, said = map(list, zip(*rows, strict=True))
    order = [NAMES.index(name) for name in person]
    stamps = np.datetime_as_string(np.array(seconds).astype("datetime64[s]"))
    return pa.table(
        {
            "person": [SPELLINGS[i](name) for i, name in zip(how, person, strict=True)],
            "time": [str(stamp) for stamp in stamps],
            "v": pa.array(v, pa.float64()),
            "age": pa.array([20.5 + i for i in order]),
            "w": pa.array(w, pa.string()),
            "kind": [f"kind {i % 3}" for i in order],
            "said": pa.array(said, pa.string()),
            "town": [["north", "south"][i % 2] for i in order],
        }
    )


def as_text(whole: pa.Table, delimiter: str = ",") -> str:
    """By the standard library: as far from our reader as can be."""
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter)
    writer.writerow(whole.column_names)
    for row in whole.to_pylist():
        writer.writerow(["" if x is None else repr(x) if isinstance(x, float) else x
                         for x in row.values()])  # fmt: skip
    return stream.getvalue()


def sources(whole: pa.Table, folder: Path) -> dict[str, tuple[object, Schema]]:
    import dataclasses

    (folder / "a.csv").write_text(as_text(whole), encoding="utf-8")
    (folder / "a.tsv").write_text(as_text(whole, "|"), encoding="utf-16")
    lines = (json.dumps(row) + "\n" for row in whole.to_pylist())
    (folder / "a.jsonl").write_text("".join(lines))
    sparse = ({k: v for k, v in row.items() if v is not None} for row in whole.to_pylist())
    (folder / "sparse.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sparse), encoding="utf-8"
    )
    pq.write_table(whole, folder / "a.parquet", row_group_size=7)
    feather.write_feather(whole, folder / "a.arrow")
    parts = folder / "parts"
    parts.mkdir()
    for at in range(0, whole.num_rows, 9):
        pq.write_table(whole.slice(at, 9), parts / f"{at:03d}.parquet")
    typed = whole.set_column(1, "time", whole["time"].cast(pa.timestamp("s")))
    with duckdb.connect(str(folder / "a.db")) as database:
        database.register("given", whole)
        database.execute("CREATE TABLE log AS SELECT * FROM given")
    layout = dataclasses.replace(SCHEMA.layout, delimiter="|", encoding="utf-16")
    piped = dataclasses.replace(SCHEMA, layout=layout)
    plain = {
        "csv": folder / "a.csv",
        "json lines": folder / "a.jsonl",
        "parquet": folder / "a.parquet",
        "arrow": folder / "a.arrow",
        "folder": parts,
        "typed": typed,
        "pandas": whole.to_pandas(),
        "pandas with arrow": whole.to_pandas(types_mapper=pd.ArrowDtype),
        "polars": pl.from_arrow(typed),
        "polars, lazy": pl.from_arrow(whole).lazy(),
        "duckdb": Query("SELECT * FROM log", f"duckdb:{folder / 'a.db'}"),
        "dictionary": whole.set_column(0, "person", whole["person"].dictionary_encode()),
        "columns turned": whole.select(whole.column_names[::-1]),
    }
    found = {name: (source, SCHEMA) for name, source in plain.items()}
    found |= {"utf-16, piped": (folder / "a.tsv", piped)}
    return found | {"sparse json lines": (folder / "sparse.jsonl", SCHEMA)}


@few
@given(RECORDS, st.randoms(use_true_random=False))
def test_one_fingerprint_in_every_format_and_order(rows: list[tuple], order: object) -> None:
    whole = table(rows)
    expected = People.read(whole, SCHEMA)
    assert set(expected._ids.to_pylist()) == {row[0] for row in rows}  # one person, one name
    shuffled = list(rows)
    order.shuffle(shuffled)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, (source, schema) in sources(table(shuffled), folder).items():
            if "sparse" in what and any(all(row[k] is None for row in rows) for k in (3, 4, 5)):
                continue  # a column that no line names is missing, and refused
            for memory in (None, 256 << 20) if what in {"csv", "sparse json lines"} else (None,):
                people = People.read(source, schema, memory=memory, spill=name)
                assert people.fingerprint() == expected.fingerprint(), (what, memory)


@quick
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 12 * 3600 - 1)), min_size=1, max_size=60
    )
)
def test_clocks_durations_dates_and_epochs_tell_the_same_story(steps: list[tuple]) -> None:
    """Less than half a day between a person's records: the clock alone is enough."""
    seconds, passed, rows = {}, {}, []
    for person, step in steps:
        passed[person] = passed[person] + step if person in passed else step
        rows.append((person, passed[person]))
        seconds.setdefault(person, []).append(passed[person])
    person, since = zip(*rows, strict=True)
    start = np.datetime64("2024-05-01T00:00:00")
    stamps = start + np.array(since).astype("timedelta64[s]")
    hours = [f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}" for s in since]
    clock = [str(stamp)[11:] for stamp in stamps]
    epoch = stamps.astype("datetime64[s]").astype(np.int64)
    forms = {
        "clock": (clock, Time(kind="clock")),
        "typed clock": (pa.array([s % 86_400 for s in since], pa.time32("s")), Time()),
        "elapsed": (hours, Time(kind="elapsed")),
        "duration": (pa.array(since, pa.duration("s")), Time()),
        "minutes": ([repr(s / 60) for s in since], Time(kind="elapsed", unit="min")),
        "iso": ([str(stamp) for stamp in stamps], Time()),
        "blank": ([str(stamp).replace("T", " ") for stamp in stamps], Time()),
        "zoned": ([f"{stamp}+00:00" for stamp in stamps], Time()),
        "declared": (
            [pd.Timestamp(stamp).strftime("%d.%m.%y %I:%M:%S %p") for stamp in stamps],
            Time(formats=("%d.%m.%y %I:%M:%S %p",)),
        ),
        "date and clock": (None, Time("date", clock_column="clock")),
        "seconds": (epoch, Time(kind="absolute", unit="s")),
        "milliseconds": ([str(e * 1000) for e in epoch], Time(kind="absolute", unit="ms")),
        "nanoseconds": (epoch * 10**9, Time(kind="absolute", unit="ns")),
        "timestamps": (pa.array(stamps.astype("datetime64[us]")), Time()),
    }
    for form, (times, time) in forms.items():
        columns = {"time": times} if times is not None else {
            "date": [str(stamp)[:10] for stamp in stamps], "clock": clock}  # fmt: skip
        people = People.read(
            pa.table({"person": list(person), "v": [1.0] * len(rows)} | columns),
            Schema(time=time, numeric=("v",)),
        )
        zero = start.astype("datetime64[us]").astype(np.int64)
        origin = zero if people.time_kind == "absolute" else 0
        for at, name in enumerate(sorted(seconds)):
            mine = people.time[people.offsets[at] : people.offsets[at + 1]]
            expected = np.sort(seconds[name])
            assert (mine - origin == np.array(expected) * 10**6).all(), form


@few
@given(
    st.integers(1, 8),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
    st.integers(0, 2**32 - 1),
)
def test_long_and_wide_tables_hold_the_same(
    persons: int, moments: int, order: object, seed: int
) -> None:
    values = np.random.default_rng(seed).normal(size=(persons, moments))
    names = [f"p{i}" for i in range(persons)]
    columns = tuple(f"t{j}" for j in range(moments))
    wide = pa.table({"person": names} | {c: values[:, j] for j, c in enumerate(columns)})
    rows = [(names[i], j, values[i, j]) for i in range(persons) for j in range(moments)]
    order.shuffle(rows)
    person, time, number = map(list, zip(*rows, strict=True))
    long = pa.table({"person": person, "time": time, "what": ["hr"] * len(rows), "number": number})
    flat = pa.table({"person": person, "time": time, "hr": number})
    step = Time(kind="step")
    prints = {
        People.read(source, schema, memory=memory).fingerprint()
        for memory in (None, 256 << 20)
        for source, schema in (
            (wide, Schema(time=Time(""), wide=Wide(columns, "hr"), numeric=("hr",))),
            (long, Schema(time=step, parameter="what", value="number", numeric=("hr",))),
            (flat, Schema(time=step, numeric=("hr",))),
        )
    }
    assert len(prints) == 1


@quick
@given(RECORDS, st.floats(0.1, 0.9))
def test_sites_and_persons_are_never_divided(rows: list[tuple], share: float) -> None:
    people = People.read(table(rows), SCHEMA)
    parts = [people.split("person", held_out=share)]
    if people.site_names:
        parts.append(people.split("site", held_out=[people.site_names[0]]))
    parts.append(people.split("region", held_out=["home"], column="w"))
    for rest, out in parts:
        names = [set(part._ids.to_pylist()) for part in (rest, out)]
        assert not names[0] & names[1]
        assert names[0] | names[1] == set(people._ids.to_pylist())
        assert rest.records + out.records == people.records
    _, out = parts[1]
    assert {people.site_names[at] for at in out.site} <= {people.site_names[0]}
