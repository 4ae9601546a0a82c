"""Opening whatever holds people's records: files, folders, frames, queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import narwhals.stable.v2 as nw
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import MOST_ROWS_PER_BYTE, Part, check_table
from sequester.sequences.schema import Layout
from sequester.sequences.textfile import PACKED, read_text, unpacked

BATCH_ROWS = 1 << 20
BATCH_BYTES = 4 << 20  # of raw rows that are decoded at a time
LONGEST_LINE = 16 << 20  # bytes of one JSON object, as of one row of text
PARQUET = {".parquet", ".pq"}
ARROW = {".arrow", ".feather", ".ipc"}
_JSON = {".jsonl", ".ndjson"}


@dataclass(frozen=True)
class Query:
    """Rows of a database.

    Attributes:
        sql: One SELECT statement.
        url: `duckdb:` for a query over files, `duckdb:path.db` for a DuckDB file (opened
            read-only), or a `postgresql://` address; not shown by `repr`, it may hold a password.
    """

    sql: str
    url: str = field(default="duckdb:", repr=False)


def open_parts(source: Any, layout: Layout, facts: ReadFacts) -> Iterator[Part]:
    """The source's rows in parts.

    Raises:
        UsageError: SQ-101 for what is not a source, and what each kind of source refuses.
    """
    if isinstance(source, Query):
        yield from _query(source)
    elif isinstance(source, pa.Table | pa.RecordBatch):
        table = source if isinstance(source, pa.Table) else pa.Table.from_batches([source])
        yield Part(check_table(table))
    elif isinstance(source, str | Path):
        yield from _paths(str(source), layout, facts)
    else:
        yield Part(check_table(_frame(source)))


# ---------------------------------------------------------------------- files and folders


def _paths(pattern: str, layout: Layout, facts: ReadFacts) -> Iterator[Part]:
    path = Path(pattern)
    if path.is_file():
        yield from _file(path, layout, facts)
        return
    if path.is_dir():
        pattern = f"{pattern.rstrip('/')}/*"
    elif not re.search(r"[{*]", pattern):
        raise UsageError(
            101,
            f"there is no file {_path_only(pattern)!r}; give a file, a folder, or a path with "
            "{person} or * for many files",
        )
    found = matching_files(pattern)
    for number, (file, given) in enumerate(found, 1):
        try:
            for part in _file(file, layout, facts):
                table = part.table
                for name, value in given.items():
                    constant = pa.array([value], pa.large_string())
                    if name in table.column_names:
                        raise UsageError(
                            104, f"{{{name}}} of the path is also a column of the file; rename one"
                        )
                    repeated = pa.DictionaryArray.from_arrays(
                        pa.array(memoryview(bytes(4 * table.num_rows)).cast("i"), pa.int32()),
                        constant,
                    ).dictionary_decode()
                    table = table.append_column(name, repeated)
                yield replace(part, table=table, file=number, files=len(found))
        except UsageError as error:
            place = f"{error.where}, " if error.where else ""
            raise error.at(f"{place}file {number} of {len(found)}") from None


def _path_only(given: str) -> str:
    """What was given as a path, without what may be a password in an address."""
    scheme, sign, _ = given.partition("://") if "://" in given else given.partition(":/")
    return f"{scheme}{sign}…" if sign else given


def matching_files(pattern: str) -> list[tuple[Path, dict[str, str]]]:
    """Files that fit a path with `{name}` and `*`, and what each `{name}` stands for.

    `{name}` and `*` stay within one folder's name; `**` spans folders. Symbolic links are not
    followed: what they point to was not offered.

    Raises:
        UsageError: SQ-101 when no file fits.
    """
    fixed = Path(re.split(r"[{*]", pattern, maxsplit=1)[0] + "x").parent
    regex = _regex(pattern)
    found = []
    for folder, _, files in fixed.walk() if hasattr(fixed, "walk") else _walk(fixed):
        for name in files:
            path = folder / name
            fits = regex.fullmatch(path.as_posix())
            if fits and not path.is_symlink():
                found.append((path, fits.groupdict()))
    if not found:
        raise UsageError(
            101, f"no file fits {_path_only(pattern)!r}; check the folder and the braces"
        )
    return sorted(found, key=lambda pair: pair[0].as_posix())


def _walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    import os

    for folder, folders, files in os.walk(root):
        yield Path(folder), folders, files


def _regex(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"(\{\w+\}|\*\*/|\*\*|\*)", Path(pattern).as_posix())
    spelled = []
    for piece in pieces:
        if piece == "**/":
            spelled.append("(?:.*/)?")
        elif piece == "**":
            spelled.append(".*")
        elif piece == "*":
            spelled.append("[^/]*")
        elif re.fullmatch(r"\{\w+\}", piece):
            spelled.append(f"(?P<{piece[1:-1]}>[^/]+)")
        else:
            spelled.append(re.escape(piece))
    try:
        return re.compile("".join(spelled))
    except re.error:
        raise UsageError(
            101, f"a brace name repeats or starts with a digit in {pattern!r}"
        ) from None


def _file(path: Path, layout: Layout, facts: ReadFacts) -> Iterator[Part]:
    kind = path.suffix.lower()
    if kind in PACKED:
        kind = path.with_suffix("").suffix.lower()
        if kind in PARQUET | ARROW:
            raise UsageError(101, f"a {kind} file is not read packed; unpack it first")
    if kind in PARQUET:
        yield from _parquet(path)
    elif kind in ARROW:
        yield from _arrow(path)
    elif kind in _JSON:
        yield from _json_lines(path)
    else:
        yield from read_text(path, layout, facts)


def _parquet(path: Path) -> Iterator[Part]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, buffer_size=1 << 20) as file:
            meta, size = file.metadata, path.stat().st_size
            rows = meta.num_rows
            if rows > MOST_ROWS_PER_BYTE * size:
                raise UsageError(
                    115,
                    f"the Parquet file declares {rows:,} rows in {size:,} bytes; no real table "
                    "packs so well, so it is refused before memory is spent",
                )
            unpacked = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
            at_once = max(1, min(BATCH_ROWS, rows * BATCH_BYTES // max(unpacked, 1)))
            first = 1
            for batch in file.iter_batches(at_once):
                yield Part(check_table(pa.Table.from_batches([batch])), first_row=first)
                first += batch.num_rows
            if not rows:
                yield Part(check_table(file.schema_arrow.empty_table()))
    except (pa.ArrowException, OSError):
        raise UsageError(
            126, "the Parquet file is damaged or cut short; copy it again from its origin"
        ) from None


def _arrow(path: Path) -> Iterator[Part]:
    try:
        with ipc.open_file(pa.memory_map(str(path))) as file:
            first = 1
            for at in range(file.num_record_batches):
                table = pa.Table.from_batches([file.get_batch(at)])
                yield Part(check_table(table), first_row=first)
                first += table.num_rows
            if not file.num_record_batches:
                yield Part(check_table(file.schema.empty_table()))
    except (pa.ArrowException, OSError):
        raise UsageError(126, "the Arrow file is damaged or cut short; copy it again") from None


def _json_lines(path: Path) -> Iterator[Part]:
    """One object a line; numbers stay the text they are, so that long identifiers survive."""
    rows: list[dict[str, str | None]] = []
    size, first, number = 0, 1, 0
    with unpacked(path) as stream:
        while line := _line(stream):
            number += 1
            if len(line) == LONGEST_LINE:
                raise UsageError(
                    115,
                    f"a line is longer than {LONGEST_LINE:,} bytes; no record is so long",
                    where=f"line {number}",
                )
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                rows.append(_json_object(line, number))
                size += len(line)
            if size > BATCH_BYTES:
                yield _json_part(rows, first)
                rows, size, first = [], 0, number + 1
    if rows:
        yield _json_part(rows, first)
    elif first == 1:
        raise UsageError(107, "the file is empty; check that it was exported")


def _line(stream: BinaryIO) -> bytes:
    try:
        return stream.readline(LONGEST_LINE)
    except OSError:
        raise UsageError(126, "the file is damaged or cut short; copy it again") from None


def _json_part(rows: list[dict[str, str | None]], first: int) -> Part:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pa.array([row.get(name) for row in rows], pa.large_string()) for name in names}
    return Part(check_table(pa.table(columns)), first_row=first, loose=True)


class _TwiceError(Exception):
    """An object names a field twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_once, parse_int=str, parse_float=str, parse_constant=str
)


def _json_object(line: bytes, number: int) -> dict[str, str | None]:
    where = f"line {number}"
    try:
        found = _DECODER.decode(line.decode())
    except UnicodeDecodeError:
        raise UsageError(
            106, "JSON lines are UTF-8 and this file is not; convert it", where=where
        ) from None
    except _TwiceError:
        raise UsageError(104, "an object names a field twice", where=where) from None
    except (ValueError, RecursionError):
        raise UsageError(
            105, "a line is not one whole JSON object; it may be cut off", where=where
        ) from None
    kinds = set(map(type, found.values())) if isinstance(found, dict) else {list}
    if kinds & {dict, list}:
        raise UsageError(105, "each line must be one flat JSON object without lists", where=where)
    if bool in kinds:
        found = {n: str(v).lower() if isinstance(v, bool) else v for n, v in found.items()}
    texts: dict[str, str | None] = found
    return texts


# ---------------------------------------------------------------------- frames and databases


def _frame(source: Any) -> pa.Table:
    try:
        frame = nw.from_native(source)
        collected = frame.collect(backend="pyarrow") if isinstance(frame, nw.LazyFrame) else frame
        return collected.to_arrow()
    except UsageError:
        raise
    except TypeError:
        raise UsageError(
            101,
            f"{type(source).__name__} is not a source of records; give a path, a frame, an Arrow "
            "table or a Query",
        ) from None
    except Exception as error:
        if "uplicat" in type(error).__name__ or "unique" in str(error):
            raise UsageError(104, "the frame has a column name twice; rename one") from None
        raise UsageError(
            101, "a column of the frame mixes types; make each column one type, identifiers text"
        ) from None


def _query(query: Query) -> Iterator[Part]:
    if query.url.startswith("duckdb:"):
        yield from _duckdb(query)
    elif query.url.startswith(("postgresql://", "postgres://")):
        yield from _postgres(query)
    else:
        raise UsageError(101, "a query's url begins with duckdb: or postgresql://")


def arrow_reader(relation: Any, rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
    """Batches of a DuckDB result, under the name that this DuckDB has for it."""
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return read(rows)


def _duckdb(query: Query) -> Iterator[Part]:
    import duckdb

    path = query.url.removeprefix("duckdb:").removeprefix("//")
    try:
        with duckdb.connect(path or ":memory:", read_only=bool(path)) as database:
            asked = database.extract_statements(query.sql)
            # COPY, ATTACH and INSTALL write files even where the database is opened read-only.
            if [statement.type for statement in asked] != [duckdb.StatementType.SELECT]:
                raise UsageError(101, "a query is one SELECT; it reads and writes nothing")
            reader = arrow_reader(database.sql(query.sql))
            first = 1
            for batch in reader:
                yield Part(check_table(pa.Table.from_batches([batch])), first_row=first)
                first += batch.num_rows
            if first == 1:
                yield Part(check_table(reader.schema.empty_table()))
    except duckdb.Error as error:
        raise UsageError(
            101, f"DuckDB refuses the query ({type(error).__name__}); run it in DuckDB to see why"
        ) from None


def _postgres(query: Query) -> Iterator[Part]:
    try:
        import psycopg
    except ImportError:
        raise UsageError(
            101, "PostgreSQL needs the extra: pip install 'sequester[postgres]'"
        ) from None
    try:
        with psycopg.connect(query.url) as database, database.cursor(name="people") as cursor:
            database.read_only = True
            cursor.execute(query.sql.encode())
            first = 1
            while rows := cursor.fetchmany(100_000):
                names = [column.name for column in cursor.description or ()]
                columns = [pa.array(list(values)) for values in zip(*rows, strict=True)]
                yield Part(check_table(pa.table(columns, names=names)), first_row=first)
                first += len(rows)
            if first == 1:
                names = [column.name for column in cursor.description or ()]
                yield Part(check_table(pa.table({name: pa.nulls(0) for name in names})))
    except psycopg.Error as error:
        raise UsageError(
            101, f"PostgreSQL refuses the query ({type(error).__name__}); run it in psql to see why"
        ) from None
