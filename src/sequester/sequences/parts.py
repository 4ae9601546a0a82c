"""What a source yields: parts of rows, each knowing where it came from, within limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

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
    """

    table: pa.Table
    file: int = 1
    files: int = 1
    first_row: int = 1

    def where(self, row: int) -> str:
        """Where row `row` of this part stands, without naming the file."""
        place = f"row {self.first_row + row}"
        return place if self.files == 1 else f"{place} of file {self.file} of {self.files}"


@dataclass
class Parts:
    """All parts as one table, able to say where a row came from."""

    table: pa.Table
    parts: Sequence[Part] = field(default_factory=tuple)

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
    for part in every:
        if sorted(part.table.column_names) != sorted(names):
            raise UsageError(
                102,
                f"file {part.file} of {part.files} has other columns than file {every[0].file}; "
                "read files of one form at a time, or declare names with header = false",
            )
    try:
        table = pa.concat_tables(
            [part.table.select(names) for part in every], promote_options="permissive"
        )
    except pa.ArrowException:
        raise UsageError(
            102, "a column has different types in different files; store it as one type"
        ) from None
    return Parts(table, every)


def check_table(table: pa.Table, where: str = "the source") -> pa.Table:
    """Refuse what no honest table has.

    Raises:
        UsageError: SQ-104 for a repeated column name, SQ-115 for too many columns, or a field too
            long, SQ-106 for a NUL in a text.
    """
    check_names(table.column_names, where)
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            if (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST_FIELD:
                raise UsageError(
                    115,
                    f"a field is longer than {LONGEST_FIELD:,} bytes; split or leave out the text",
                    where=f"column {name}",
                )
            if pc.any(pc.match_substring(column, "\x00")).as_py():
                raise UsageError(
                    106,
                    "the text holds NUL bytes: it is binary, damaged, or in another encoding; "
                    "declare layout.encoding",
                    where=f"column {name}",
                )
    return table


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse repeated names and absurd widths; see `check_table`."""
    if len(names) > MOST_COLUMNS:
        raise UsageError(
            115, f"{where} has {len(names):,} columns; at most {MOST_COLUMNS:,} are read"
        )
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        shown = ", ".join(repr(name) for name in twice[:5])
        raise UsageError(104, f"columns appear more than once in {where}: {shown}; rename one")
