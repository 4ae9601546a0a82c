"""From a source's columns to features: numbers, words and texts, with declared missing values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import buffers, whole
from sequester.sequences.people import Kind
from sequester.sequences.schema import Schema

_NUMBER = r"^[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|[iI]nf(inity)?|[nN]a[nN])$"


_BLANK, _BEYOND_ASCII = 0x20, 0x7F


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds text (a dictionary of text included)."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def text_of(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as trimmed text; a blank becomes null."""
    array = whole(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.cast(pa.large_string())
    starts, data = buffers(array)
    if not array.null_count and len(array) and (np.diff(starts) > 0).all():
        ends = np.concatenate([data[starts[:-1]], data[starts[1:] - 1]])
        if ends.min() > _BLANK and ends.max() < _BEYOND_ASCII:
            return array  # every text begins and ends with a letter, digit or sign
    trimmed = pc.utf8_trim_whitespace(array)
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.large_string()), trimmed)


def looks_numeric(column: pa.ChunkedArray) -> bool:
    """Whether every value that is there has the form of a number."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return True
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return True
    if not is_text(kind):
        return False
    return bool(pc.all(pc.match_substring_regex(text_of(column), _NUMBER)).as_py() in (True, None))


def missing_words(schema: Schema, column: str) -> tuple[str, ...]:
    """The declared texts that stand for a missing value in this column."""
    return (*schema.missing.get("*", ()), *schema.missing.get(column, ()))


def missing_numbers(schema: Schema, column: str) -> list[float]:
    """Those of `missing_words` that are numbers."""
    numbers = [_number(word) for word in missing_words(schema, column)]
    return [number for number in numbers if number is not None]


def numeric(
    name: str, column: pa.ChunkedArray, schema: Schema, facts: ReadFacts
) -> tuple[pa.Array, np.ndarray]:
    """Numbers as double with nulls, and which rows hold something that is no finite number.

    Raises:
        UsageError: SQ-125 for a column of dates or lists.
    """
    if is_text(column.type):
        values, bad = _parse(name, text_of(column), schema, facts)
    else:
        array = whole(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        try:
            values = array.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            raise UsageError(
                125, f"a numeric feature cannot be read from {array.type}", where=f"column {name}"
            ) from None
        bad = np.zeros(len(values), dtype=bool)
    numbers = values.to_numpy(zero_copy_only=False).copy()
    there = pc.is_valid(values).to_numpy(zero_copy_only=False)
    facts.mask(name, "not a number (NaN)", int((np.isnan(numbers) & there).sum()))
    for sentinel in missing_numbers(schema, name):
        hit = numbers == sentinel
        facts.mask(name, "declared as missing", int(hit.sum()))
        numbers[hit] = np.nan
    bad |= np.isinf(numbers)
    numbers[bad] = np.nan
    return pa.array(numbers, mask=np.isnan(numbers)), bad


def _parse(
    name: str, texts: pa.Array, schema: Schema, facts: ReadFacts
) -> tuple[pa.Array, np.ndarray]:
    """Text to double; rows whose text is no number, nor declared to mean one or nothing."""
    meaning = schema.replace.get(name, {})
    missing = set(missing_words(schema, name))
    if not any(_number(word) is not None for word in (*meaning, *missing)):
        try:
            plain = texts.cast(pa.float64())
        except pa.ArrowInvalid:
            pass  # some text is no number: which, is found below
        else:
            if not pc.any(pc.is_nan(plain)).as_py():
                return plain, np.zeros(len(plain), dtype=bool)
    coded = texts.dictionary_encode()
    words = coded.dictionary.to_pylist()
    table = np.full(len(words) + 1, np.nan)
    bad_words = np.zeros(len(words) + 1, dtype=bool)
    masked = np.zeros(len(words) + 1, dtype=bool)
    for i, word in enumerate(words):
        if word in missing:
            masked[i] = True
        elif word in meaning:
            table[i] = meaning[word]
        elif (number := _number(word)) is not None:
            table[i] = number
        else:
            bad_words[i] = True
    codes = coded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    facts.mask(name, "declared as missing", int(masked[codes].sum()))
    numbers = table[codes]
    null = (codes == len(words)) | masked[codes] | bad_words[codes]
    return pa.array(numbers, mask=null), bad_words[codes]


def _number(word: str) -> float | None:
    """The number a text spells, or None; without Python's underscores and other freedoms."""
    if "_" in word or not word.isascii():
        return None
    try:
        return float(word)
    except ValueError:
        return None


def words(name: str, column: pa.ChunkedArray, schema: Schema, facts: ReadFacts) -> pa.Array:
    """A categorical column: trimmed words as an Arrow dictionary; null where missing."""
    if pa.types.is_floating(column.type):
        column = _whole_numbers(column)
    texts = text_of(column)
    if missing := missing_words(schema, name):
        hit = pc.is_in(texts, value_set=pa.array(missing, pa.large_string()))
        facts.mask(name, "declared as missing", pc.sum(hit).as_py() or 0)
        texts = pc.if_else(hit, pa.scalar(None, pa.large_string()), texts)
    return texts.dictionary_encode()


def _whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floating-point codes as whole numbers where they all are: 1.0 and 1 are one word."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def texts(column: pa.ChunkedArray) -> pa.Array:
    """A column of free text, untrimmed; null where there is none, or nothing but blanks."""
    array = whole(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.cast(pa.large_string())
    blank = pc.invert(pc.match_substring_regex(array, r"\S"))
    return pc.if_else(blank, pa.scalar(None, pa.large_string()), array)


def kind_of(name: str, column: pa.ChunkedArray, schema: Schema) -> Kind:
    """What the schema declares the column to be, or what its form says where it declares none."""
    if name in schema.numeric:
        return "numeric"
    if name in schema.categorical:
        return "categorical"
    if name in schema.text:
        return "text"
    return "numeric" if looks_numeric(column) else "categorical"
