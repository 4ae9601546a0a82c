"""Tables in other shapes: one column a moment (wide), one row a measurement (long)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences import columns
from sequester.sequences.assemble import Rows
from sequester.sequences.facts import ReadFacts
from sequester.sequences.people import whole
from sequester.sequences.schema import Schema


def melt(table: pa.Table, schema: Schema) -> tuple[pa.Table, Schema]:
    """A wide table as one row a (person, moment).

    The moment is the column's name where `time.formats` or a `time.kind` can read it, otherwise
    the column's place in the list.

    Raises:
        UsageError: SQ-102 for a column that is not there.
    """
    wide = schema.wide
    if wide is None:
        return table, schema
    if missing := [name for name in wide.columns if name not in table.column_names]:
        raise UsageError(102, f"the wide table has no columns {', '.join(missing[:5])}")
    if not wide.columns:
        raise UsageError(124, "wide.columns names no moment")
    moments, rows = len(wide.columns), table.num_rows
    kept = table.drop_columns(list(wide.columns))
    at = pa.array(np.repeat(np.arange(rows), moments))
    long = kept.take(at)
    flat = np.arange(rows * moments)
    stacked = pa.concat_arrays([columns_as_one(table, name) for name in wide.columns])
    values = stacked.take(pa.array(flat % moments * rows + flat // moments))
    named = bool(schema.time.formats) or schema.time.kind in {"elapsed", "clock"}
    labels = list(wide.columns) if named else list(range(moments))
    time = pa.array(labels).take(pa.array(flat % moments))
    column = schema.time.column or "moment"
    long = long.append_column(column, time).append_column(wide.value, values)
    kind = schema.time.kind if named else "step"
    return long, replace(schema, wide=None, time=replace(schema.time, column=column, kind=kind))


def columns_as_one(table: pa.Table, name: str) -> pa.Array:
    """A wide column as plain text or number, so that all of them stack."""
    array = whole(table[name])
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.large_string()) if columns.is_text(array.type) else array


def pivot(
    rows: Rows, parameter: pa.Array, values: np.ndarray, schema: Schema, facts: ReadFacts
) -> tuple[Rows, np.ndarray]:
    """Measurements of one person at one time as one record.

    The second measurement of the same thing at the same time goes to a second record of that
    time, for the declared rule on repeats to see.

    Args:
        rows: Persons and times of the measurements.
        parameter: What was measured, `large_string` `(rows,)`.
        values: The numbers, float64 `(rows,)`, NaN where missing.
        schema: Declares the parameters in `numeric`.
        facts: Receives the counts.

    Returns:
        Records, and for each the measurement that it begins with.
    """
    code = pc.index_in(parameter, value_set=pa.array(schema.numeric, pa.large_string()))
    code = code.fill_null(-1).to_numpy(zero_copy_only=False)
    names = pc.unique(rows.ids)
    person = pc.index_in(rows.ids, value_set=names).to_numpy(zero_copy_only=False)
    known = np.flatnonzero(code >= 0)
    known = known[np.lexsort((known, code[known], rows.time[known], person[known]))]
    turn = _turns(person[known], rows.time[known], code[known])
    order = np.lexsort((known, turn, rows.time[known], person[known]))
    known, turn = known[order], turn[order]
    new = _changes(person[known], rows.time[known], turn)
    record = np.cumsum(new) - 1
    table = {}
    for j, name in enumerate(schema.numeric):
        mine = code[known] == j
        column = np.full(int(new.sum()), np.nan)
        column[record[mine]] = values[known[mine]]
        table[name], _ = columns.numeric(
            name, pa.chunked_array([pa.array(column, mask=np.isnan(column))]), schema, facts
        )
    lead = known[new]
    records = replace(
        rows,
        ids=rows.ids.take(pa.array(lead)),
        time=rows.time[lead],
        table=pa.table(table),
        kinds=dict.fromkeys(schema.numeric, "numeric"),
        extra_ids=pa.concat_arrays([rows.extra_ids, names]),
    )
    return records, lead


def _changes(*keys: np.ndarray) -> np.ndarray:
    """Where any of the sorted keys differs from the row before; True at the first row."""
    new = np.ones(len(keys[0]), dtype=bool)
    new[1:] = np.any([np.diff(key) != 0 for key in keys], axis=0)
    return new


def _turns(*keys: np.ndarray) -> np.ndarray:
    """0, 1, 2, … within each run of equal sorted keys."""
    at = np.arange(len(keys[0]))
    starts = np.flatnonzero(_changes(*keys)) if len(at) else at
    turns: np.ndarray = at - np.repeat(starts, np.diff(np.append(starts, len(at))))
    return turns
