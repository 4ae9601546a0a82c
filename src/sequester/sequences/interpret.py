"""From a source's raw columns to typed rows, at once or stretch by stretch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences import columns, identifiers, naming
from sequester.sequences.clock import TimeReader
from sequester.sequences.dates import NOTHING
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import whole
from sequester.sequences.people import Kind
from sequester.sequences.persons import OneEach, Persons, Remembered
from sequester.sequences.reshape import PARAMETER, VALUE, melt, time_of
from sequester.sequences.schema import Schema
from sequester.sequences.sieve import Sieve

Where = Callable[[int], str]
SITE = "site"


@dataclass(frozen=True)
class Typed:
    """Rows that stay, in the source's order.

    Attributes:
        person: Code of each row's person, int32 `(rows,)`.
        time: int64 `(rows,)`.
        table: Feature columns: double, dictionary or large_string; for a long table the columns
            PARAMETER (a place in `Interpreter.measured`) and VALUE.
    """

    person: np.ndarray
    time: np.ndarray
    table: pa.Table


class Interpreter:
    """Reads rows as the schema says, and remembers of each person what the next rows need.

    Attributes:
        persons: Everybody who was named, with usable rows or without.
        kinds: Every feature column and what it is.
        measured: Of a long table, the measurements that records have as columns.
        facts: Counts of what was found.
        site: Site of each person; of all rows, those that were left out included.
        static: The columns with one value a person.
    """

    def __init__(
        self,
        schema: Schema,
        facts: ReadFacts,
        *,
        elsewhere: Sequence[str] = (),
        whole_source: bool = True,
    ) -> None:
        """For a source of this schema.

        Args:
            schema: What its columns are.
            facts: Receives the counts.
            elsewhere: Declared columns that come from a second source.
            whole_source: Everything comes in one stretch, so that forms can be told from it.
        """
        self.persons = Persons()
        self.kinds: dict[str, Kind] = {}
        self.measured = tuple(n for n in schema.numeric if n not in schema.static)
        self.site = OneEach()
        self.static: dict[str, OneEach] = {}
        self._schema = schema
        self.facts = facts
        self._elsewhere = frozenset(elsewhere)
        self._clock = TimeReader(time_of(schema), facts, whole_column=whole_source)
        self._gone = Remembered(fill=False)

    @property
    def time_kind(self) -> str:
        """What time turned out to be."""
        return self._clock.kind

    @property
    def gone(self) -> np.ndarray:
        """Who keeps no record, because of one bad value under `drop-person`, bool `(people,)`."""
        return self._gone.of(len(self.persons))

    def take(self, table: pa.Table, where: Where) -> Typed:
        """Type the rows of one stretch; what cannot be used is treated as the schema declares.

        Args:
            table: Raw columns.
            where: Names the place of a row in the source.
        """
        schema = self._schema
        if schema.wide is not None:
            moments, inner = len(schema.wide.columns), where
            table, schema = melt(table, schema)

            def where(row: int) -> str:
                return inner(row // moments)

        taken = self._taken(table, schema)
        words, at = identifiers.coded(table[schema.person], fold_case=schema.fold_case)
        person = self.persons.codes(words, at)
        sieve = Sieve(table.num_rows)
        time = self._time(table, schema, person, sieve)
        if schema.site:
            self.site.add(person, columns.text_of(table[schema.site]))
        if schema.parameter:
            typed, stays = self._measurements(table, schema, sieve, where)
        else:
            typed, stays = self._features(table, taken, sieve), None
        gone = np.zeros(table.num_rows, dtype=bool)
        keep = sieve.keep(schema.bad_values, gone, where, self.facts)
        self.gone[person[gone]] = True
        stays = keep if stays is None else keep & stays
        if not stays.all():
            at = np.flatnonzero(stays)
            person, time, typed = person[at], time[at], typed.take(pa.array(at))
        return self._without_static(Typed(person, time, typed))

    def needed(self, schema: Schema | None = None) -> list[str]:
        """Columns that the source must have: as declared, or by a schema already made long."""
        schema = schema or self._schema
        time = [schema.time.column, schema.time.clock_column]
        if schema.wide is not None:
            time = list(schema.wide.columns)
        roles = [schema.person, *time, schema.site, schema.parameter, schema.value]
        made = schema.numeric if schema.parameter else ()
        made = (*made, schema.wide.value) if schema.wide is not None else made
        declared = [name for name in schema.features if name not in made]
        return [name for name in [*roles, *declared] if name and name not in self._elsewhere]

    def check_columns(self, here: Sequence[str], needed: Sequence[str]) -> None:
        """Refuse a source without a column that is needed.

        Raises:
            UsageError: SQ-102 for a declared column that is missing.
        """
        if absent := [name for name in needed if name not in here]:
            raise UsageError(
                102,
                f"there is no column {', '.join(map(repr, absent))}; "
                f"{naming.columns_of(here, needed)}",
            )

    def _taken(self, table: pa.Table, schema: Schema) -> list[str]:
        """The feature columns to read from the table.

        Raises:
            UsageError: SQ-102 for a declared column that is missing, SQ-103 for one undeclared.
        """
        here = table.column_names
        needed = self.needed(schema)
        self.check_columns(here, needed)
        declared = [name for name in schema.features if name in needed]
        if schema.parameter and declared:
            raise UsageError(
                124,
                "a long table has the features that `numeric` names; move the others to a static "
                "source",
            )
        extra = [name for name in here if name not in {*needed, *schema.features, *schema.ignore}]
        if schema.features and extra and "*" not in schema.ignore:
            raise UsageError(
                103,
                f"columns {naming.quoted(extra)} are not declared; declare them as "
                "numeric, categorical or text, or list them in `ignore` (['*'] for all)",
            )
        if schema.features:
            return declared
        return [] if "*" in schema.ignore else extra

    def _time(
        self, table: pa.Table, schema: Schema, person: np.ndarray, sieve: Sieve
    ) -> np.ndarray:
        """Time of every row; what cannot be read goes to the sieve."""
        name, people = schema.time.column, len(self.persons)
        if not name:
            return self._clock.order(person, people)
        column = table[name]
        if schema.time.clock_column:
            both = [columns.text_of(table[part]) for part in (name, schema.time.clock_column)]
            blank = pa.scalar(" ", pa.large_string())
            column = pa.chunked_array([pc.binary_join_element_wise(*both, blank)])
        time = self._clock.read(column)
        sieve.add(110, name, "no readable time within the bounds", time == NOTHING, maskable=False)
        if self._clock.kind == "clock":
            time, backwards = self._clock.unwrap(time, person, people)
            reason = "the clock steps back by less than half a day"
            sieve.add(123, name, reason, backwards, maskable=False)
        return time

    def _features(self, table: pa.Table, taken: Sequence[str], sieve: Sieve) -> pa.Table:
        """Typed feature columns; notes kinds, and what is not a number."""
        arrays: dict[str, pa.Array] = {}
        for name in taken:
            column = table[name]
            kind = self.kinds.setdefault(name, columns.kind_of(name, column, self._schema))
            if kind == "numeric":
                arrays[name], bad = columns.numeric(name, column, self._schema, self.facts)
                sieve.add(109, name, "not a finite number", bad, maskable=True)
            elif kind == "categorical":
                arrays[name] = columns.words(name, column, self._schema, self.facts)
            else:
                arrays[name] = columns.texts(column)
        return pa.table(arrays) if arrays else pa.table({"": pa.nulls(table.num_rows)})

    def _measurements(
        self, table: pa.Table, schema: Schema, sieve: Sieve, where: Where
    ) -> tuple[pa.Table, np.ndarray]:
        """Typed rows of a long table, and which of them were declared and hold a value.

        Raises:
            UsageError: SQ-103 for measurements that are neither declared nor ignored.
        """
        facts = self.facts
        self.kinds.update(dict.fromkeys(schema.numeric, "numeric"))
        parameter = columns.text_of(table[schema.parameter])
        values, bad = columns.numeric(schema.value, table[schema.value], schema, facts)
        names = (*self.measured, *(n for n in schema.static if n in schema.numeric))
        code = pc.index_in(parameter, value_set=pa.array(names, pa.large_string()))
        code = code.fill_null(-1).to_numpy(zero_copy_only=False)
        ignored = pc.is_in(parameter.fill_null(""), pa.array(schema.ignore, pa.large_string()))
        other = (code < 0) & ~ignored.to_numpy(zero_copy_only=False)
        if other.any():
            if "*" not in schema.ignore:
                raise UsageError(
                    103,
                    f"{int(other.sum())} rows measure something that is neither in `numeric` nor "
                    "in `ignore`; declare it, or ignore = ['*']",
                    where=f"first in {where(int(np.argmax(other)))}",
                )
            facts.drop(f"{schema.parameter}: not declared", int(other.sum()))
        facts.drop(f"{schema.parameter}: ignored as declared", int(((code < 0) & ~other).sum()))
        sieve.add(109, schema.value, "not a finite number", bad, maskable=True)
        numbers = values.to_numpy(zero_copy_only=False).copy()
        for j, name in enumerate(names):
            sentinels = columns.missing_numbers(schema, name)
            hit = (code == j) & np.isin(numbers, sentinels) if sentinels else None
            if hit is not None and hit.any():
                facts.mask(name, "declared as missing", int(hit.sum()))
                numbers[hit] = np.nan
        empty = (code >= 0) & np.isnan(numbers)
        facts.drop(f"{schema.value}: no value was measured", int((empty & ~bad).sum()))
        typed = pa.table({PARAMETER: code.astype(np.int32), VALUE: numbers})
        return typed, (code >= 0) & ~empty

    def _without_static(self, typed: Typed) -> Typed:
        """The rows without what belongs to the person, which is noted."""
        schema, table = self._schema, typed.table
        if schema.parameter:
            code, values = table[PARAMETER].to_numpy(), table[VALUE].combine_chunks()
            for j, name in enumerate(n for n in schema.static if n in schema.numeric):
                mine = code == len(self.measured) + j
                each = self.static.setdefault(name, OneEach())
                each.add(typed.person[mine], values.filter(pa.array(mine)))
            rest = np.flatnonzero(code < len(self.measured))
            if len(rest) == len(code):
                return typed
            return Typed(typed.person[rest], typed.time[rest], table.take(pa.array(rest)))
        here = [name for name in schema.static if name in table.column_names]
        for name in here:
            self.static.setdefault(name, OneEach()).add(typed.person, whole(table[name]))
        table = table.drop_columns(here)
        if not table.column_names:
            table = pa.table({"": pa.nulls(len(typed.person))})
        return Typed(typed.person, typed.time, table)
