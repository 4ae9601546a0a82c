"""How often a few random points of a person single that person out, counted over everybody.

Source: de Montjoye, Hidalgo, Verleysen, Blondel 2013 (Scientific Reports 3:1376). Points are drawn
of at most `DRAWN` people and looked for among everybody's. Records pass by in stretches, twice:
once to collect the points of those people, once to find others who have them too. So memory does
not grow with the records.

    a person's points ──draw 4──▶ query ──▶ depth: how many of them, in order, somebody else has
                                             k points single out where depth < k
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sequester.core.rng import public_generator
from sequester.sequences.points import Points, mixed

MOST_KNOWN = 4
DRAWN = 4000  # people whose points are drawn: a share's standard error is below 0.008
KEPT = 256  # different points that are kept of one of them, chosen at random
_STRETCH = 1 << 19  # records of a stretch
_CANDIDATES = 1 << 21  # pairs of a query and another person, or words of bits, seen at once
_MOST_WORDS = 1 << 23  # of 64 bits, in the sets of people of a stretch


def singled_out(points: Points, *, draws: int = 100, seed: int = 0) -> dict[str, float | None]:
    """Share of draws of 1 to 4 points that fit one person alone, averaged over people.

    Args:
        points: What somebody may know.
        draws: Draws a person; the first k of each serve for k.
        seed: Of the public generator that chooses people and points.

    Returns:
        For "1" to "4" the share, None where nobody has so many different points.
    """
    generator = public_generator(seed)
    owner, code = _collected(points, generator)
    person, queries, width = _drawn(owner, code, draws, generator)
    wanted, queries = _numbered(queries, width)
    depth = np.zeros(len(queries), dtype=np.int8)
    alive = np.arange(len(queries))
    for others, place in _sightings(points, wanted):
        deeper = _deeper(others, place, person[alive], queries[alive])
        depth[alive] = np.maximum(depth[alive], deeper)
        alive = alive[depth[alive] < width[alive]]
    shares: dict[str, float | None] = {}
    for k in range(1, MOST_KNOWN + 1):
        enough = width >= k  # a person's draws all have the same width
        shares[str(k)] = float((depth[enough] < k).mean()) if enough.any() else None
    return shares


def _stretches(records: int) -> Iterator[tuple[int, int]]:
    """Ends of stretches; short ones first, in which common points already meet their others."""
    first, size = 0, 1 << 10
    while first < records:
        yield first, min(first + size, records)
        first, size = first + size, min(2 * size, _STRETCH)


def _collected(points: Points, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Different points of the people to draw from, by owner; at most `KEPT` of each."""
    with_records = np.flatnonzero(points.people.counts)
    chosen = np.zeros(len(points.people), dtype=bool)
    most = min(DRAWN, len(with_records))
    chosen[generator.choice(with_records, most, replace=False)] = True
    owner, code = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    for first, last in _stretches(points.people.records):
        whose, what = points.of(first, last)
        mine = chosen[whose]
        # Only the last person so far can have points both before and in this stretch.
        at = int(np.searchsorted(owner, owner[-1])) if len(owner) else 0
        new = _kept(*_distinct(
            np.concatenate([owner[at:], whose[mine]]), np.concatenate([code[at:], what[mine]])
        ))  # fmt: skip
        owner, code = np.append(owner[:at], new[0]), np.append(code[:at], new[1])
    return owner, code


def _distinct(owner: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each pair once, in order of (owner, code)."""
    order = np.lexsort((code, owner))
    owner, code = owner[order], code[order]
    new = np.ones(len(owner), dtype=bool)
    new[1:] = (owner[1:] != owner[:-1]) | (code[1:] != code[:-1])
    return owner[new], code[new]


def _kept(owner: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `KEPT` points of each owner with the least of a hash of both: any are as likely."""
    order = np.lexsort((mixed(code ^ mixed(owner.astype(np.uint64))), owner))
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    keep = order[rank < KEPT]
    return owner[keep], code[keep]


def _drawn(
    owner: np.ndarray, code: np.ndarray, draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Person, codes `(queries, 4)` and number of points of each draw, without repetition.

    The j-th draw is a rank among what is left, lifted over the ranks taken before.
    """
    people, begin, count = np.unique(owner, return_index=True, return_counts=True)
    person, begin, count = (np.repeat(each, draws) for each in (people, begin, count))
    taken = np.zeros((len(person), MOST_KNOWN), dtype=np.int64)
    for j in range(MOST_KNOWN):
        rank = (generator.random(len(person)) * np.maximum(count - j, 1)).astype(np.int64)
        for before in np.sort(taken[:, :j], axis=1).T:
            rank += rank >= before
        taken[:, j] = np.minimum(rank, count - 1)  # beyond a person's points: not looked at
    return person, code[begin[:, None] + taken], np.minimum(count, MOST_KNOWN)


def _numbered(queries: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The codes that are looked for, ascending, and the queries as places there, -1 for none."""
    wanted, place = np.unique(queries, return_inverse=True)
    place = place.reshape(queries.shape)
    place[np.arange(MOST_KNOWN) >= width[:, None]] = -1
    return wanted, place


def _sightings(points: Points, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Who has which of the codes `wanted`: owners and places, all of a person's at once."""
    owner = place = np.zeros(0, dtype=np.int64)
    for first, last in _stretches(points.people.records):
        whose, what = points.of(first, last)
        at = np.minimum(np.searchsorted(wanted, what), max(len(wanted) - 1, 0))
        hit = wanted[at] == what if len(wanted) else np.zeros(len(what), dtype=bool)
        owner, place = _distinct(np.append(owner, whose[hit]), np.append(place, at[hit]))
        # The last one may have more in the next stretch.
        complete = int(np.searchsorted(owner, owner[-1])) if len(owner) else 0
        yield owner[:complete], place[:complete]
        owner, place = owner[complete:], place[complete:]
    yield owner, place


def _deeper(
    others: np.ndarray, place: np.ndarray, person: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    """How many points of each query, from its first on, one of `others` has, int8 `(queries,)`.

    Rare points are met by walking through those who have the first one, common ones by sets of
    bits, one for each person.

    Args:
        others: People of a stretch, ascending, `(pairs,)`.
        place: A point that each has, `(pairs,)`.
        person: Whose query it is, who does not count, `(queries,)`.
        queries: Points, -1 for none, `(queries, 4)`.
    """
    depth = np.zeros(len(queries), dtype=np.int8)
    if not len(others):
        return depth
    present, row = np.unique(place, return_inverse=True)
    at = np.minimum(np.searchsorted(present, queries), len(present) - 1)
    rows = np.where(present[at] == queries, at, -1)
    asked = np.flatnonzero(rows[:, 0] >= 0)
    here = others - others[0]
    count = np.bincount(row)[rows[asked, 0]]
    words = (int(here[-1]) + 64) // 64
    sparse = count.sum() < len(asked) * words or len(present) * words > _MOST_WORDS
    find = _walked if sparse else _by_bits
    depth[asked] = find(row, here, rows[asked], person[asked] - others[0])
    return depth


def _walked(row: np.ndarray, here: np.ndarray, rows: np.ndarray, person: np.ndarray) -> np.ndarray:
    """See `_deeper`: those who have the first point, fewer with each further one."""
    people = int(here[-1]) + 1
    pairs = np.sort(row * people + here)
    begin = np.searchsorted(pairs, rows[:, 0] * people)
    count = np.searchsorted(pairs, (rows[:, 0] + 1) * people) - begin
    total = np.cumsum(count)
    depth = np.zeros(len(rows), dtype=np.int8)
    start = 0
    while start < len(rows):
        before = int(total[start - 1]) if start else 0
        stop = max(int(np.searchsorted(total, before + _CANDIDATES, side="right")), start + 1)
        query = np.repeat(np.arange(start, stop), count[start:stop])
        nth = np.arange(len(query)) - (total[query] - count[query] - before)
        other = pairs[begin[query] + nth] - rows[query, 0] * people
        met = other != person[query]
        for j in range(MOST_KNOWN):
            query, other = query[met], other[met]
            depth[query] = j + 1
            following = rows[query, min(j + 1, MOST_KNOWN - 1)]
            key = following * people + other
            at = np.minimum(np.searchsorted(pairs, key), len(pairs) - 1)
            met = (following >= 0) & (pairs[at] == key)
        start = stop
    return depth


def _by_bits(row: np.ndarray, here: np.ndarray, rows: np.ndarray, person: np.ndarray) -> np.ndarray:
    """See `_deeper`: the sets of people who have each point meet."""
    words = (int(here[-1]) + 64) // 64
    bits = np.zeros((int(row.max()) + 2, words), dtype=np.uint64)  # the last row: nobody
    np.bitwise_or.at(bits, (row, here >> 6), np.uint64(1) << (here & 63).astype(np.uint64))
    depth = np.zeros(len(rows), dtype=np.int8)
    for start in range(0, len(rows), _CANDIDATES // words):
        part = slice(start, start + _CANDIDATES // words)
        meeting = bits[rows[part, 0]]
        own = np.flatnonzero((person[part] >= 0) & (person[part] < 64 * words))
        mine = person[part][own]
        meeting[own, mine >> 6] &= ~(np.uint64(1) << (mine & 63).astype(np.uint64))
        for j in range(MOST_KNOWN):
            meeting &= bits[rows[part, j]]
            depth[part][meeting.any(axis=1)] = j + 1
    return depth
