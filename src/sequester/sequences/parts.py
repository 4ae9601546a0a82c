"""What a source yields: parts of rows, each knowing where it came from, within limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sequester.core.errors import UsageError

MOST_COLUMNS = 10_000
LONGEST_FIELD = 1 << 20  # bytes of text in one field
MOST_ROWS_PER_BYTE = 64  # a Parquet file that declares more holds nothing but repetition
MOST_INFLATION = 200  # times its size that a compressed text may grow to
FREE_INFLATION = 64 << 20  # bytes that are allowed whatever the ratio


@dataclass(frozen=True)
class Part:
    """Rows of one file, or a stretch of them.

    Attributes:
        table: The columns, all text where the source is text.
        file: Number of the file in alphabetical order, from 1; its name may be a person's.
        files: How many files there are; 1 for a single one.
        first_row: Number of the first row in its file; the header, if any, is row 1.
        loose: A column that is absent here may be in another part: its values are missing.
    """

    table: pa.Table
    file: int = 1
    files: int = 1
    first_row: int = 1
    loose: bool = False

    def piece(self, start: int, rows: int) -> Part:
        """Rows `start..start+rows-1`, which know where they stand."""
        table = self.table.slice(start, rows)
        return replace(self, table=table, first_row=self.first_row + start)

    def where(self, row: int) -> str:
        """Where row `row` of this part stands, without naming the file."""
        place = f"row {self.first_row + row}"
        return place if self.files == 1 else f"{place} of file {self.file} of {self.files}"


@dataclass
class Parts:
    """All parts as one table, able to say where a row came from."""

    table: pa.Table
    parts: Sequence[Part] = field(default_factory=tuple)
    loose: bool = False

    def where(self, row: int) -> str:
        """Where row `row` of the whole table stands in its source."""
        for part in self.parts:
            if row < part.table.num_rows:
                return part.where(row)
            row -= part.table.num_rows
        return "a row of the source"


def join(parts: Iterator[Part]) -> Parts:
    """One table of all parts.

    Raises:
        UsageError: SQ-107 when there is no part; SQ-102 when files differ in their columns.
    """
    every = list(parts)
    if not every:
        raise UsageError(107, "the source holds no rows and no columns: nothing to read")
    names = every[0].table.column_names
    loose = all(part.loose for part in every)
    for part in every:
        if not loose and sorted(part.table.column_names) != sorted(names):
            raise UsageError(
                102,
                f"file {part.file} of {part.files} has other columns than file {every[0].file}; "
                "read files of one form at a time, or declare names with header = false",
            )
    tables = [part.table if loose else part.table.select(names) for part in every]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        raise UsageError(
            102, "a column has different types in different files; store it as one type"
        ) from None
    return Parts(table, every, loose=loose)


def check_table(table: pa.Table, where: str = "the source") -> pa.Table:
    """Refuse what no honest table has.

    Raises:
        UsageError: SQ-104 for a repeated column name, SQ-115 for too many columns, or a field too
            long, SQ-106 for a NUL in a text.
    """
    check_names(table.column_names, where)
    for at, column in enumerate(table.columns, 1):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            for chunk in column.chunks:
                _check_text(chunk, at)
    return table


def _check_text(texts: pa.Array, column: int) -> None:
    starts, data = buffers(texts)
    if int(np.diff(starts).max(initial=0)) > LONGEST_FIELD:
        raise UsageError(
            115,
            f"a field is longer than {LONGEST_FIELD:,} bytes; split or leave out the text",
            where=f"column {column}",
        )
    if not data[starts[0] : starts[-1]].all():
        raise UsageError(
            106,
            "the text holds NUL bytes: it is binary, damaged, or in another encoding; "
            "declare layout.encoding",
            where=f"column {column}",
        )


def buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where each text begins, int `(texts + 1,)`, and the bytes of all: no copies."""
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    if not len(texts) or offsets is None:
        return np.zeros(1, dtype=kind), np.zeros(0, dtype=np.uint8)
    starts = np.frombuffer(offsets, dtype=kind)[texts.offset : texts.offset + len(texts) + 1]
    return starts, np.frombuffer(data or b"", dtype=np.uint8)


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse repeated names and absurd widths; see `check_table`."""
    if len(names) > MOST_COLUMNS:
        raise UsageError(
            115, f"{where} has {len(names):,} columns; at most {MOST_COLUMNS:,} are read"
        )
    first: dict[str, int] = {}
    for at, name in enumerate(names, 1):
        if (before := first.setdefault(name, at)) != at:
            # Places, not names: without a header they are somebody's values.
            raise UsageError(
                104,
                f"columns {before} and {at} of {where} have one name; rename one, or declare "
                "layout.names if the first line is a record",
            )


def whole(column: pa.ChunkedArray) -> pa.Array:
    """One array of a column; dictionaries of its chunks become one."""
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.unify_dictionaries().combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        return pa.array([], column.type) if joined.num_chunks == 0 else joined.chunk(0)
    return joined
