"""Tables in other shapes: one column a moment (wide), one row a measurement (long)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sequester.core.errors import UsageError
from sequester.sequences import columns
from sequester.sequences.parts import whole
from sequester.sequences.repeats import changes
from sequester.sequences.schema import Schema, Time

PARAMETER, VALUE = "__parameter", "__value"  # columns of a long table's typed rows


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
    time = time_of(schema)
    labels = list(wide.columns) if time.kind != "step" else list(range(moments))
    moment = pa.array(labels).take(pa.array(flat % moments))
    long = long.append_column(time.column, moment).append_column(wide.value, values)
    return long, replace(schema, wide=None, time=time)


def time_of(schema: Schema) -> Time:
    """How time is read once a wide table is long; as declared for any other table."""
    time = schema.time
    if schema.wide is None:
        return time
    named = bool(time.formats) or time.kind in {"elapsed", "clock"}
    return replace(time, column=time.column or "moment", kind=time.kind if named else "step")


def columns_as_one(table: pa.Table, name: str) -> pa.Array:
    """A wide column as plain text or number, so that all of them stack."""
    array = whole(table[name])
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.large_string()) if columns.is_text(array.type) else array


def pivot(
    owner: np.ndarray, time: np.ndarray, table: pa.Table, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Measurements of one person at one time as one record.

    The second measurement of the same thing at the same time goes to a second record of that
    time, for the declared rule on repeats to see.

    Args:
        owner: Person of each measurement, ascending, `(rows,)`.
        time: Ascending within a person, `(rows,)`; equal times are in the source's order.
        table: `PARAMETER`, a place in `names`, and `VALUE`.
        names: The measurements that records have as columns.

    Returns:
        Owner, time and columns of the records.
    """
    code = table[PARAMETER].to_numpy().astype(np.int64)
    values = table[VALUE].to_numpy()
    moment = np.cumsum(changes(owner, time)) - 1
    order = np.lexsort((code, moment))
    same = ~changes(moment[order], code[order])
    turn = np.zeros(len(owner), dtype=np.int64)
    turn[order] = _turns(same)
    order = np.lexsort((turn, moment)) if same.any() else np.arange(len(owner))
    new = changes(moment[order], turn[order])
    record = np.cumsum(new) - 1
    columns = {}
    for j, name in enumerate(names):
        mine = np.flatnonzero(code[order] == j)
        column = np.full(int(new.sum()), np.nan)
        column[record[mine]] = values[order[mine]]
        columns[name] = pa.array(column, mask=np.isnan(column))
    lead = order[new]
    return owner[lead], time[lead], pa.table(columns)


def _turns(same: np.ndarray) -> np.ndarray:
    """0, 1, 2, … along each run of rows that are the same as the one before."""
    at = np.arange(len(same))
    return at - np.maximum.accumulate(np.where(same, 0, at))
