"""What a source says of itself before anybody's record is looked at: its columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.interpret import Interpreter
from sequester.sequences.parts import check_table
from sequester.sequences.people import People
from sequester.sequences.schema import Layout, Schema, Time
from sequester.sequences.sources import ARROW, PARQUET
from sequester.sequences.textfile import PACKED, header_of

_NOBODY = 107
_MISSING = 101
_ROWS_NAME_COLUMNS = (".jsonl", ".ndjson")


def missing_columns(source: str | Path, schema: Schema) -> tuple[str, ...]:
    """Declared columns that a file has not, as far as its first line or its types tell.

    No record decides the answer, whatever is declared. So a line that a declaration makes the
    header tells nothing, and of a first line without the person's column nothing else is told: it
    may be somebody's record. Of many files, and of lines of JSON, nothing is told at all. What
    only records can tell raises nothing here.

    Args:
        source: As `People.read` takes a path.
        schema: What is declared.

    Raises:
        UsageError: SQ-101 without a file; SQ-1xx for columns that are there and cannot be what
            they are declared to be, whatever they hold.
    """
    path = Path(source)
    pattern = any(sign in str(source) for sign in "{*")
    if not (path.exists() or pattern):
        raise UsageError(_MISSING, "there is no such file")
    if not path.is_file() or path.suffix in _ROWS_NAME_COLUMNS or schema.layout.skip_lines:
        return ()
    table = _columns(path, schema.layout)
    if table is None:
        return ()
    here = set(table.column_names)
    if schema.person not in here:
        return (schema.person,)
    needed = Interpreter(schema, ReadFacts()).needed()
    if missing := [name for name in needed if name not in here]:
        return tuple(missing)
    # How a time is written, only records say: of no rows, a time's form cannot be told.
    timeless = replace(schema, time=Time(column=""))
    try:
        written = [name for name in (schema.time.column, schema.time.clock_column) if name]
        People.read(table.drop_columns(written), timeless)
    except UsageError as problem:
        if problem.code != _NOBODY:
            raise
    return ()


def _columns(path: Path, layout: Layout) -> pa.Table | None:
    """A table with the file's columns and no row; None where that cannot be told without rows."""
    try:
        if path.suffix in PARQUET:
            return check_table(pq.read_schema(path).empty_table())
        if path.suffix in ARROW:
            with ipc.open_file(path) as file:
                return check_table(file.schema.empty_table())
        if path.suffix in PACKED and path.with_suffix("").suffix in PARQUET | ARROW:
            return None
        names = header_of(path, layout)
    except (UsageError, OSError, pa.ArrowException):
        return None
    return pa.table({name: pa.array([], pa.large_string()) for name in names})
