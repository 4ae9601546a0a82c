"""From typed rows to People: order, ownership, repeated times, static columns, sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.interpret import SITE, Interpreter, Typed
from sequester.sequences.people import Kind, People
from sequester.sequences.persons import Persons
from sequester.sequences.repeats import Moments
from sequester.sequences.reshape import pivot
from sequester.sequences.schema import Schema

GONE = "other rows of a person with such a row"
_DIGIT = 1 << 16


@dataclass(frozen=True)
class Records:
    """Settled records, in order of (person, time).

    Attributes:
        counts: Records of each person, int64 `(people,)`.
        time: int64 `(records,)`.
        table: Columns that change from record to record.
    """

    counts: np.ndarray
    time: np.ndarray
    table: pa.Table


@dataclass(frozen=True)
class Static:
    """A second source, one row a person.

    Attributes:
        person: Code of each row's person among all `Persons`, `(rows,)`.
        table: Its columns.
        kinds: What they are.
    """

    person: np.ndarray
    table: pa.Table
    kinds: dict[str, Kind]


def static_of(second: Interpreter, typed: Typed, persons: Persons) -> Static:
    """The rows of a second source, whose people join the others.

    Raises:
        UsageError: SQ-127 when it names a person twice.
    """
    if twice := int((np.bincount(typed.person, minlength=1) > 1).sum()):
        raise UsageError(
            127,
            f"the static source names {twice} people more than once; it must have one row a person",
        )
    words = second.persons.words
    codes = persons.codes(words, np.arange(len(words)))
    return Static(codes[typed.person], typed.table, second.kinds)


class Settler:
    """Makes records of rows that are in order: all at once, or in stretches that divide no moment.

    Attributes:
        counts: Records of each person so far, int64 `(people,)`.
    """

    def __init__(self, reader: Interpreter, schema: Schema, people: int) -> None:
        """For the rows of one reader."""
        self.counts = np.zeros(people, dtype=np.int64)
        self._measured = reader.measured if schema.parameter else None
        self._moments = Moments(schema.repeats, people)

    def take(
        self, owner: np.ndarray, time: np.ndarray, table: pa.Table
    ) -> tuple[np.ndarray, pa.Table]:
        """Time and columns of the records that the rows make.

        Args:
            owner: Position of each row's person, ascending, `(rows,)`.
            time: Ascending within a person, int64 `(rows,)`.
            table: The other columns.
        """
        if self._measured is not None:
            owner, time, table = pivot(owner, time, table, self._measured)
        owner, time, table = self._moments.take(owner, time, table)
        self.counts += np.bincount(owner, minlength=len(self.counts))
        return time, table

    def finish(self, facts: ReadFacts) -> None:
        """Write down the counts; see `Moments.finish`."""
        self._moments.finish(facts)


def settle(typed: Typed, reader: Interpreter, schema: Schema, facts: ReadFacts) -> Records:
    """All rows in order of (person, time), stable in the source's order, as records."""
    _, rank = reader.persons.ranked()
    person, time, table = typed.person, typed.time, typed.table
    if (left := reader.gone[person]).any():
        facts.drop(GONE, int(left.sum()))
        stays = np.flatnonzero(~left)
        person, time, table = person[stays], time[stays], table.take(pa.array(stays))
    owner = rank[person]
    if (order := in_order(owner, time)) is not None:
        owner, time, table = owner[order], time[order], table.take(pa.array(order))
    settler = Settler(reader, schema, len(rank))
    time, table = settler.take(owner, time, table)
    settler.finish(facts)
    return Records(settler.counts, time, table)


def in_order(owner: np.ndarray, time: np.ndarray) -> np.ndarray | None:
    """A stable order by (owner, time); None where they are in order.

    Whole numbers below 2^16 are sorted by counting, so the people, digit by digit, cost less
    than a comparison sort of both.
    """
    later = time[1:] >= time[:-1]
    if bool(((owner[1:] > owner[:-1]) | ((owner[1:] == owner[:-1]) & later)).all()):
        return None
    order = np.arange(len(time)) if bool(later.all()) else np.argsort(time, kind="stable")
    for digit in range(1 + int(owner.max(initial=0)).bit_length() // 16):
        part = (owner[order] // _DIGIT**digit % _DIGIT).astype(np.uint16)
        order = order[np.argsort(part, kind="stable")]
    return order


def people_of(
    reader: Interpreter,
    schema: Schema,
    records: Records,
    static: Static | None,
    facts: ReadFacts,
) -> People:
    """People over settled records.

    Raises:
        UsageError: SQ-127 for static columns, or sites, that hold more than one value for a
            person.
    """
    names, rank = reader.persons.ranked()
    site_names, site = _sites(reader, schema, rank)
    kinds = dict(reader.kinds) | (static.kinds if static is not None else {})
    return People(
        _ids=names,
        _records=records.table,
        _static=_static(reader, schema, static, rank),
        offsets=np.concatenate([[0], np.cumsum(records.counts)]).astype(np.int64),
        time=records.time,
        time_kind=reader.time_kind,
        kinds=kinds,
        site_names=site_names,
        site=site,
        facts=facts,
    )


def _static(
    reader: Interpreter, schema: Schema, second: Static | None, rank: np.ndarray
) -> pa.Table:
    """Static columns, one row a person, in the order of positions."""
    people = len(rank)
    code = pa.array(np.argsort(rank))
    gone = np.zeros(people, dtype=bool)
    gone[: len(reader.gone)] = reader.gone
    columns: dict[str, pa.Array] = {}
    for name in schema.static:
        if name in reader.static:
            values = reader.static[name].values(name, people)
            values = pc.if_else(pa.array(gone), pa.scalar(None, values.type), values).take(code)
            columns[name] = _typed(values, reader.kinds[name])
    if second is not None:
        at = np.full(people, -1, dtype=np.int64)
        at[second.person] = np.arange(len(second.person))
        rows = pa.array(at, mask=at < 0).take(code)
        for name in second.kinds:
            columns[name] = second.table[name].combine_chunks().take(rows)
    return pa.table(columns) if columns else pa.table({"": pa.nulls(people)}).select([])


def _typed(values: pa.Array, kind: Kind) -> pa.Array:
    if kind == "numeric":
        return values.cast(pa.float64())
    texts = values.cast(pa.large_string())
    return texts.dictionary_encode() if kind == "categorical" else texts


def _sites(
    reader: Interpreter, schema: Schema, rank: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the sites and the site of each person.

    Raises:
        UsageError: SQ-127 for people with two sites, or none.
    """
    if not schema.site:
        return (), np.zeros(len(rank), dtype=np.int32)
    try:
        each = reader.site.values(SITE, len(rank)).take(pa.array(np.argsort(rank)))
    except UsageError as error:
        raise error.at("the site column: one person at two sites is two clients") from None
    if each.null_count:
        raise UsageError(127, f"{each.null_count} people have no site; every person needs one")
    sites = sorted(set(each.to_pylist()))
    codes = pc.index_in(each, value_set=pa.array(sites, pa.large_string()))
    return tuple(sites), codes.to_numpy(zero_copy_only=False).astype(np.int32)
