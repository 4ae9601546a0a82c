"""Records of one person that share a time: counted, flagged, and merged as declared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.people import People
from sequester.sequences.schema import Repeats


def merge_repeats(people: People, rule: Repeats) -> People:
    """Apply the declared rule to repeated times, and count them in `facts` under any rule.

    `mean` averages the numbers and takes the first of everything else; a measured number beats
    a missing one. Repeats whose values differ flag their person: two sensors under one name, or
    two people.

    Raises:
        UsageError: SQ-120 under `refuse`.
    """
    group = _groups(people)
    repeated = people.records - (int(group[-1]) + 1 if people.records else 0)
    people.facts.repeated_records = repeated
    if not repeated:
        return people
    conflicted = _conflicted(people, group)
    people.facts.conflicted_people = conflicted
    if conflicted:
        people.facts.note(
            f"repeated times with different values: {conflicted} of {len(people)} people; two "
            "devices, or two people, under one identifier"
        )
    if rule == "refuse":
        raise UsageError(
            120,
            f"{repeated} records repeat the time of another record of their person, with "
            f"different values for {conflicted} people; declare repeats = keep, first, last or "
            "mean",
        )
    if rule == "keep":
        return people
    return _merge(people, group, rule)


def _groups(people: People) -> np.ndarray:
    """Number of the (person, time) group of each record, ascending."""
    if not people.records:
        return np.zeros(0, dtype=np.int64)
    owner = people.owner
    new = np.ones(people.records, dtype=bool)
    new[1:] = (np.diff(people.time) != 0) | (np.diff(owner) != 0)
    groups: np.ndarray = np.cumsum(new) - 1
    return groups


def _conflicted(people: People, group: np.ndarray) -> int:
    """People for whom two present values of one column differ at one time."""
    flagged = np.zeros(len(people), dtype=bool)
    owner = people.owner
    groups = int(group[-1]) + 1
    for name in people.kinds:
        if people.is_static(name):
            continue
        values = people.column(name)
        coded = values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        present = np.flatnonzero(codes >= 0)
        first = np.full(groups, -1, dtype=np.int64)
        first[group[present][::-1]] = codes[present][::-1]
        flagged[owner[present[codes[present] != first[group[present]]]]] = True
    return int(flagged.sum())


def _merge(people: People, group: np.ndarray, rule: Repeats) -> People:
    """One record a group; `first` and `last` take, for each column, a present value."""
    groups = int(group[-1]) + 1
    columns: dict[str, pa.Array] = {}
    for name in people.kinds:
        if people.is_static(name):
            continue
        values = people.column(name)
        present = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
        if rule == "mean" and people.kinds[name] == "numeric":
            numbers = values.take(pa.array(present)).to_numpy(zero_copy_only=False)
            total = np.bincount(group[present], weights=numbers, minlength=groups)
            count = np.bincount(group[present], minlength=groups)
            mean = total / np.maximum(count, 1)
            columns[name] = pa.array(mean, mask=count == 0)
            continue
        chosen = present if rule == "last" else present[::-1]
        at = np.full(groups, -1, dtype=np.int64)
        at[group[chosen]] = chosen
        columns[name] = values.take(pa.array(at, mask=at < 0))
    lead = np.searchsorted(group, np.arange(groups))
    table = pa.table(columns) if columns else people.records_table.take(pa.array(lead))
    people.facts.drop(f"repeated time, merged by `{rule}`", people.records - groups)
    return replace(
        people,
        _records=table,
        time=people.time[lead],
        offsets=np.searchsorted(people.owner[lead], np.arange(len(people) + 1)).astype(np.int64),
    )
