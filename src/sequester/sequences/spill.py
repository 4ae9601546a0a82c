"""Data larger than memory: typed in stretches, sorted on disk, read back by memory mapping.

    source ──stretches──▶ typed rows ──DuckDB sort──▶ moments ──▶ columns on disk ──mmap──▶ People

What stays in memory is one stretch, DuckDB's sort buffer, and a few numbers a person. Everything
on disk lies in a folder that its owner alone can enter; the columns are unlinked as soon as they
are mapped, so that nothing is left behind, even by a process that is killed later.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequester.core.errors import UsageError
from sequester.sequences.assemble import GONE, Records, Settler
from sequester.sequences.facts import ReadFacts
from sequester.sequences.interpret import Interpreter, Typed
from sequester.sequences.mapped import MappedColumns, Words
from sequester.sequences.parts import Part, Parts, join
from sequester.sequences.repeats import changes
from sequester.sequences.schema import Schema
from sequester.sequences.sources import arrow_reader

PERSON, TIME, RANK = "__person", "__time", "__rank"
LEAST_MEMORY = 256 << 20  # bytes; reading takes about 190 MB whatever the size of the data
OURS = 64 << 20  # bytes that DuckDB is given less than half of the memory
STRETCH_SHARE = 16  # a stretch of raw rows takes this part of the memory, its typed copies more
MOST_ROWS = 1 << 18  # of a stretch, or of a batch of sorted rows


@contextmanager
def read_spilled(
    parts: Iterable[Part],
    reader: Interpreter,
    schema: Schema,
    memory: int,
    folder: str | Path | None,
) -> Iterator[Spilled]:
    """Type a source's rows onto disk, in a private folder that is gone afterwards.

    Each stretch is read on its own, so nothing may depend on the whole column: features and the
    form of times must be declared.

    Args:
        parts: The source.
        reader: Reads the stretches.
        schema: What the columns are.
        memory: Bytes to work with.
        folder: Where the private folder is made; the system's place for temporary files if None.

    Raises:
        UsageError: SQ-124 for a schema that leaves something to be told from the data, or too
            little memory; SQ-107 for a source without rows.
    """
    if not schema.features:
        raise UsageError(
            124,
            "data larger than memory are read in stretches, so columns must be declared as "
            "numeric, categorical or text",
        )
    if memory < LEAST_MEMORY:
        raise UsageError(
            124, f"memory must be at least {LEAST_MEMORY >> 20} MiB, got {memory >> 20} MiB"
        )
    private = Path(tempfile.mkdtemp(prefix="sequester-", dir=folder))  # mode 0700
    try:
        with closing(Spilled(private, reader, schema, memory)) as spilled:
            for stretch in stretches(parts, memory // STRETCH_SHARE):
                spilled.take(stretch)
            yield spilled
    finally:
        shutil.rmtree(private)


def stretches(parts: Iterable[Part], most: int) -> Iterator[Parts]:
    """Rows in portions of about `most` bytes: large parts are cut, small ones joined."""
    waiting: list[Part] = []
    size = rows = 0
    for part in parts:
        for piece in _pieces(part, most):
            if waiting and (size + piece.table.nbytes > most or rows >= MOST_ROWS):
                yield join(iter(waiting))
                waiting, size, rows = [], 0, 0
            waiting.append(piece)
            size += piece.table.nbytes
            rows += piece.table.num_rows
    if waiting:
        yield join(iter(waiting))


def _pieces(part: Part, most: int) -> Iterator[Part]:
    rows = part.table.num_rows
    each = max(1, min(MOST_ROWS, rows * most // max(part.table.nbytes, 1)))
    for start in range(0, max(rows, 1), each):
        yield part.piece(start, each)


class Spilled:
    """Typed rows on disk, and then the records that they make."""

    def __init__(self, folder: Path, reader: Interpreter, schema: Schema, memory: int) -> None:
        """In a folder that is private and empty."""
        self._folder = folder
        self._reader = reader
        self._schema = schema
        self._memory = memory
        self._words = Words()
        self._rows = np.zeros(0, dtype=np.int64)  # typed rows of each person's code
        self._file: pq.ParquetWriter | None = None
        self._names: list[str] = []
        self._seen: dict[str, None] = {}

    def take(self, stretch: Parts) -> None:
        """Type one stretch of the source and put it on disk."""
        self._reader.facts.rows += stretch.table.num_rows
        self._seen.update(dict.fromkeys(stretch.table.column_names))
        raw = self._with_absent(stretch.table) if stretch.loose else stretch.table
        typed = self._reader.take(raw, stretch.where)
        table = self._plain(typed)
        if self._file is None:
            handle = os.open(self._typed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.close(handle)
            self._file = pq.ParquetWriter(
                self._typed, table.schema, compression="lz4", use_dictionary=False
            )
        self._file.write_table(table)
        self._rows = np.bincount(typed.person, minlength=len(self._reader.persons)) + np.pad(
            self._rows, (0, len(self._reader.persons) - len(self._rows))
        )
        pa.default_memory_pool().release_unused()

    def close(self) -> None:
        """No more rows are taken."""
        if self._file is not None:
            self._file.close()

    def _with_absent(self, table: pa.Table) -> pa.Table:
        """The stretch with the columns that only other stretches have."""
        for name in self._reader.needed():
            if name not in table.column_names:
                absent = pa.nulls(table.num_rows, pa.large_string())
                table = table.append_column(name, absent)
        return table

    @property
    def _typed(self) -> Path:
        return self._folder / "typed.parquet"

    def _plain(self, typed: Typed) -> pa.Table:
        """Typed rows as DuckDB sorts them: words as codes, columns without the source's names."""
        self._names = [f.name for f in typed.table.schema if not pa.types.is_null(f.type)]
        columns: dict[str, pa.Array | pa.ChunkedArray | np.ndarray] = {
            PERSON: typed.person,
            TIME: typed.time,
        }
        for at, name in enumerate(self._names):
            column = typed.table[name]
            words = pa.types.is_dictionary(column.type)
            columns[f"c{at}"] = self._words.code(name, column) if words else column
        return pa.table(columns)

    def records(self, facts: ReadFacts) -> Records:
        """The records, over columns on disk that are already unlinked.

        Raises:
            UsageError: SQ-107 where there was no row; SQ-120 for repeats that are refused.
        """
        if self._file is None:
            raise UsageError(107, "the source has no rows: there is nobody in it")
        self._file.close()
        self._reader.check_columns(list(self._seen), self._reader.needed())
        _, rank = self._reader.persons.ranked()
        gone = np.zeros(len(rank), dtype=bool)
        gone[: len(self._rows)] = self._reader.gone[: len(self._rows)]
        facts.drop(GONE, int(self._rows[gone[: len(self._rows)]].sum()))
        settler = Settler(self._reader, self._schema, len(rank))
        kinds = {n: k for n, k in self._reader.kinds.items() if n not in self._schema.static}
        store = MappedColumns(self._folder, kinds, self._words)
        with closing(store):
            for rows in _moments(self._sorted(rank, gone)):
                owner, time = rows[RANK].to_numpy(), rows[TIME].to_numpy()
                named = rows.drop_columns([RANK, TIME]).rename_columns(self._names)
                table = self._words.coded(named)
                store.append(*settler.take(owner, time, table))
                pa.default_memory_pool().release_unused()
        settler.finish(facts)
        time, table = store.map()
        return Records(settler.counts, time, table)

    def _sorted(self, rank: np.ndarray, gone: np.ndarray) -> Iterator[pa.Table]:
        """Rows in order of (person, time), stable in the source's order."""
        people = pa.table({"code": np.arange(len(rank), dtype=np.int32), RANK: rank})
        people = people.filter(pa.array(~gone))
        path = str(self._typed).replace("'", "''")
        columns = ", ".join([RANK, TIME, *(f"c{at}" for at in range(len(self._names)))])
        with duckdb.connect() as database:
            database.execute(f"SET memory_limit='{(self._memory // 2 - OURS) >> 20}MB'")
            database.execute("SET temp_directory=$folder", {"folder": str(self._folder / "sort")})
            database.execute("SET threads=2")
            database.register("people", people)
            rows = database.sql(
                f"SELECT {columns} FROM "  # noqa: S608
                f"read_parquet('{path}', file_row_number=true) JOIN people ON {PERSON} = code "
                f"ORDER BY {RANK}, {TIME}, file_row_number",
            )
            try:
                for batch in arrow_reader(rows, MOST_ROWS):
                    yield pa.Table.from_batches([batch])
            except duckdb.Error as error:
                raise UsageError(
                    124,
                    f"sorting on disk failed ({type(error).__name__}): give more memory, or a "
                    "spill folder with more room",
                ) from None


def _moments(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Stretches of sorted rows that never divide a (person, time)."""
    waiting: pa.Table | None = None
    for batch in batches:
        rows = batch if waiting is None else pa.concat_tables([waiting, batch])
        new = changes(rows[RANK].to_numpy(), rows[TIME].to_numpy())
        last = int(np.flatnonzero(new)[-1]) if len(new) else 0
        if last:
            yield rows.slice(0, last)
        waiting = rows.slice(last)
    if waiting is not None and waiting.num_rows:
        yield waiting
