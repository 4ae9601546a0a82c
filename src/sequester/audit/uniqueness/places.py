"""Turn records into points: what somebody might know of a person, at a chosen coarseness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Points:
    """Distinct (person, point) pairs, sorted by person; a point is a number without meaning.

    Attributes:
        owner: Person of each pair, `(pairs,)`, ascending.
        point: Number of the point in `0..kinds-1`, `(pairs,)`.
        people: How many people there are, those without a point included.
        kinds: How many different points there are.
    """

    owner: Integers
    point: Integers
    people: int
    kinds: int

    @classmethod
    def of_keys(cls, owner: Integers, keys: list[Integers], people: int) -> Points:
        """Points that differ when any of `keys` does, each `(records,)` of whole numbers.

        Raises:
            UsageError: SQ-805 if the columns do not belong together.
        """
        if not keys or any(len(key) != len(owner) for key in keys):
            raise UsageError(805, "every part of a point needs one value for each record")
        if len(owner) and not 0 <= int(owner.min()) <= int(owner.max()) < people:
            raise UsageError(805, f"owners must lie in 0..{people - 1}")
        code, kinds = _combine(keys)
        return cls._of_codes(owner, code, people, kinds)

    @classmethod
    def parts(
        cls, owner: Integers, keys: list[Integers], people: int, part: NDArray[np.bool_]
    ) -> tuple[Points, Points]:
        """Points of the records in `part` and of the others, numbered alike."""
        code, kinds = _combine(keys)
        return (
            cls._of_codes(owner[part], code[part], people, kinds),
            cls._of_codes(owner[~part], code[~part], people, kinds),
        )

    @classmethod
    def _of_codes(cls, owner: Integers, code: Integers, people: int, kinds: int) -> Points:
        width = max(1, kinds)
        pair = np.asarray(owner, dtype=np.int64) * width + code
        pair.sort()
        if len(pair):
            pair = pair[np.concatenate([[True], pair[1:] != pair[:-1]])]
        return cls(pair // width, pair % width, people, kinds)

    @property
    def offsets(self) -> Integers:
        """Where each person's points begin, `(people + 1,)`."""
        return np.searchsorted(self.owner, np.arange(self.people + 1))


def grid(latitude: NDArray[np.float64], longitude: NDArray[np.float64], degrees: float) -> Integers:
    """Cells of a grid of `degrees`, as one whole number each.

    Raises:
        UsageError: SQ-806 unless degrees > 0 and places are finite.
    """
    if not degrees > 0:
        raise UsageError(806, f"a grid cell must be > 0 degrees wide, got {degrees}")
    if not (np.isfinite(latitude).all() and np.isfinite(longitude).all()):
        raise UsageError(806, "every place needs a finite latitude and longitude")
    rows = np.floor(latitude / degrees).astype(np.int64)
    columns = np.floor(longitude / degrees).astype(np.int64)
    return rows * (1 << 31) + columns


def hexagons(
    latitude: NDArray[np.float64], longitude: NDArray[np.float64], resolution: int
) -> Integers:
    """H3 cells; needs the extra `geo`.

    Raises:
        UsageError: SQ-807 if h3 is not installed.
    """
    try:
        import h3
    except ImportError:
        raise UsageError(
            807, "hexagonal cells need the package h3: pip install 'sequester[geo]'; or use grid"
        ) from None
    cells = [
        h3.str_to_int(h3.latlng_to_cell(float(a), float(b), resolution))
        for a, b in zip(latitude, longitude, strict=True)
    ]
    return np.array(cells, dtype=np.int64)


def _combine(keys: list[Integers]) -> tuple[Integers, int]:
    """One dense number for each distinct combination."""
    code, kinds = _dense(np.asarray(keys[0], dtype=np.int64))
    for key in keys[1:]:
        more, count = _dense(np.asarray(key, dtype=np.int64))
        code, kinds = _dense(code * max(1, count) + more)
    return code, kinds


def _dense(values: Integers) -> tuple[Integers, int]:
    """Renumber values from 0; by a table where the range is small, by sorting otherwise."""
    if not len(values):
        return values, 0
    low, high = int(values.min()), int(values.max())
    if high - low < 8 * len(values) + 1_000_000:
        shifted = values - low
        seen = np.zeros(high - low + 1, dtype=bool)
        seen[shifted] = True
        number = np.cumsum(seen) - 1
        return number[shifted], int(number[-1]) + 1
    _, inverse = np.unique(values, return_inverse=True)
    return inverse.astype(np.int64), int(inverse.max()) + 1
