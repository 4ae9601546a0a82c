"""What one moment holds: measurements made one record, records that share a time merged.

Records arrive in order of (person, time), all at once or in stretches that never divide a moment.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import whole
from sequester.sequences.schema import Repeats


class Moments:
    """Applies the declared rule to repeated times, and counts them under any rule.

    `mean` averages the numbers and takes the first of everything else; a measured number beats
    a missing one. Repeats whose values differ flag their person: two sensors under one name, or
    two people.
    """

    def __init__(self, rule: Repeats, people: int) -> None:
        """For records of `people` people under a rule."""
        self._rule = rule
        self._repeated = 0
        self._conflicted = np.zeros(people, dtype=bool)

    def take(
        self, owner: np.ndarray, time: np.ndarray, table: pa.Table
    ) -> tuple[np.ndarray, np.ndarray, pa.Table]:
        """Records in order, and what becomes of them under the rule.

        Args:
            owner: Position of each record's person, ascending, `(records,)`.
            time: Ascending within a person, int64 `(records,)`.
            table: The other columns.
        """
        new = changes(owner, time)
        lead = np.flatnonzero(new)
        repeated = len(owner) - len(lead)
        self._repeated += repeated
        if not repeated:
            return owner, time, table
        group = np.cumsum(new) - 1
        size = np.diff(np.append(lead, len(owner)))
        alike = np.flatnonzero(size[group] > 1)
        self._flag(owner[alike], group[alike], table.take(pa.array(alike)))
        if self._rule in {"keep", "refuse"}:
            return owner, time, table
        columns = {name: self._merged(table[name], group, len(lead)) for name in table.column_names}
        return owner[lead], time[lead], pa.table(columns)

    def _flag(self, owner: np.ndarray, group: np.ndarray, table: pa.Table) -> None:
        """Mark the people for whom two present values of one column differ at one time."""
        for name in table.column_names:
            values = whole(table[name])
            coded = values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)
            codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            present = np.flatnonzero(codes >= 0)
            kept, mine = codes[present], group[present]
            first = np.full(int(group[-1]) + 1, -1, dtype=np.int64)
            first[mine[::-1]] = kept[::-1]
            self._conflicted[owner[present[kept != first[mine]]]] = True

    def _merged(self, column: pa.ChunkedArray, group: np.ndarray, groups: int) -> pa.Array:
        """One value a group; `first` and `last` take a value that is present."""
        values = whole(column)
        present = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
        if self._rule == "mean" and pa.types.is_floating(values.type):
            numbers = values.take(pa.array(present)).to_numpy(zero_copy_only=False)
            total = np.bincount(group[present], weights=numbers, minlength=groups)
            count = np.bincount(group[present], minlength=groups)
            return pa.array(total / np.maximum(count, 1), mask=count == 0)
        chosen = present if self._rule == "last" else present[::-1]
        at = np.full(groups, -1, dtype=np.int64)
        at[group[chosen]] = chosen
        return values.take(pa.array(at, mask=at < 0))

    def finish(self, facts: ReadFacts) -> None:
        """Write down the counts, once all records have been seen.

        Raises:
            UsageError: SQ-120 under `refuse`.
        """
        conflicted = int(self._conflicted.sum())
        facts.repeated_records, facts.conflicted_people = self._repeated, conflicted
        if conflicted:
            facts.note(
                f"repeated times with different values: {conflicted} of {len(self._conflicted)} "
                "people; two devices, or two people, under one identifier"
            )
        if self._repeated and self._rule == "refuse":
            raise UsageError(
                120,
                f"{self._repeated} records repeat the time of another record of their person, "
                f"with different values for {conflicted} people; declare repeats = keep, first, "
                "last or mean",
            )
        if self._rule in {"first", "last", "mean"}:
            facts.drop(f"repeated time, merged by `{self._rule}`", self._repeated)


def changes(*keys: np.ndarray) -> np.ndarray:
    """Where any of the sorted keys differs from the row before; True at the first row."""
    new = np.ones(len(keys[0]), dtype=bool)
    new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return new
