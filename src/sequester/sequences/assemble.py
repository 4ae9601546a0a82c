"""From typed columns to People: order, ownership, repeated times, static columns, sites."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.people import Kind, People, whole
from sequester.sequences.repeats import merge_repeats
from sequester.sequences.schema import Repeats


@dataclass
class Rows:
    """Typed rows in the source's order.

    Attributes:
        ids: Normalised identifiers, `large_string` `(rows,)`.
        time: int64 `(rows,)`.
        time_kind: One of `absolute`, `elapsed`, `clock`, `step`.
        table: Feature columns: double, dictionary or large_string.
        kinds: What each feature column is.
        static: Names of the columns with one value a person.
        site: Site of every row of the source, those that were left out included, or None.
        site_ids: Identifiers that belong to `site`.
        extra_ids: Identifiers of people who are known to have no record.
        static_table: Static columns from a second source, keyed by `static_ids`.
        static_ids: Normalised identifiers of `static_table`'s rows.
        sparse: Whether rows that hold nothing but static values are no records.
    """

    ids: pa.Array
    time: np.ndarray
    time_kind: str
    table: pa.Table
    kinds: dict[str, Kind]
    static: tuple[str, ...] = ()
    site: pa.Array | None = None
    site_ids: pa.Array | None = None
    extra_ids: pa.Array = field(default_factory=lambda: pa.array([], pa.large_string()))
    static_table: pa.Table | None = None
    static_ids: pa.Array | None = None
    sparse: bool = False


def assemble(rows: Rows, facts: ReadFacts, repeats: Repeats = "keep") -> People:
    """Sort by (person, time), stable in the source's order, and find each person's part.

    Raises:
        UsageError: SQ-120 for repeated times under `refuse`; SQ-127 for static columns, or
            sites, that hold more than one value for a person.
    """
    everyone = pa.concat_arrays(
        [rows.ids, rows.extra_ids] + ([rows.static_ids] if rows.static_ids is not None else [])
    )
    distinct = pc.unique(everyone)
    names = distinct.take(pc.sort_indices(distinct))
    position = pc.index_in(rows.ids, value_set=names).to_numpy(zero_copy_only=False)
    order = np.lexsort((rows.time, position))
    position, time = position[order], rows.time[order]
    table = rows.table.take(pa.array(order))
    offsets = np.searchsorted(position, np.arange(len(names) + 1)).astype(np.int64)
    static, table = _static(rows, table, names, offsets)
    site_names, site = _sites(rows, names)
    people = People(
        _ids=names,
        _records=table,
        _static=static,
        offsets=offsets,
        time=time,
        time_kind=rows.time_kind,
        kinds=rows.kinds,
        site_names=site_names,
        site=site,
        facts=facts,
    )
    if rows.sparse and rows.static:
        people = people.keep_records(_measured(table))
    return merge_repeats(people, repeats)


def _measured(table: pa.Table) -> np.ndarray:
    """Records with at least one value, bool `(records,)`."""
    there = np.zeros(table.num_rows, dtype=bool)
    for column in table.columns:
        there |= pc.is_valid(column).to_numpy()
    return there


def _static(
    rows: Rows, table: pa.Table, names: pa.Array, offsets: np.ndarray
) -> tuple[pa.Table, pa.Table]:
    """Static columns, one row a person, and the table without them."""
    columns: dict[str, pa.Array] = {}
    for name in rows.static:
        if name in table.column_names:
            columns[name] = one_value(name, whole(table[name]), offsets)
    table = table.drop_columns([name for name in rows.static if name in table.column_names])
    if rows.static_table is not None and rows.static_ids is not None:
        columns |= _joined(rows.static_table, rows.static_ids, names)
    if not columns:
        return pa.table({"": pa.nulls(len(names))}).select([]), table
    return pa.table(columns), table


def one_value(column: str, values: pa.Array, offsets: np.ndarray) -> pa.Array:
    """The one present value of each person, null where there is none, `(people,)`.

    Raises:
        UsageError: SQ-127 with the number of people who have two.
    """
    present = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
    people = len(offsets) - 1
    owner = np.searchsorted(offsets, present, side="right") - 1
    coded = values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)
    codes = coded.indices.to_numpy(zero_copy_only=False)[present]
    first = np.full(people, -1, dtype=np.int64)
    first[owner[::-1]] = present[::-1]
    of_first = np.full(people, -1, dtype=np.int64)
    of_first[owner[::-1]] = codes[::-1]
    several = len(np.unique(owner[codes != of_first[owner]]))
    if several:
        raise UsageError(
            127,
            f"a static column holds one value a person, but {several} people have several; "
            "declare it as a feature of records, or repair the source",
            where=f"column {column}",
        )
    return values.take(pa.array(first, mask=first < 0))


def _joined(table: pa.Table, ids: pa.Array, names: pa.Array) -> dict[str, pa.Array]:
    """Columns of the second source in the order of `names`."""
    if len(pc.unique(ids)) != len(ids):
        raise UsageError(
            127,
            f"the static source names {len(ids) - len(pc.unique(ids))} people more than once; it "
            "must have one row a person",
        )
    at = pc.index_in(names, value_set=ids)
    return {name: whole(table[name]).take(at) for name in table.column_names}


def _sites(rows: Rows, names: pa.Array) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the sites and the site of each person.

    Raises:
        UsageError: SQ-127 for people with two sites, or none.
    """
    if rows.site is None or rows.site_ids is None:
        return (), np.zeros(len(names), dtype=np.int32)
    position = pc.index_in(rows.site_ids, value_set=names).to_numpy(zero_copy_only=False)
    order = np.argsort(position, kind="stable")
    offsets = np.searchsorted(position[order], np.arange(len(names) + 1))
    try:
        each = one_value("site", rows.site.take(pa.array(order)), offsets)
    except UsageError as error:
        raise error.at("the site column: one person at two sites is two clients") from None
    if each.null_count:
        raise UsageError(127, f"{each.null_count} people have no site; every person needs one")
    sites = sorted(set(each.to_pylist()))
    codes = pc.index_in(each, value_set=pa.array(sites, pa.large_string()))
    return tuple(sites), codes.to_numpy(zero_copy_only=False).astype(np.int32)
