"""The same people, however they are kept: one fingerprint for every kind of source."""

import bz2
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from sequester.core.errors import UsageError
from sequester.sequences import People, Query, Schema, Time
from tests.ledger.server import Server, programs

SCHEMA = Schema(
    time=Time("time", kind="step"), numeric=("v",), categorical=("w",), text=("said",), site="town"
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(7)
    people = rng.permutation(np.repeat(np.arange(40), 25))
    names = [f"{'ÅØé'[i % 3]}{i:03d}" for i in people]
    values = [None if v > 1.5 else float(v) for v in rng.normal(size=1000)]
    return pa.table(
        {
            "person": names,
            "time": pa.array(rng.integers(0, 30, 1000)),
            "v": pa.array(values, pa.float64()),
            "w": [["walk", "bus", None][i] for i in rng.integers(0, 3, 1000)],
            "said": [["hello, you", 'a "quote"', "ümlaut"][i] for i in rng.integers(0, 3, 1000)],
            "town": [["north", "south"][i % 2] for i in people],
        }
    )


@pytest.fixture(scope="module")
def expected(table: pa.Table) -> str:
    people = People.read(table, SCHEMA)
    assert (len(people), people.records, people.site_names) == (40, 1000, ("north", "south"))
    return people.fingerprint()


def as_csv(table: pa.Table, path: Path) -> Path:
    pacsv.write_csv(table, path)
    return path


def as_json(table: pa.Table, path: Path) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in table.to_pylist()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def as_parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path)
    return path


def as_arrow(table: pa.Table, path: Path) -> Path:
    feather.write_feather(table, path)
    return path


FILES = {
    "a.csv": as_csv,
    "a.csv.gz": as_csv,
    "a.jsonl": as_json,
    "a.jsonl.gz": as_json,
    "a.ndjson.bz2": as_json,
    "a.parquet": as_parquet,
    "a.arrow": as_arrow,
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, table: pa.Table, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FILES[name](table, path)
    if pack := {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix):
        path.write_bytes(pack(path.read_bytes()))
    assert People.read(path, SCHEMA).fingerprint() == expected
    assert People.read(str(path), SCHEMA).fingerprint() == expected


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.feather.zst"])
def test_a_packed_table_is_not_taken_for_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"person,time,v\na,1,2\n"))
    with pytest.raises(UsageError, match=r"SQ-101.*unpack"):
        People.read(tmp_path / name, SCHEMA)


FRAMES = {
    "pandas": lambda t: t.to_pandas(),
    "pandas with arrow": lambda t: t.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "polars lazy": lambda t: pl.from_arrow(t).lazy(),
    "record batch": lambda t: t.combine_chunks().to_batches()[0],
    "dictionary": lambda t: t.set_column(0, "person", t["person"].dictionary_encode()),
    "shuffled": lambda t: t.take(np.random.default_rng(1).permutation(t.num_rows)),
    "columns turned": lambda t: t.select(t.column_names[::-1]),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames(kind: str, table: pa.Table, expected: str) -> None:
    assert People.read(FRAMES[kind](table), SCHEMA).fingerprint() == expected


def without(schema: Schema, **more: object) -> Schema:
    import dataclasses

    return dataclasses.replace(schema, **more)


def test_a_folder_with_the_person_in_a_column(
    table: pa.Table, expected: str, tmp_path: Path
) -> None:
    for i in range(4):
        as_csv(table.slice(250 * i, 250), tmp_path / f"part-{i}.csv")
    assert People.read(tmp_path, SCHEMA).fingerprint() == expected
    assert People.read(f"{tmp_path}/part-*.csv", SCHEMA).fingerprint() == expected


def test_a_folder_with_person_and_site_in_its_names(
    table: pa.Table, expected: str, tmp_path: Path
) -> None:
    frame = table.to_pandas()
    for (town, person), part in frame.groupby(["town", "person"]):
        folder = tmp_path / town / person
        folder.mkdir(parents=True)
        rows = pa.Table.from_pandas(part.drop(columns=["town", "person"]), preserve_index=False)
        as_csv(rows, folder / "log.csv")
        as_csv(rows, tmp_path / town / f"{person}.csv")
    for pattern in ("{town}/{person}/log.csv", "{town}/{person}.csv", "**/{town}/{person}/*.csv"):
        people = People.read(f"{tmp_path}/{pattern}", SCHEMA)
        assert people.fingerprint() == expected, pattern


def test_files_that_name_people_never_do_so_in_an_error(tmp_path: Path) -> None:
    (tmp_path / "kanarienvogel.csv").write_text("time,v\n1,2\n2,3,4\n")
    (tmp_path / "zeisig.csv").write_text("time,v\n1,2\n")
    with pytest.raises(UsageError, match=r"SQ-105.*row 3, file 1 of 2") as refusal:
        People.read(f"{tmp_path}/{{person}}.csv", Schema(numeric=("v",)))
    assert "kanarienvogel" not in str(refusal.value)


def test_duckdb(table: pa.Table, expected: str, tmp_path: Path) -> None:
    as_parquet(table, tmp_path / "a.parquet")
    over_files = Query(f"SELECT * FROM '{tmp_path}/a.parquet'")
    assert People.read(over_files, SCHEMA).fingerprint() == expected
    with duckdb.connect(str(tmp_path / "a.db")) as database:
        database.register("given", table)
        database.execute("CREATE TABLE log AS SELECT * FROM given")
    query = Query("SELECT * FROM log", f"duckdb:{tmp_path}/a.db")
    assert People.read(query, SCHEMA).fingerprint() == expected
    with pytest.raises(UsageError, match="SQ-101"):  # opened read-only
        People.read(Query("DROP TABLE log", query.url), SCHEMA)
    assert People.read(query, SCHEMA).fingerprint() == expected


WRITES = {
    "copy": "COPY (SELECT 1) TO '{file}'",
    "attach": "ATTACH '{file}' AS other",
    "after reading": "SELECT 1; COPY (SELECT 1) TO '{file}'",
    "nothing": " ",
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_query_writes_no_file(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    with pytest.raises(UsageError, match=r"SQ-101.*SELECT"):
        People.read(Query(WRITES[kind].format(file=file)), SCHEMA)
    assert not file.exists()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL's programs are missing: apt-get install postgresql")
    server = Server(folder)
    yield server.database()
    server.stop()


@pytest.mark.postgres
def test_postgres(postgres: str, table: pa.Table, expected: str) -> None:
    import psycopg

    with psycopg.connect(postgres) as database, database.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE log (person text, time bigint, v double precision, w text, said text, "
            "town text)"
        )
        with cursor.copy("COPY log FROM STDIN") as copy:
            for row in table.to_pylist():
                copy.write_row(tuple(row.values()))
    assert People.read(Query("SELECT * FROM log", postgres), SCHEMA).fingerprint() == expected
    with pytest.raises(UsageError, match="SQ-101") as refusal:
        People.read(Query("SELECT * FROM nothing", postgres), SCHEMA)
    assert postgres not in str(refusal.value)
    numeric = Query("SELECT person, time, v::numeric AS v FROM log WHERE v IS NOT NULL", postgres)
    exact = People.read(numeric, Schema(numeric=("v",)))
    assert np.isfinite(exact.values(["v"])[0]).all()
    on_disk = People.read(Query("SELECT * FROM log", postgres), SCHEMA, memory=256 << 20)
    assert on_disk.fingerprint() == expected


@pytest.mark.postgres
def test_postgres_types_and_shapes(postgres: str) -> None:
    """Stamps with and without a zone, intervals, big integers as names; long and wide."""
    import psycopg

    with psycopg.connect(postgres) as database, database.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE seen AS SELECT (9007199254740992 + i % 3)::bigint AS person, "
            "timestamptz '2024-05-01 12:00+02' + i * interval '1 hour' AS at, "
            "timestamp '2024-05-01 10:00' + i * interval '1 hour' AS wall, "
            "CASE i % 2 WHEN 0 THEN 'hr' ELSE 'bp' END AS what, i::real AS number, "
            "DATE '2024-05-01' AS day FROM generate_series(0, 59) AS i"
        )
    flat = Schema(time=Time("at"), numeric=("number",), ignore=("*",))
    zoned = People.read(Query("SELECT * FROM seen", postgres), flat)
    walled = People.read(
        Query("SELECT * FROM seen", postgres),
        Schema(time=Time("wall"), numeric=("number",), ignore=("*",)),
    )
    assert zoned._ids.to_pylist() == [str(2**53), str(2**53 + 1), str(2**53 + 2)]
    assert zoned.fingerprint() == walled.fingerprint()  # 12:00+02 is 10:00 UTC
    long = Schema(
        time=Time("at"), parameter="what", value="number", numeric=("hr", "bp"), ignore=("*",)
    )
    pivoted = People.read(Query("SELECT * FROM seen", postgres), long)
    wide = People.read(
        Query(
            "SELECT person, at, max(number) FILTER (WHERE what = 'hr') AS hr, "
            "max(number) FILTER (WHERE what = 'bp') AS bp FROM seen GROUP BY person, at",
            postgres,
        ),
        Schema(time=Time("at"), numeric=("hr", "bp")),
    )
    assert pivoted.fingerprint() == wide.fingerprint()
    days = People.read(
        Query("SELECT person, day, number FROM seen", postgres),
        Schema(time=Time("day"), numeric=("number",)),
    )
    assert days.time_kind == "absolute"
    refused = Query("DELETE FROM seen", postgres)
    with pytest.raises(UsageError, match="SQ-101"):
        People.read(refused, flat)
    assert People.read(Query("SELECT * FROM seen", postgres), flat).records == 60


# ------------------------------------------------------------------ other shapes


def test_long_and_wide_tables_hold_the_same(table: pa.Table) -> None:
    rng = np.random.default_rng(3)
    values = np.round(rng.normal(size=(6, 4)), 3)
    names = [f"p{i}" for i in range(6)]
    moments = ("t0", "t1", "t2", "t3")
    wide = pa.table({"person": names} | {m: values[:, j] for j, m in enumerate(moments)})
    from sequester.sequences import Wide

    melted = People.read(wide, Schema(time=Time(""), wide=Wide(moments, "hr"), numeric=("hr",)))
    long = pa.table(
        {
            "person": np.repeat(names, 4),
            "time": np.tile(np.arange(4), 6),
            "what": ["hr"] * 24,
            "number": values.ravel(),
        }
    ).take(rng.permutation(24))
    pivoted = People.read(
        long, Schema(time=Time(kind="step"), parameter="what", value="number", numeric=("hr",))
    )
    assert melted.fingerprint() == pivoted.fingerprint()


def test_a_long_table_keeps_the_second_of_two_measurements() -> None:
    long = pa.table(
        {
            "person": ["a"] * 4,
            "time": [1, 1, 1, 2],
            "what": ["hr", "hr", "temp", "hr"],
            "number": [60.0, 90.0, 36.6, 61.0],
        }
    )
    declared = {"parameter": "what", "value": "number", "numeric": ("hr", "temp")}
    kept = People.read(long, Schema(**declared))
    assert kept.column("hr").to_pylist() == [60.0, 90.0, 61.0]
    assert kept.column("temp").to_pylist() == [36.6, None, None]
    assert kept.facts.conflicted_people == 1
    mean = People.read(long, Schema(**declared, repeats="mean"))
    assert mean.column("hr").to_pylist() == [75.0, 61.0]
    assert mean.column("temp").to_pylist() == [36.6, None]
