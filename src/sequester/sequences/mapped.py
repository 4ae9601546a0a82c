"""Columns on disk in Arrow's own layout, so that mapping them into memory needs no copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.sequences.parts import buffers, whole
from sequester.sequences.people import Kind


class Words:
    """Codes of the words of each categorical column, growing as words turn up."""

    def __init__(self) -> None:
        """No word yet."""
        self._known: dict[str, dict[str, int]] = {}

    def code(self, column: str, words: pa.ChunkedArray) -> pa.Array:
        """A dictionary column as codes, int32 with nulls, `(rows,)`."""
        known = self._known.setdefault(column, {})
        coded = whole(words)
        table = [known.setdefault(word, len(known)) for word in coded.dictionary.to_pylist()]
        return pc.take(pa.array(table, pa.int32()), coded.indices)

    def coded(self, table: pa.Table) -> pa.Table:
        """The table with its columns of codes as dictionaries again."""
        for at, name in enumerate(table.column_names):
            if name in self._known:
                codes = whole(table[name]).cast(pa.int32())
                words = pa.DictionaryArray.from_arrays(codes, self.of(name))
                table = table.set_column(at, name, words)
        return table

    def of(self, column: str) -> pa.Array:
        """The words of a column, by code."""
        return pa.array(self._known.get(column, {}), pa.large_string())


class MappedColumns:
    """Written in order, then mapped and unlinked."""

    def __init__(self, folder: Path, kinds: Mapping[str, Kind], words: Words) -> None:
        """Files in `folder`, for records of these columns."""
        self._folder = folder
        self._kinds = kinds
        self._words = words
        self._records = 0
        self._files: dict[str, BinaryIO] = {}
        self._ends: dict[int, int] = {}

    def append(self, time: np.ndarray, table: pa.Table) -> None:
        """Add records."""
        self._records += len(time)
        self._write("time", time.astype(np.int64))
        for at, (name, kind) in enumerate(self._kinds.items()):
            column = whole(table[name])
            if kind == "text":
                self._text(at, column)
                continue
            there = pc.is_valid(column).to_numpy(zero_copy_only=False)
            if kind == "numeric":
                self._write(f"{at}.data", column.fill_null(0.0).to_numpy(zero_copy_only=False))
            else:
                codes = column.indices.fill_null(0)
                self._write(f"{at}.data", codes.to_numpy(zero_copy_only=False).astype(np.int32))
            self._write(f"{at}.there", there)

    def _text(self, at: int, column: pa.Array) -> None:
        texts = column.cast(pa.large_string())
        there = pc.is_valid(texts).to_numpy(zero_copy_only=False)
        starts, data = buffers(texts.fill_null(""))
        end = self._ends.get(at, 0)
        if at not in self._ends:
            self._write(f"{at}.offsets", np.zeros(1, dtype=np.int64))
        if len(texts):
            self._write(f"{at}.offsets", starts[1:] - starts[0] + end)
            self._write(f"{at}.data", data[starts[0] : starts[-1]])
        self._write(f"{at}.there", there)
        self._ends[at] = end + int(starts[-1] - starts[0])

    def _write(self, name: str, values: np.ndarray) -> None:
        if name not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._files[name] = os.fdopen(os.open(self._folder / name, flags, 0o600), "wb")
        self._files[name].write(np.ascontiguousarray(values).view(np.uint8).data)

    def close(self) -> None:
        """Nothing more is written."""
        for file in self._files.values():
            file.close()

    def map(self) -> tuple[np.ndarray, pa.Table]:
        """Time and columns, read-only, over files that have no name any more."""
        self.close()
        columns = {name: self._column(at, name, kind)
                   for at, (name, kind) in enumerate(self._kinds.items())}  # fmt: skip
        time = np.frombuffer(self._mapped("time"), dtype=np.int64)
        return time, pa.table(columns) if columns else pa.table({"": pa.nulls(self._records)})

    def _column(self, at: int, name: str, kind: Kind) -> pa.Array:
        data = self._mapped(f"{at}.data")
        bits = self._bits(at)
        if kind == "numeric":
            return pa.Array.from_buffers(pa.float64(), self._records, [bits, data])
        if kind == "text":
            offsets = self._mapped(f"{at}.offsets")
            return pa.Array.from_buffers(pa.large_string(), self._records, [bits, offsets, data])
        codes = pa.Array.from_buffers(pa.int32(), self._records, [bits, data])
        return pa.DictionaryArray.from_arrays(codes, self._words.of(name))

    def _bits(self, at: int) -> pa.Buffer | None:
        """Which values are there, a bit each, or None where all are."""
        there = np.frombuffer(self._mapped(f"{at}.there"), dtype=bool)
        if there.all():
            return None
        with os.fdopen(
            os.open(self._folder / f"{at}.bits", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as file:
            for start in range(0, len(there), 1 << 23):
                file.write(np.packbits(there[start : start + (1 << 23)], bitorder="little").data)
        return self._mapped(f"{at}.bits")

    def _mapped(self, name: str) -> pa.Buffer:
        path = self._folder / name
        if not path.exists() or path.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
