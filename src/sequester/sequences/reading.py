"""`People.read`: open a source, interpret its columns, assemble the people."""

from __future__ import annotations

from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from sequester.core.errors import UsageError
from sequester.sequences import columns, identifiers
from sequester.sequences.assemble import Rows, assemble
from sequester.sequences.clock import read_time
from sequester.sequences.facts import ReadFacts
from sequester.sequences.people import Kind, People
from sequester.sequences.schema import Schema


def read_people(source: Any, schema: Schema, *, static: Any = None, spill: Any = None) -> People:
    """See `People.read`."""
    facts = ReadFacts()
    table = open_table(source, schema)
    facts.rows = table.num_rows
    return assemble(interpret(table, schema, facts), facts, schema.repeats)


def open_table(source: Any, schema: Schema) -> pa.Table:
    """The source as one Arrow table."""
    if isinstance(source, pa.Table):
        return source
    if hasattr(source, "__fspath__") or isinstance(source, str):
        if str(source).endswith(".parquet"):
            return pq.read_table(source)
        with open(source, encoding="utf-8-sig") as stream:
            names = stream.readline().rstrip("\r\n").split(",")
        convert = pacsv.ConvertOptions(column_types={name: pa.large_string() for name in names})
        return pacsv.read_csv(source, convert_options=convert)
    return nw.from_native(source, eager_only=True).to_arrow()


def interpret(table: pa.Table, schema: Schema, facts: ReadFacts) -> Rows:
    """Typed rows of a table."""
    for name in (schema.person, schema.time.column):
        if name and name not in table.column_names:
            raise UsageError(
                102,
                f"there is no column {name!r}; the columns are {', '.join(table.column_names)}",
            )
    ids = identifiers.normalise(table[schema.person], fold_case=schema.fold_case)
    if schema.time.column:
        time, time_kind = read_time(table[schema.time.column], schema.time, facts)
    else:
        time, time_kind = np.zeros(len(ids), dtype=np.int64), "step"
    kinds: dict[str, Kind] = {}
    features: dict[str, pa.Array] = {}
    roles = {schema.person, schema.time.column, schema.site}
    taken = schema.features or [n for n in table.column_names if n not in roles]
    for name in taken:
        column = table[name]
        kinds[name] = columns.kind_of(name, column, schema)
        if kinds[name] == "numeric":
            features[name], _ = columns.numeric(name, column, schema, facts)
        elif kinds[name] == "categorical":
            features[name] = columns.words(name, column, schema, facts)
        else:
            features[name] = columns.texts(column)
    site = columns.text_of(table[schema.site]) if schema.site else None
    return Rows(ids, time, time_kind, pa.table(features), kinds, schema.static, site)
