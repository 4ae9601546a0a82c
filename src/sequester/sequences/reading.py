"""`People.read`: open a source, interpret its columns, assemble the people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences import clock, columns, identifiers
from sequester.sequences.assemble import Rows, assemble
from sequester.sequences.dates import NOTHING
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import check_table, join
from sequester.sequences.people import Kind, People
from sequester.sequences.reshape import melt, pivot
from sequester.sequences.schema import Schema
from sequester.sequences.sieve import Sieve
from sequester.sequences.sources import open_parts
from sequester.sequences.spill import read_spilled

Where = Callable[[int], str]


def read_people(source: Any, schema: Schema, *, static: Any = None, spill: Any = None) -> People:
    """See `People.read`.

    Raises:
        UsageError: SQ-107 for a source without any person; SQ-1xx of the parts.
    """
    facts = ReadFacts()
    if spill is not None:
        if static is not None:
            raise UsageError(124, "a static source cannot be joined to data that are spilled")
        return read_spilled(source, schema, Path(spill), facts)
    whole = join(open_parts(source, schema.layout, facts))
    facts.rows += whole.table.num_rows
    second = _static_source(static, schema, facts)
    known = second.table.column_names if second is not None else []
    rows = interpret(whole.table, schema, facts, whole.where, elsewhere=known)
    if second is not None:
        rows = replace(rows, static_table=second.table, static_ids=second.ids)
        rows.kinds.update(second.kinds)
    if not len(rows.ids) and not len(rows.extra_ids) and second is None:
        raise UsageError(107, "the source has columns but no rows: there is nobody in it")
    people = assemble(rows, facts, schema.repeats)
    if second is not None and (silent := int((people.counts == 0).sum())):
        facts.note(f"people without a record: {silent}; they count as people")
    return people


def interpret(
    table: pa.Table,
    schema: Schema,
    facts: ReadFacts,
    where: Where,
    *,
    elsewhere: Sequence[str] = (),
) -> Rows:
    """Typed rows of a table; what cannot be used is treated as the schema declares.

    Args:
        table: Raw columns.
        schema: What they are.
        facts: Receives the counts.
        where: Names the place of a row in the source.
        elsewhere: Declared columns that come from the static source.
    """
    if schema.wide is not None:
        moments = len(schema.wide.columns)
        table, schema = melt(table, schema)
        inner = where

        def where(row: int) -> str:
            return inner(row // moments)

    taken = _taken(table, schema, elsewhere)
    ids = identifiers.normalise(table[schema.person], fold_case=schema.fold_case)
    names = pc.unique(ids)
    person = pc.index_in(ids, value_set=names).to_numpy(zero_copy_only=False)
    sieve = Sieve(table.num_rows)
    time, time_kind = _time(table, schema, person, sieve, facts)
    rows = Rows(ids, time, time_kind, pa.table({}), {}, schema.static, extra_ids=names)
    if schema.site:
        rows.site, rows.site_ids = columns.text_of(table[schema.site]), ids
    if schema.parameter:
        return _long(table, schema, rows, sieve, (person, where, facts))
    arrays = _features(table, schema, taken, rows.kinds, sieve, facts)
    stays = np.flatnonzero(sieve.keep(schema.bad_values, person, where, facts))
    at = pa.array(stays)
    return replace(
        rows,
        ids=ids.take(at),
        time=time[stays],
        table=pa.table(arrays).take(at) if arrays else pa.table({"": pa.nulls(len(stays))}),
    )


def _taken(table: pa.Table, schema: Schema, elsewhere: Sequence[str]) -> list[str]:
    """The feature columns to read from the table.

    Raises:
        UsageError: SQ-102 for a declared column that is missing, SQ-103 for one undeclared.
    """
    here = table.column_names
    time = [schema.time.column, schema.time.clock_column]
    roles = [schema.person, *time, schema.site, schema.parameter, schema.value]
    measured = schema.numeric if schema.parameter else ()
    declared = [name for name in schema.features if name not in measured]
    needed = [name for name in [*roles, *declared] if name and name not in elsewhere]
    if missing := [name for name in needed if name not in here]:
        raise UsageError(
            102,
            f"there is no column {', '.join(map(repr, missing))}; the columns are "
            f"{', '.join(map(repr, here[:40]))}",
        )
    if schema.parameter and declared:
        raise UsageError(
            124, "a long table has the features that `numeric` names; move the others to a static "
            "source"
        )  # fmt: skip
    extra = [name for name in here if name not in {*roles, *schema.features, *schema.ignore}]
    if schema.features and extra and "*" not in schema.ignore:
        raise UsageError(
            103,
            f"columns {', '.join(map(repr, extra[:20]))} are not declared; declare them as "
            "numeric, categorical or text, or list them in `ignore` (['*'] for all)",
        )
    if schema.features:
        return [name for name in declared if name not in elsewhere]
    return [] if "*" in schema.ignore else extra


def _time(
    table: pa.Table, schema: Schema, person: np.ndarray, sieve: Sieve, facts: ReadFacts
) -> tuple[np.ndarray, str]:
    """Time of every row; what cannot be read goes to the sieve."""
    name = schema.time.column
    if not name:
        return counted(person), "step"
    column = table[name]
    if schema.time.clock_column:
        both = [columns.text_of(table[part]) for part in (name, schema.time.clock_column)]
        blank = pa.scalar(" ", pa.large_string())
        column = pa.chunked_array([pc.binary_join_element_wise(*both, blank)])
    time, kind = clock.read_time(column, schema.time, facts)
    sieve.add(110, name, "no readable time within the bounds", time == NOTHING, maskable=False)
    if kind == "clock":
        time, backwards = clock.unwrap(time, person)
        sieve.add(
            123, name, "the clock steps back by less than half a day", backwards, maskable=False
        )
    return time, kind


def counted(person: np.ndarray) -> np.ndarray:
    """0, 1, 2, … for the rows of each person in the source's order, int64 `(rows,)`."""
    order = np.argsort(person, kind="stable")
    starts = np.flatnonzero(np.diff(person[order], prepend=-1))
    turn = np.arange(len(person)) - np.repeat(starts, np.diff(np.append(starts, len(person))))
    result = np.empty(len(person), dtype=np.int64)
    result[order] = turn
    return result


def _features(
    table: pa.Table,
    schema: Schema,
    taken: Sequence[str],
    kinds: dict[str, Kind],
    sieve: Sieve,
    facts: ReadFacts,
) -> dict[str, pa.Array]:
    """Typed feature columns; values that are no finite number go to the sieve."""
    arrays: dict[str, pa.Array] = {}
    for name in taken:
        column = table[name]
        kinds[name] = columns.kind_of(name, column, schema)
        if kinds[name] == "numeric":
            arrays[name], bad = columns.numeric(name, column, schema, facts)
            sieve.add(109, name, "not a finite number", bad, maskable=True)
        elif kinds[name] == "categorical":
            arrays[name] = columns.words(name, column, schema, facts)
        else:
            arrays[name] = columns.texts(column)
    return arrays


def _long(
    table: pa.Table,
    schema: Schema,
    rows: Rows,
    sieve: Sieve,
    context: tuple[np.ndarray, Where, ReadFacts],
) -> Rows:
    """Records of a long table.

    Raises:
        UsageError: SQ-103 for measurements that are neither declared nor ignored.
    """
    person, where, facts = context
    parameter = columns.text_of(table[schema.parameter])
    values, bad = columns.numeric(schema.value, table[schema.value], schema, facts)
    known = pa.array([*schema.numeric, *schema.ignore], pa.large_string())
    other = ~pc.is_in(parameter, value_set=known).to_numpy(zero_copy_only=False)
    if other.any():
        if "*" not in schema.ignore:
            raise UsageError(
                103,
                f"{int(other.sum())} rows measure something that is neither in `numeric` nor in "
                "`ignore`; declare it, or ignore = ['*']",
                where=f"first in {where(int(np.argmax(other)))}",
            )
        facts.drop(f"{schema.parameter}: not declared", int(other.sum()))
    sieve.add(109, schema.value, "not a finite number", bad, maskable=True)
    stays = sieve.keep(schema.bad_values, person, where, facts)
    at = pa.array(np.flatnonzero(stays))
    kept = replace(
        rows,
        ids=rows.ids.take(at),
        time=rows.time[stays],
        sparse=True,
    )
    numbers = values.to_numpy(zero_copy_only=False)
    records, _ = pivot(kept, parameter.take(at), numbers[stays], schema, facts)
    return records


def _static_source(static: Any, schema: Schema, facts: ReadFacts) -> Rows | None:
    """The second source: one row a person, with a schema of its own or the first one's."""
    if static is None:
        return None
    source, own = static if isinstance(static, tuple) else (static, None)
    if own is None:
        chosen = set(schema.static)
        own = Schema(
            person=schema.person,
            numeric=tuple(n for n in schema.numeric if n in chosen),
            categorical=tuple(n for n in schema.categorical if n in chosen),
            text=tuple(n for n in schema.text if n in chosen),
            ignore=("*",),
            missing=schema.missing,
            replace=schema.replace,
            fold_case=schema.fold_case,
        )
    own = replace(own, time=replace(own.time, column="", clock_column=""))
    whole = join(open_parts(source, own.layout, ReadFacts()))
    return interpret(check_table(whole.table, "the static source"), own, facts, whole.where)
