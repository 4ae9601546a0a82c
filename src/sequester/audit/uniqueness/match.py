"""How many people have all of some points: exact, over everybody.

Where there are few people, each point holds a set of bits (one per person) and k points are met
by k bitwise ands. Where there are many, sets of bits would be mostly zeros: each point then
holds its sorted list of people; the shortest of the k lists is walked, and each candidate is
looked up among all (person, point) pairs.
Both count the same thing; `Postings.of` picks by size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.audit.uniqueness.places import Integers, Points

_BITSET_BYTES = 256 * 2**20
_CHUNK = 8192


class Postings(Protocol):
    """Answers how many people have all of the first 1, 2, …, k points of each query."""

    def counts(self, queries: Integers) -> NDArray[np.int32]:
        """People matching the first j points, `(queries, k)`; queries are `(queries, k)`."""
        ...


def postings(points: Points) -> Postings:
    """The faster index for this many people and points."""
    size = points.kinds * ((points.people + 63) // 64) * 8
    dense = len(points.owner) * 16 > points.kinds * ((points.people + 63) // 64)
    if size <= _BITSET_BYTES and (dense or points.people <= 4096):
        return BitPostings.of(points)
    return ListPostings.of(points)


@dataclass(frozen=True)
class BitPostings:
    """One bit per person and point, uint64 `(kinds, people / 64)`."""

    bits: NDArray[np.uint64]

    @classmethod
    def of(cls, points: Points) -> BitPostings:
        """Set the bits word by word: pairs sorted by (point, word) are or-ed in runs."""
        words = (points.people + 63) // 64
        place = points.point * words + (points.owner >> 6)
        order = np.argsort(place, kind="stable")
        place = place[order]
        bit = np.uint64(1) << (points.owner[order] & 63).astype(np.uint64)
        bits = np.zeros(points.kinds * words, dtype=np.uint64)
        if len(place):
            starts = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
            bits[place[starts]] = np.bitwise_or.reduceat(bit, starts)
        return cls(bits.reshape(points.kinds, words))

    def counts(self, queries: Integers) -> NDArray[np.int32]:
        """See `Postings`."""
        found = np.empty(queries.shape, dtype=np.int32)
        for start in range(0, len(queries), _CHUNK):
            part = queries[start : start + _CHUNK]
            meeting = self.bits[part[:, 0]]
            found[start : start + _CHUNK, 0] = _ones(meeting)
            for k in range(1, part.shape[1]):
                meeting &= self.bits[part[:, k]]
                found[start : start + _CHUNK, k] = _ones(meeting)
        return found


@dataclass(frozen=True)
class ListPostings:
    """Sorted people of each point, and all pairs in order for look-up.

    Attributes:
        owner: People by point, `(pairs,)`.
        offsets: Where each point's people begin, `(kinds + 1,)`.
        pair: `point · people + person`, ascending, `(pairs,)`.
        people: How many people there are.
    """

    owner: Integers
    offsets: Integers
    pair: Integers
    people: int

    @classmethod
    def of(cls, points: Points) -> ListPostings:
        """Sort the pairs by point."""
        pair = points.point * points.people + points.owner
        pair.sort()
        point = pair // points.people
        return cls(
            owner=pair - point * points.people,
            offsets=np.searchsorted(point, np.arange(points.kinds + 1)),
            pair=pair,
            people=points.people,
        )

    def counts(self, queries: Integers) -> NDArray[np.int32]:
        """See `Postings`."""
        lengths = np.diff(self.offsets)
        found = np.empty(queries.shape, dtype=np.int32)
        for start in range(0, len(queries), _CHUNK):
            self._chunk(queries[start : start + _CHUNK], lengths, found[start : start + _CHUNK])
        return found

    def _chunk(self, queries: Integers, lengths: Integers, found: NDArray[np.int32]) -> None:
        # Candidates for j points are those for j−1 points that also have the j-th: each query
        # starts from its first point's people and loses some with every further point.
        found[:, 0] = lengths[queries[:, 0]]
        sizes = lengths[queries[:, 0]]
        query = np.repeat(np.arange(len(queries)), sizes)
        before = np.cumsum(sizes) - sizes
        index = np.arange(len(query)) - before[query] + self.offsets[queries[query, 0]]
        person = self.owner[index]
        for k in range(1, queries.shape[1]):
            wanted = queries[query, k] * self.people + person
            place = np.minimum(np.searchsorted(self.pair, wanted), len(self.pair) - 1)
            kept = self.pair[place] == wanted
            query, person = query[kept], person[kept]
            found[:, k] = np.bincount(query, minlength=len(queries))


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bits that are set in each row of `(queries, words)`."""
    if hasattr(np, "bitwise_count"):
        ones: Integers = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        return ones
    summed: Integers = _ONES_OF_BYTE[words.view(np.uint8)].sum(axis=1, dtype=np.int64)
    return summed


_ONES_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)
