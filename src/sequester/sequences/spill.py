"""Data larger than memory: typed in stretches, sorted on disk, read back by memory mapping.

    source ──stretches──▶ typed.parquet … ──DuckDB sort──▶ columns on disk ──mmap──▶ People

What stays in memory is one stretch, DuckDB's sort buffer, the identifiers, and 4 bytes a record
whenever somebody asks for `owner`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.people import Kind, People
from sequester.sequences.schema import Schema
from sequester.sequences.sources import arrow_reader, open_parts

if TYPE_CHECKING:
    from sequester.sequences.assemble import Rows

PERSON, TIME, ROW, SITE = "__person", "__time", "__row", "__site"
SORT_MEMORY = "1GB"  # DuckDB's share; it spills the rest to the folder
BATCH = 1 << 18  # records written at a time


def read_spilled(source: Any, schema: Schema, folder: Path, facts: ReadFacts) -> People:
    """See `People.read` with `spill`.

    Each stretch is interpreted on its own, so nothing may depend on the whole column: features
    and the form of times must be declared.

    Raises:
        UsageError: SQ-124 for a schema that leaves something to be told from the data.
    """
    _check(schema)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(101, "the spill folder is not empty; give a new one", where="spill")
    kinds, time_kind = _type_stretches(source, schema, folder, facts)
    with duckdb.connect() as database:
        database.execute(f"SET memory_limit='{SORT_MEMORY}'")
        database.execute("SET temp_directory=$folder", {"folder": str(folder / "sort")})
        database.execute("SET preserve_insertion_order=true")
        store = _Store(folder, kinds)
        _write_sorted(database, store, folder)
        store.sites(database, folder, declared=bool(schema.site))
    for stretch in [*folder.glob("typed-*.parquet"), *folder.glob("sites-*.parquet")]:
        stretch.unlink()
    return store.people(time_kind, facts)


def _check(schema: Schema) -> None:
    reasons = {
        "declare numeric, categorical or text": not schema.features,
        "declare time.formats, time.unit or kind = 'step'": bool(schema.time.column)
        and not (schema.time.formats or schema.time.unit or schema.time.kind == "step"),
        "clock times need their whole sequence": schema.time.kind == "clock",
        "static columns need all records of a person": bool(schema.static),
        "long tables need all measurements of a moment": bool(schema.parameter),
        "repeats other than 'keep' need all records of a moment": schema.repeats != "keep",
        "'drop-person' needs all records of a person": schema.bad_values == "drop-person",
        "records without a time have no order to sort by": not schema.time.column,
    }
    if wrong := [reason for reason, applies in reasons.items() if applies]:
        raise UsageError(124, "data that are spilled are read in stretches: " + "; ".join(wrong))


def _type_stretches(
    source: Any, schema: Schema, folder: Path, facts: ReadFacts
) -> tuple[dict[str, Kind], str]:
    """Typed Parquet files in the source's order, one a stretch."""
    from sequester.sequences.reading import interpret

    kinds: dict[str, Kind] = {}
    time_kind, row, stretches = "step", 0, 0
    for part in open_parts(source, schema.layout, facts):
        facts.rows += part.table.num_rows
        rows = interpret(part.table, schema, facts, part.where)
        kinds, time_kind = rows.kinds, rows.time_kind
        pq.write_table(_typed(rows, row), folder / f"typed-{stretches:06d}.parquet")
        if rows.site is not None:
            pq.write_table(_typed_sites(rows), folder / f"sites-{stretches:06d}.parquet")
        row += part.table.num_rows
        stretches += 1
    if not row:
        raise UsageError(107, "the source has no rows: there is nobody in it")
    return kinds, time_kind


def _typed(rows: Rows, first: int) -> pa.Table:
    """One stretch with its keys; people whose rows were all left out keep an empty row."""
    table = rows.table
    for j, name in enumerate(table.column_names):
        if pa.types.is_dictionary(table.schema.field(j).type):
            plain = pa.chunked_array(
                [chunk.dictionary_decode() for chunk in table[name].chunks], pa.large_string()
            )
            table = table.set_column(j, name, plain)
    keys = {
        PERSON: rows.ids,
        TIME: pa.array(rows.time),
        ROW: pa.array(np.arange(first, first + len(rows.ids))),
    }
    whole = pa.table(keys | {name: table[name] for name in table.column_names})
    absent = pc.unique(rows.extra_ids).filter(
        pc.invert(pc.is_in(pc.unique(rows.extra_ids), value_set=rows.ids))
    )
    if len(absent):
        empty = pa.table({PERSON: absent})
        whole = pa.concat_tables([whole, empty], promote_options="default")
    return whole


def _typed_sites(rows: Rows) -> pa.Table:
    """Person and site of every row of a stretch, each pair once."""
    pairs = pa.table({PERSON: rows.site_ids, SITE: rows.site})
    return pairs.group_by([PERSON, SITE]).aggregate([])


def _write_sorted(database: duckdb.DuckDBPyConnection, store: _Store, folder: Path) -> None:
    """Stream the sorted records into the store."""
    stretches = str(folder / "typed-*.parquet")
    columns = ", ".join(_quoted(name) for name in (PERSON, TIME, *store.kinds))
    sorted_rows = database.sql(
        f"SELECT {columns} FROM read_parquet($files) "  # noqa: S608
        f"ORDER BY encode({PERSON}), {TIME} NULLS FIRST, {ROW}",
        params={"files": stretches},
    )
    reader = arrow_reader(sorted_rows, BATCH)
    for batch in reader:
        store.append(pa.Table.from_batches([batch]))
    store.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass
class _Store:
    """Columns on disk in Arrow's own layout, so that mapping them needs no copy."""

    folder: Path
    kinds: dict[str, Kind]
    records: int = 0
    names: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    _files: dict[str, BinaryIO] = field(default_factory=dict)
    _words: dict[str, dict[str, int]] = field(default_factory=dict)
    _length: dict[str, int] = field(default_factory=dict)
    _site: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    _site_names: tuple[str, ...] = ()

    def append(self, batch: pa.Table) -> None:
        """Add sorted rows; a row without a time only names a person."""
        self._count(batch)
        batch = batch.filter(pc.is_valid(batch[TIME]))
        self.records += batch.num_rows
        self._write("time", batch[TIME].to_numpy().astype(np.int64))
        for at, (name, kind) in enumerate(self.kinds.items()):
            column = batch[name].combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks)
            if kind == "numeric":
                numbers = column.cast(pa.float64()).fill_null(np.nan)
                self._write(f"{at}.data", numbers.to_numpy(zero_copy_only=False))
            elif kind == "categorical":
                self._write(f"{at}.data", self._coded(name, column))
            else:
                self._text(at, column.cast(pa.large_string()))

    def _count(self, batch: pa.Table) -> None:
        runs = pc.run_end_encode(batch[PERSON].combine_chunks(), run_end_type=pa.int64())
        runs = runs if isinstance(runs, pa.Array) else runs.chunk(0)
        real = pc.is_valid(batch[TIME]).to_numpy()
        ends = runs.run_ends.to_numpy()
        starts = np.concatenate([[0], ends[:-1]])
        for name, start, end in zip(runs.values.to_pylist(), starts, ends, strict=True):
            if not self.names or self.names[-1] != name:
                self.names.append(name)
                self.counts.append(0)
            self.counts[-1] += int(real[start:end].sum())

    def _coded(self, name: str, column: pa.Array) -> np.ndarray:
        """Codes of words, −1 where missing, growing the dictionary as words turn up."""
        known = self._words.setdefault(name, {})
        coded = pc.dictionary_encode(column)
        table = np.array(
            [known.setdefault(word, len(known)) for word in coded.dictionary.to_pylist()] + [-1],
            dtype=np.int32,
        )
        codes: np.ndarray = table[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return codes

    def _text(self, at: int, column: pa.Array) -> None:
        """Offsets and bytes; a missing text is told from an empty one by a byte of its own."""
        lengths = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        start = self._length.get(str(at), 0)
        ends = start + np.cumsum(lengths, dtype=np.int64)
        if not start and f"{at}.offsets" not in self._files:
            self._write(f"{at}.offsets", np.zeros(1, dtype=np.int64))
        self._write(f"{at}.offsets", ends)
        self._write(f"{at}.there", pc.is_valid(column).to_numpy(zero_copy_only=False))
        self._file(f"{at}.data").write("".join(column.fill_null("").to_pylist()).encode())
        self._length[str(at)] = int(ends[-1]) if len(ends) else start

    def _write(self, name: str, values: np.ndarray) -> None:
        self._file(name).write(np.ascontiguousarray(values).tobytes())

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            path = self.folder / f"column-{name}"
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._files[name] = os.fdopen(handle, "wb")
        return self._files[name]

    def close(self) -> None:
        """Everything is on disk."""
        for file in self._files.values():
            file.close()

    def sites(self, database: duckdb.DuckDBPyConnection, folder: Path, *, declared: bool) -> None:
        """The site of each person.

        Raises:
            UsageError: SQ-127 for people with two sites, or none.
        """
        self._site = np.zeros(len(self.names), dtype=np.int32)
        if not declared:
            return
        found = database.execute(
            f"SELECT {PERSON}, min({SITE}), count(DISTINCT {SITE}) "  # noqa: S608
            f"FROM read_parquet($files) GROUP BY 1 ORDER BY encode({PERSON})",
            {"files": str(folder / "sites-*.parquet")},
        ).fetchall()
        if wrong := sum(row[2] != 1 for row in found):
            raise UsageError(127, f"{wrong} people have several sites, or none; each needs one")
        self._site_names = tuple(sorted({row[1] for row in found}))
        at = {name: i for i, name in enumerate(self._site_names)}
        self._site = np.array([at[row[1]] for row in found], dtype=np.int32)

    def people(self, time_kind: str, facts: ReadFacts) -> People:
        """People over the mapped columns."""
        columns = {}
        for at, (name, kind) in enumerate(self.kinds.items()):
            if kind == "numeric":
                columns[name] = pa.Array.from_buffers(
                    pa.float64(), self.records, [None, self._map(f"{at}.data")]
                )
            elif kind == "categorical":
                codes = np.frombuffer(self._map(f"{at}.data"), dtype=np.int32)
                words = pa.array(list(self._words.get(name, {})), pa.large_string())
                columns[name] = pa.DictionaryArray.from_arrays(
                    pa.array(codes, mask=codes < 0), words
                )
            else:
                there = np.frombuffer(self._map(f"{at}.there"), dtype=bool)
                bits = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
                columns[name] = pa.Array.from_buffers(
                    pa.large_string(),
                    self.records,
                    [bits, self._map(f"{at}.offsets"), self._map(f"{at}.data")],
                )
        return People(
            _ids=pa.array(self.names, pa.large_string()),
            _records=pa.table(columns),
            _static=pa.table({"": pa.nulls(len(self.names))}).select([]),
            offsets=np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64),
            time=np.frombuffer(self._map("time"), dtype=np.int64),
            time_kind=time_kind,
            kinds=self.kinds,
            site_names=self._site_names,
            site=self._site,
            facts=facts,
        )

    def _map(self, name: str) -> pa.Buffer:
        path = self.folder / f"column-{name}"
        if not path.exists() or path.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
