"""What an outsider may know of a record, at a chosen coarseness: points as 64-bit codes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.people import People

HOUR = 3_600_000_000  # microseconds
CLOCKS = ("hour-of-week", "hour-of-day", "hour", "exact", "none")
_PERIODS = {"hour-of-day": 24, "hour-of-week": 168}


class Points:
    """The points of everybody's records, computed a stretch at a time.

    A point is a code: equal for equal parts, and different for different ones but for a chance of
    about (points)² / 2^65.
    """

    def __init__(
        self, people: People, cells: Mapping[str, float], clock: str = "hour-of-week"
    ) -> None:
        """Of these people.

        Args:
            people: Whose records.
            cells: Columns of a point; for numbers the width of a cell (0.01 degrees of latitude
                are about a kilometre), 0 for the number itself; for words it does not matter.
            clock: How time enters: one of `CLOCKS`; a `step` time always enters as it is.

        Raises:
            UsageError: SQ-128 for a negative width, an unknown clock, or a point without parts;
                SQ-102 for an unknown column.
        """
        for name, width in cells.items():
            if width < 0:
                raise UsageError(128, f"the cell of {name!r} must be ≥ 0 wide, got {width}")
        if clock not in CLOCKS:
            raise UsageError(128, f"clock is one of {', '.join(CLOCKS)}, got {clock!r}")
        if not cells and clock == "none":
            raise UsageError(128, "a point needs a column or a clock; nothing is known otherwise")
        self.people = people
        self._clock = clock
        self._parts = [_Part(people, name, width) for name, width in cells.items()]

    def of(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Owners and codes of the records `first..last-1` that have all parts.

        Returns:
            Owner, int64 `(points,)`, ascending; code, uint64 `(points,)`.
        """
        owner = owners(self.people, first, last)
        code = np.zeros(last - first, dtype=np.uint64)
        there = np.ones(last - first, dtype=bool)
        for part in self._parts:
            number, known = part.numbers(first, last, owner)
            code = mixed(code + number)
            there &= known
        if self._clock != "none":
            code = mixed(code + self._moment(first, last).view(np.uint64))
        return owner[there], code[there]

    def _moment(self, first: int, last: int) -> np.ndarray:
        time = self.people.time[first:last]
        if self.people.time_kind == "step" or self._clock == "exact":
            return time
        # 1970-01-01 was a Thursday: 72 hours later, weeks begin on Monday.
        hours: np.ndarray = time // HOUR + 72
        return hours % _PERIODS[self._clock] if self._clock in _PERIODS else hours


def owners(people: People, first: int, last: int) -> np.ndarray:
    """The person of each of the records `first..last-1`, int64 `(last - first,)`."""
    begin = int(np.searchsorted(people.offsets, first, side="right")) - 1
    end = int(np.searchsorted(people.offsets, last, side="left"))
    edges = np.clip(people.offsets[begin : end + 1], first, last)
    return np.repeat(np.arange(begin, end), np.diff(edges))


def mixed(code: np.ndarray) -> np.ndarray:
    """A permutation of the whole numbers below 2^64 whose images look random, `(n,)`.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix).
    """
    code = code + np.uint64(0x9E3779B97F4A7C15)
    code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    last: np.ndarray = code ^ (code >> np.uint64(31))
    return last


class _Part:
    """One column of a point."""

    def __init__(self, people: People, name: str, width: float) -> None:
        self._static = people.is_static(name)
        self._column = people.per_person(name) if self._static else people.column(name)
        self._width = width
        self._table = np.zeros(0, dtype=np.uint64)
        if pa.types.is_dictionary(self._column.type):
            self._table = _of_words(self._column.dictionary)

    def numbers(self, first: int, last: int, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each record a number, equal for equal values (or cells), and which are there."""
        if self._static:
            values = self._column.take(pa.array(owner))
        else:
            values = self._column.slice(first, last - first)
        there = pc.is_valid(values).to_numpy(zero_copy_only=False)
        if pa.types.is_floating(values.type):
            numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
            there = there & np.isfinite(numbers)
            cells = np.floor(numbers / self._width) if self._width else numbers
            return (cells + 0.0).view(np.uint64), there  # -0.0 is 0.0
        table = self._table
        if not pa.types.is_dictionary(values.type):
            values = values.dictionary_encode()
            table = _of_words(values.dictionary)
        codes = values.indices.fill_null(len(table)).to_numpy(zero_copy_only=False)
        return np.append(table, np.uint64(0))[codes], there


def _of_words(words: pa.Array) -> np.ndarray:
    """A number for each word that depends on the word alone, uint64 `(words,)`."""
    digests = (hashlib.blake2b(word.encode(), digest_size=8) for word in words.to_pylist())
    return np.array([int.from_bytes(each.digest(), "little") for each in digests], dtype=np.uint64)


def in_words(people: People, cells: Mapping[str, float], clock: str) -> str:
    """What a point is, for a reader."""
    parts = [
        f"{name} in cells of {width:g}" if width and people.kinds[name] == "numeric" else name
        for name, width in cells.items()
    ]
    if clock != "none":
        parts.append("step" if people.time_kind == "step" else clock.replace("-", " "))
    return " × ".join(parts)
