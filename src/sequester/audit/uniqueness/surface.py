"""Coarsening in space and time as a surface, two releases compared, and a known week."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequester.audit.uniqueness.places import Integers, Points, grid
from sequester.audit.uniqueness.share import Share, uniqueness
from sequester.core.errors import UsageError

HOUR = 3_600


@dataclass(frozen=True)
class Trajectories:
    """Where and when people were.

    Attributes:
        owner: Person of each record, `(records,)`.
        seconds: Local time in seconds since a Monday's midnight, `(records,)`.
        latitude: In degrees, `(records,)`.
        longitude: In degrees, `(records,)`.
        people: How many people there are.
    """

    owner: Integers
    seconds: Integers
    latitude: NDArray[np.float64]
    longitude: NDArray[np.float64]
    people: int

    def points(self, degrees: float, *, hours: int = 1, cycle: int | None = None) -> Points:
        """Points of a grid cell and a time slot.

        Args:
            degrees: Width of a cell.
            hours: Length of a time slot.
            cycle: Slots repeat after so many hours (24 a day, 168 a week); None: never.
        """
        slot = self.seconds // HOUR
        if cycle is not None:
            slot = slot % cycle
        cell = grid(self.latitude, self.longitude, degrees)
        return Points.of_keys(self.owner, [cell, slot // hours], self.people)


@dataclass(frozen=True)
class Cell:
    """One coarseness and how identifying points are at it."""

    degrees: float
    hours: int
    shares: tuple[Share, ...]


def surface(
    trajectories: Trajectories,
    *,
    degrees: Sequence[float] = (0.001, 0.01, 0.1),
    hours: Sequence[int] = (1, 6, 24),
    cycle: int | None = 168,
    known: Sequence[int] = (1, 2, 3, 4),
    draws: int = 100,
) -> tuple[Cell, ...]:
    """Uniqueness at every combination of cell width and slot length."""
    return tuple(
        Cell(
            width,
            length,
            uniqueness(
                trajectories.points(width, hours=length, cycle=cycle), known=known, draws=draws
            ),
        )
        for width in degrees
        for length in hours
    )


@dataclass(frozen=True)
class Difference:
    """What two releases of the same people give away together.

    Attributes:
        alone: Uniqueness in the finer of the two releases by itself.
        together: Uniqueness when a point is known in both.
    """

    alone: tuple[Share, ...]
    together: tuple[Share, ...]


def difference(
    first: list[Integers],
    second: list[Integers],
    owner: Integers,
    people: int,
    *,
    known: Sequence[int] = (1, 2, 3, 4),
) -> Difference:
    """Compare two coarsenings of the same records, alone and joined.

    Shifted grids or slots, each coarse by itself, meet in cells as fine as their overlap.

    Args:
        first: Key columns of the first release, each `(records,)`.
        second: Key columns of the second release, each `(records,)`.
        owner: Person of each record.
        people: How many people there are.
        known: Numbers of known points.
    """
    alone = [
        uniqueness(Points.of_keys(owner, keys, people), known=known) for keys in (first, second)
    ]
    finer = max(alone, key=lambda shares: sum(share.unique for share in shares))
    joined = uniqueness(Points.of_keys(owner, [*first, *second], people), known=known)
    return Difference(finer, joined)


@dataclass(frozen=True)
class Linkage:
    """How well a known week finds its person in other weeks.

    Attributes:
        found: Share of people whose own other weeks fit their known week best.
        chance: The same share for guessing.
        people: People with points in both parts.
    """

    found: float
    chance: float
    people: int


def linkage(known: Points, released: Points) -> Linkage:
    """Match each person's known points to the person with the most common points elsewhere.

    Both must number points and people alike (`Points.parts`). The score of a pair is the sum of
    `1 / people who have the point`, so that rare points count most; a tie counts as a fraction.

    Raises:
        UsageError: SQ-805 if the two do not number points and people alike.
    """
    if known.people != released.people or known.kinds != released.kinds:
        raise UsageError(805, "both parts must number people and points alike; see Points.parts")
    rarity = np.bincount(released.point, minlength=released.kinds)
    order = np.argsort(released.point, kind="stable")
    by_point = released.owner[order]
    starts = np.searchsorted(released.point[order], np.arange(released.kinds + 1))
    present = np.flatnonzero((np.diff(known.offsets) > 0) & (np.diff(released.offsets) > 0))
    offsets, hits = known.offsets, 0.0
    for person in present:
        score = np.zeros(known.people)
        for point in known.point[offsets[person] : offsets[person + 1]]:
            if rarity[point]:
                score[by_point[starts[point] : starts[point + 1]]] += 1.0 / rarity[point]
        best = score.max()
        if best > 0 and score[person] >= best:
            hits += 1.0 / int((score >= best).sum())
    count = len(present)
    released_people = int((np.diff(released.offsets) > 0).sum())
    return Linkage(
        found=hits / count if count else float("nan"),
        chance=1.0 / released_people if released_people else float("nan"),
        people=count,
    )
