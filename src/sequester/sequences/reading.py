"""`People.read`: open a source, interpret its columns, assemble the people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sequester.core.errors import UsageError
from sequester.sequences.assemble import Static, people_of, settle, static_of
from sequester.sequences.erased import read_key, refuse_erased
from sequester.sequences.facts import ReadFacts
from sequester.sequences.identifiers import refuse_lookalikes
from sequester.sequences.interpret import Interpreter
from sequester.sequences.parts import check_table, join
from sequester.sequences.people import People
from sequester.sequences.persons import Persons
from sequester.sequences.room import fitting
from sequester.sequences.schema import Schema
from sequester.sequences.sources import open_parts
from sequester.sequences.spill import read_spilled


def read_people(
    source: Any,
    schema: Schema,
    *,
    static: Any = None,
    memory: int | None = None,
    spill: str | Path | None = None,
) -> People:
    """See `People.read`.

    Raises:
        UsageError: SQ-107 for a source without any person; SQ-1xx of the parts.
    """
    facts = ReadFacts()
    second = _static_source(static, schema, facts)
    elsewhere = second[1].table.column_names if second is not None else ()
    reader = Interpreter(schema, facts, elsewhere=elsewhere, whole_source=memory is None)
    if memory is None:
        whole = join(fitting(open_parts(source, schema.layout, facts)))
        facts.rows += whole.table.num_rows
        typed = reader.take(whole.table, whole.where)
        joined = _joined(second, reader.persons)
        records = settle(typed, reader, schema, facts)
    else:
        parts = open_parts(source, schema.layout, facts)
        with read_spilled(parts, reader, schema, memory, spill) as spilled:
            joined = _joined(second, reader.persons)
            records = spilled.records(facts)
    if not len(reader.persons):
        raise UsageError(107, "the source has columns but no rows: there is nobody in it")
    words, fold_case = reader.persons.words, schema.fold_case
    refuse_lookalikes(words, fold_case=fold_case)
    if schema.erased:
        refuse_erased(words, schema.erased, read_key(schema.erased_key), fold_case=fold_case)
    people = people_of(reader, schema, records, joined, facts)
    if joined is not None and (silent := int((people.counts == 0).sum())):
        facts.note(f"people without a record: {silent}; they count as people")
    return people


def _joined(second: tuple[Interpreter, Any] | None, persons: Persons) -> Static | None:
    return None if second is None else static_of(*second, persons)


def _static_source(static: Any, schema: Schema, facts: ReadFacts) -> tuple[Interpreter, Any] | None:
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
    own = replace(own, static=(), time=replace(own.time, column="", clock_column=""))
    whole = join(open_parts(source, own.layout, ReadFacts()))
    second = Interpreter(own, facts)
    return second, second.take(check_table(whole.table, "the static source"), whole.where)
