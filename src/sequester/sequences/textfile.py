"""Text files, read strictly: every field as the text that it is, every row of full width."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import (
    FREE_INFLATION,
    LONGEST_FIELD,
    MOST_INFLATION,
    Part,
    buffers,
    check_names,
    check_table,
)
from sequester.sequences.schema import Layout

BLOCK = 2 << 20  # bytes parsed at a time, of up to 32 that Arrow reads ahead; no row may be longer
PACKED = {".gz", ".zst", ".bz2"}
_NEWLINE = 0x0A
_UNIT_SEPARATOR = "\x1f"  # stands between fields of a whitespace file while it is parsed
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_text(path: Path, layout: Layout, facts: ReadFacts) -> Iterator[Part]:
    """The rows of a text file in parts of about 2 MB, every column `large_string`.

    Raises:
        UsageError: SQ-104 to 107, 115: what is wrong and in which row, never its content.
    """
    if layout.form == "speakers":
        yield from _speakers(path, layout, facts)
        return
    names, skip = _columns(path, layout)
    ragged: list[int] = []

    def on_ragged(row: pacsv.InvalidRow) -> str:
        ragged.append(row.number or 0)
        return "skip" if layout.ragged == "drop-row" else "error"

    delimiter = _UNIT_SEPARATOR if layout.form == "whitespace" else layout.delimiter
    first = skip + 1
    try:
        with (
            _opened(path, layout) as stream,
            pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(
                    use_threads=False,
                    column_names=names,
                    skip_rows=skip,
                    block_size=BLOCK,
                    encoding="utf-8" if layout.encoding == "utf-8-sig" else layout.encoding,
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=delimiter,
                    newlines_in_values=layout.multiline,
                    invalid_row_handler=on_ragged,
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False
                ),
            ) as reader,
        ):
            for batch in reader:
                table = check_table(pa.Table.from_batches([batch]))
                _check_quotes(table, layout, first)
                yield Part(table, first_row=first)
                first += table.num_rows
    except pa.ArrowInvalid as error:
        raise _explained(error, path, layout, ragged) from None
    if layout.multiline and _quotes(path) % 2:
        raise UsageError(
            105, "the file has an odd number of quotes: one is never closed and swallows rows"
        )
    facts.drop("ragged row", len(ragged))
    facts.rows += len(ragged)


def _columns(path: Path, layout: Layout) -> tuple[list[str], int]:
    """Column names, and how many lines come before the rows."""
    if layout.names and not layout.header:
        check_names(layout.names, "layout.names")
        if path.stat().st_size == 0:
            return list(layout.names), 0
        return list(layout.names), layout.skip_lines
    if not layout.header:
        raise UsageError(124, "a file without a header needs layout.names")
    with _opened(path, layout) as raw:
        head = raw.read(1 << 20)
    if not head.strip():
        raise UsageError(107, "the file is empty: not even a header; check that it was exported")
    if (mark := _MARKS.get(head[:2])) and layout.encoding.startswith("utf-8"):
        raise UsageError(
            106, f"the file is {mark}, not {layout.encoding}; declare layout.encoding = {mark!r}"
        )
    try:
        text = head.decode(layout.encoding, errors="strict" if len(head) < 1 << 20 else "ignore")
    except UnicodeDecodeError as error:
        raise _encoding(layout, head.count(b"\n", 0, error.start) + 1) from None
    lines = text.removeprefix("\ufeff").splitlines()[layout.skip_lines :]
    if not lines:
        raise UsageError(107, f"the file ends within the {layout.skip_lines} lines to skip")
    delimiter = _UNIT_SEPARATOR if layout.form == "whitespace" else layout.delimiter
    names = [name.strip() for name in next(csv.reader([lines[0]], delimiter=delimiter))]
    check_names(names, "the header")
    return names, layout.skip_lines + 1


def header_of(path: Path, layout: Layout) -> list[str]:
    """Column names, of the header's line alone: no row decides them, nor whether they can be told.

    Raises:
        UsageError: SQ-104 for names that are none, SQ-106 for a header that is otherwise encoded,
            SQ-124 for a file without one.
    """
    if layout.form == "speakers":
        return ["person", "text"]
    if not layout.header:
        if not layout.names:
            raise UsageError(124, "a file without a header needs layout.names")
        return list(layout.names)
    decoder, line, lines = codecs.getincrementaldecoder(layout.encoding)(), "", layout.skip_lines
    with _opened(path, layout) as stream:
        while len(line) < 1 << 20 and (byte := stream.read(1)):
            try:
                letter = decoder.decode(byte)
            except UnicodeDecodeError:
                raise _encoding(layout, 1) from None
            line += letter
            if letter in ("\n", "\r") and line.strip("\n\r"):
                if not lines:
                    break
                line, lines = "", lines - 1
    delimiter = _UNIT_SEPARATOR if layout.form == "whitespace" else layout.delimiter
    text = line.removeprefix("\ufeff").strip("\n\r")
    names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter), [])]
    check_names(names, "the header")
    return names


class _Opened(io.RawIOBase):
    """A file, unpacked where its name ends in one of `PACKED`, that refuses to explode."""

    def __init__(self, path: Path) -> None:
        self._source: Any = pa.input_stream(str(path), compression="detect")
        self._most = FREE_INFLATION + MOST_INFLATION * path.stat().st_size
        self._seen = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._source.read(len(buffer))
        self._seen += len(block)
        if self._seen > self._most:
            raise UsageError(
                115,
                f"the compressed file grows to more than {MOST_INFLATION} times its size; unpack "
                "it yourself if it is honest",
            )
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._source.close()
        super().close()


def unpacked(path: Path) -> BinaryIO:
    """A file's bytes, unpacked where its name ends in one of `PACKED`."""
    return io.BufferedReader(_Opened(path), buffer_size=1 << 20)


def _opened(path: Path, layout: Layout) -> BinaryIO:
    raw: io.RawIOBase = _Opened(path)
    if layout.form == "whitespace":
        raw = _Separated(io.BufferedReader(raw, buffer_size=1 << 20))
    return io.BufferedReader(raw, buffer_size=1 << 20)


class _Separated(io.RawIOBase):
    """Lines whose fields are apart by blanks, with one separator in the blanks' place."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            block = b"".join(self._lines.readlines(1 << 20))
            block = re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", block)
            self._ready = re.sub(rb"[ \t]+", _UNIT_SEPARATOR.encode(), block)
        taken = self._ready[: len(buffer)]
        buffer[: len(taken)] = taken
        self._ready = self._ready[len(taken) :]
        return len(taken)

    def close(self) -> None:
        self._lines.close()
        super().close()


def _quotes(path: Path) -> int:
    with io.BufferedReader(_Opened(path)) as stream:
        return sum(block.count(b'"') for block in iter(lambda: stream.read(BLOCK), b""))


def _check_quotes(table: pa.Table, layout: Layout, first: int) -> None:
    """Refuse a field that runs over a line's end: a forgotten quote swallows the rows after it."""
    if layout.multiline:
        return
    for name in table.column_names:
        if any((buffers(chunk)[1] == _NEWLINE).any() for chunk in table[name].chunks):
            spans = pc.match_substring(table[name], "\n")
            row = pc.index(spans, True).as_py()
            raise UsageError(
                105,
                "a quoted field runs over the end of its line; close the quote, or declare "
                "layout.multiline = true",
                where=f"row {first + row}",
            )


def _explained(error: pa.ArrowInvalid, path: Path, layout: Layout, ragged: list[int]) -> UsageError:
    """Arrow's complaint without the content that it quotes."""
    words = str(error)
    if ragged and layout.ragged == "refuse":
        return UsageError(
            105,
            "a row has too few or too many fields, which would shift its values into other "
            "columns; repair it, or declare layout.ragged = 'drop-row'",
            where=f"row {ragged[0]}",
        )
    if "UTF8" in words or "conversion" in words or "decode" in words:
        return _encoding(layout, _bad_line(path, layout))
    if "Empty" in words:
        return UsageError(107, "the file is empty; check that it was exported")
    if "straddling" in words or "block" in words:
        return UsageError(115, f"a row is longer than {LONGEST_FIELD:,} bytes; split its text")
    return UsageError(101, "the text cannot be parsed as a table; check layout.delimiter")


def _bad_line(path: Path, layout: Layout) -> int | None:
    with _opened(path, layout) as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode(layout.encoding)
            except UnicodeDecodeError:
                return number
    return None


def _encoding(layout: Layout, line: int | None) -> UsageError:
    return UsageError(
        106,
        f"the text is not {layout.encoding}; declare layout.encoding, for instance 'latin-1', "
        "'utf-16' or 'cp1252'",
        where=f"line {line}" if line else None,
    )


def _speakers(path: Path, layout: Layout, facts: ReadFacts) -> Iterator[Part]:
    """Paragraphs whose first line is `NAME:`; the rest is what that person said."""
    silent, size, number = 0, 0, 0
    first, names, said = 1, list[str](), list[str]()
    for number, block in enumerate(_paragraphs(path, layout), 1):
        head, _, body = block.partition("\n")
        if not head.rstrip().endswith(":"):
            raise UsageError(
                105,
                "a paragraph does not begin with a line `NAME:`",
                where=f"paragraph {number}",
            )
        if not body.strip():
            silent += 1
            continue
        names.append(head.rstrip()[:-1])
        said.append(body)
        size += len(block)
        if size > BLOCK:
            yield Part(_said(names, said), first_row=first)
            first, names, said, size = number + 1, [], [], 0
    facts.drop("paragraph without a word", silent)
    facts.rows += silent
    yield Part(_said(names, said), first_row=first)


def _said(names: list[str], said: list[str]) -> pa.Table:
    person, text = (pa.array(values, pa.large_string()) for values in (names, said))
    return check_table(pa.table({"person": person, "text": text}))


def _paragraphs(path: Path, layout: Layout) -> Iterator[str]:
    """Runs of lines that are not blank."""
    lines: list[str] = []
    try:
        with io.TextIOWrapper(_opened(path, layout), encoding=layout.encoding) as stream:
            for line in stream:
                if line.strip():
                    lines.append(line)
                elif lines:
                    yield "".join(lines).rstrip("\n")
                    lines = []
    except UnicodeDecodeError:
        raise _encoding(layout, None) from None
    if lines:
        yield "".join(lines).rstrip("\n")
