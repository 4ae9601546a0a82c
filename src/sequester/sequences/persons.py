"""Who has been met so far, and what is remembered of each person from stretch to stretch.

A file larger than memory is read in stretches. Whatever concerns one row is settled there and
then; whatever concerns a person (the last clock, the one site, rows to be left out) is a number a
person, kept here; whatever concerns a moment is settled once the records are in order. So memory
grows with the people, never with the records of one of them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError


class Persons:
    """Identifiers in the order in which they turned up; a person's code is the place there."""

    def __init__(self) -> None:
        """Nobody yet."""
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        """How many people have turned up."""
        return len(self._codes)

    def codes(self, words: list[str], at: np.ndarray) -> np.ndarray:
        """Codes of normalised identifiers, int32 `(rows,)`; newcomers get the next ones.

        Args:
            words: Normal forms.
            at: Which of them each row has, `(rows,)`.
        """
        known = self._codes
        table = np.array([known.setdefault(word, len(known)) for word in words], dtype=np.int32)
        codes: np.ndarray = table[at]
        return codes

    @property
    def words(self) -> list[str]:
        """All identifiers, by code."""
        return list(self._codes)

    def ranked(self) -> tuple[pa.Array, np.ndarray]:
        """Identifiers in ascending order of bytes, and the place there of each code, int32."""
        names = pa.array(self._codes, pa.large_string())
        order = pc.sort_indices(names)
        rank = np.empty(len(names), dtype=np.int32)
        rank[order.to_numpy()] = np.arange(len(names), dtype=np.int32)
        return names.take(order), rank


class Remembered:
    """One number a person, which grows as people turn up."""

    def __init__(self, fill: int | bool) -> None:
        """`fill` is the number of a person who has just turned up."""
        self._fill = fill
        self._numbers = np.full(0, fill)

    def of(self, people: int) -> np.ndarray:
        """The numbers of the first `people` people, to be read and written in place."""
        if people > len(self._numbers):
            grown = np.full(max(people, 2 * len(self._numbers)), self._fill)
            grown[: len(self._numbers)] = self._numbers
            self._numbers = grown
        return self._numbers[:people]


class OneEach:
    """The one value that each person has in a column."""

    def __init__(self) -> None:
        """No value yet."""
        self._seen: pa.Table | None = None

    def add(self, person: np.ndarray, values: pa.Array) -> None:
        """Take note of the values of some rows, `(rows,)`; those that are missing say nothing."""
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_floating(values.type):
            values = pc.add(values, 0.0)  # -0.0 is 0.0
        pairs = pa.table({"person": person, "value": values}).filter(pc.is_valid(values))
        pairs = _distinct(pairs)
        self._seen = (
            pairs if self._seen is None else _distinct(pa.concat_tables([self._seen, pairs]))
        )

    def values(self, column: str, people: int) -> pa.Array:
        """The value of each person by code, null where there is none, `(people,)`.

        Raises:
            UsageError: SQ-127 with the number of people who have two.
        """
        if self._seen is None:
            return pa.nulls(people, pa.float64())
        person = self._seen["person"].to_numpy()
        if several := int((np.bincount(person, minlength=people) > 1).sum()):
            raise UsageError(
                127,
                f"a static column holds one value a person, but {several} people have several; "
                "declare it as a feature of records, or repair the source",
                where=f"column {column}",
            )
        at = np.full(people, -1, dtype=np.int64)
        at[person] = np.arange(len(person))
        return self._seen["value"].combine_chunks().take(pa.array(at, mask=at < 0))


def _distinct(pairs: pa.Table) -> pa.Table:
    return pairs.group_by(["person", "value"], use_threads=False).aggregate([])
