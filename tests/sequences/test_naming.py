"""What stands where names of columns belong may be somebody's record, and no error quotes it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester.core.errors import UsageError
from sequester.sequences import Layout, People, Schema, Time
from sequester.sequences.naming import quoted
from sequester.training.sources import read_people
from sequester.training.study import Data

RECORDS = [
    ["alice.smith@mail.com", "2024-03-01", "71.53", "HIV"],
    ["alice", "monday", "warsaw", "positive"],
    ["Alice Smith", "1", "71.53", "71.53"],
    ["alice", "alice", "17", "17"],
    ["007", "3 March 1971", "", "cancer"],
    ["alice", "time", "depressed", "71.53"],
]
SCHEMAS = {
    "plain": Schema(),
    "declared": Schema(time=Time(column="when"), numeric=("hr", "temp"), categorical=("sex",)),
    "long": Schema(parameter="what", value="value", numeric=("hr",)),
    "ignoring": Schema(numeric=("hr", "spo2"), ignore=("*",)),
}


def refused(source: object, schema: Schema) -> str:
    with pytest.raises(UsageError) as found:
        People.read(source, schema)
    return f"{found.value} {found.value.where}"


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: "|".join(record)[:20])
@pytest.mark.parametrize("form", ["csv", "json", "parquet", "frame", "nul"])
def test_a_first_line_that_is_a_record_is_never_quoted(
    tmp_path: Path, form: str, record: list[str], schema: str
) -> None:
    source: object = tmp_path / f"people.{'jsonl' if form == 'json' else form}"
    rows = [record, ["bob", "2", "3.25", "well"]]
    if form == "csv":
        source.write_text("\n".join(",".join(row) for row in rows) + "\n")
    elif form == "json":
        source.write_text(json.dumps(dict.fromkeys(record, 3)) + "\n")
    else:
        columns = [pa.array(["x\x00" if form == "nul" else "x"]) for _ in record]
        table = pa.table(columns, names=record)
        source = table
        if form == "parquet":
            source = tmp_path / "people.parquet"
            pq.write_table(table, source)
    said = refused(source, SCHEMAS[schema])
    for value in record:
        if len(value) > 2 and value != "time":
            assert value not in said, said


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.emails(),
            st.dates().map(str),
            st.floats(allow_nan=False).map(repr),
            st.uuids().map(str),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_beside_a_real_header_values_are_counted_and_not_quoted(values: list[str]) -> None:
    said = quoted(["person", *values, "heart rate"])
    assert said == f"'person', 'heart rate', {len(values)} more that are not quoted here"


def test_a_misspelt_column_is_found_by_the_names_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("person,Time,heart_rate,HR (1/min)\na,1,2,3\n")
    said = refused(file, Schema())
    assert "'Time'" in said
    assert "'HR (1/min)'" in said
    assert "'heart_rate'" in refused(file, Schema(time=Time(column="Time"), numeric=("HR",)))
    file.write_text("person,time,v,v\na,1,2,3\n")
    assert "columns 3 and 4" in refused(file, Schema(layout=Layout()))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql+odbc", "s3", "duckdb"])
@pytest.mark.parametrize("rest", ["u:SECRETPW@h:5/db", "/tmp/x?password=SECRETPW", "h/*?SECRETPW"])
def test_no_error_repeats_an_address(scheme: str, rest: str) -> None:
    for source in (f"{scheme}://{rest}", Path(f"{scheme}://{rest}")):
        assert "SECRETPW" not in refused(source, Schema())
    with pytest.raises(UsageError) as found:
        read_people(Data(source=f"{scheme}://{rest}", population=9), beside=Path("/tmp"))
    assert found.value.code == 271
    assert "SECRETPW" not in f"{found.value} {found.value.where}"
