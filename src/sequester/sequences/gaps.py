"""Times between neighbouring records of a person, exactly and never all in memory at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sequester.sequences.people import People

_STRETCH = 1 << 20  # records looked at at once
_DIGIT = 16  # bits of a gap that one pass settles


class Gaps:
    """The gaps of all people.

    Attributes:
        count: How many there are.
        most: The longest, in seconds (steps for `step` time); None where there is none.
    """

    def __init__(self, people: People) -> None:
        """Look at all of them once."""
        self._people = people
        self._unit = 1.0 if people.time_kind == "step" else 1e6
        self._firsts = people.offsets[:-1][people.counts > 0]
        self.count = people.records - len(self._firsts)
        ends = [(int(gaps.min()), int(gaps.max())) for gaps in self._stretches() if len(gaps)]
        self._least = min((low for low, _ in ends), default=0)
        self._most = max((high for _, high in ends), default=0)
        self.most = self._most / self._unit if self.count else None

    def __iter__(self) -> Iterator[np.ndarray]:
        """Gaps in seconds (steps), float64, a stretch at a time."""
        for gaps in self._stretches():
            yield gaps / self._unit

    def _stretches(self) -> Iterator[np.ndarray]:
        """Gaps as they are, int64; none before a person's first record."""
        for start in range(1, self._people.records, _STRETCH):
            stop = min(start + _STRETCH, self._people.records)
            gaps = np.diff(self._people.time[start - 1 : stop])
            first, last = np.searchsorted(self._firsts, [start, stop])
            yield np.delete(gaps, self._firsts[first:last] - start)

    def quantile(self, share: float) -> float | None:
        """The gap below which `share` of them lie, between neighbours in proportion.

        None where there is no gap.
        """
        if not self.count:
            return None
        place = share * (self.count - 1)
        low = self._ranked(int(place))
        high = self._ranked(min(int(place) + 1, self.count - 1))
        return (low + (high - low) * (place - int(place))) / self._unit

    def _ranked(self, rank: int) -> int:
        """The gap with `rank` shorter ones: its digits are found one by one, by counting."""
        digits = -(-(self._most - self._least).bit_length() // _DIGIT)
        found = 0
        for shift in range(_DIGIT * (digits - 1), -1, -_DIGIT):
            counts = np.zeros(1 << _DIGIT, dtype=np.int64)
            for gaps in self._stretches():
                above = (gaps - self._least) >> shift
                digit = above[above >> _DIGIT == found] & ((1 << _DIGIT) - 1)
                counts += np.bincount(digit, minlength=1 << _DIGIT)
            reached = np.cumsum(counts)
            at = int(np.searchsorted(reached, rank, side="right"))
            rank -= int(reached[at] - counts[at])
            found = found << _DIGIT | at
        return self._least + found
