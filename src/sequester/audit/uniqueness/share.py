"""Uniqueness: how often k random points of a person single that person out.

Source: de Montjoye, Hidalgo, Verleysen, Blondel 2013 (Scientific Reports 3:1376). Exact over all
people: only the choice of points is random, and its interval comes from the people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sequester.audit.uniqueness.match import Postings, postings
from sequester.audit.uniqueness.places import Integers, Points
from sequester.core.errors import UsageError
from sequester.core.rng import public_generator

_RESAMPLES = 400
_MOST_SUBSETS = 2_000_000


@dataclass(frozen=True)
class Share:
    """How identifying k points are.

    Attributes:
        k: Points somebody knows.
        unique: Share of draws that fit exactly one person, averaged over people.
        low: Lower end of the 95 % interval (people resampled).
        high: Upper end.
        people: People with at least k points, over whom the average runs.
        crowd: Median number of people who fit.
    """

    k: int
    unique: float
    low: float
    high: float
    people: int
    crowd: float


def uniqueness(
    points: Points,
    *,
    known: Sequence[int] = (1, 2, 3, 4),
    draws: int = 100,
    seed: int = 0,
    index: Postings | None = None,
) -> tuple[Share, ...]:
    """Draw points of every person and count who else has them all.

    Args:
        points: Everybody's points.
        known: Numbers of known points, each ≥ 1.
        draws: Draws per person; the first k of each serve for every k.
        seed: Of the public generator that draws.
        index: A ready index of `points`.

    Raises:
        UsageError: SQ-808 for numbers below 1.
    """
    if draws < 1 or not known or min(known) < 1:
        raise UsageError(808, f"draws and known points must be ≥ 1, got {draws} and {list(known)}")
    index = index or postings(points)
    generator = public_generator(seed)
    most = max(known)
    available = np.diff(points.offsets)
    crowds: dict[int, list[NDArray[np.int32]]] = {k: [] for k in known}
    # People are grouped by how many points they can give, so that each query is a full row.
    for width in sorted({min(most, int(n)) for n in available if n > 0}):
        exactly = available == width if width < most else available >= width
        members = np.flatnonzero(exactly)
        queries = draw_points(points, np.repeat(members, draws), width, generator)
        found = index.counts(queries).reshape(len(members), draws, width)
        for k in known:
            if k <= width:
                crowds[k].append(found[:, :, k - 1])
    return tuple(_share(k, crowds[k], generator) for k in sorted(known))


def draw_points(
    points: Points, people: Integers, k: int, generator: np.random.Generator
) -> Integers:
    """Draw k different points of each person in `people`, in random order, `(len(people), k)`.

    Every ordered choice is equally likely: the j-th draw is a rank among what is left, lifted
    over the ranks taken before.
    """
    offsets = points.offsets
    available = np.diff(offsets)[people]
    taken = np.empty((len(people), k), dtype=np.int64)
    for j in range(k):
        rank = (generator.random(len(people)) * (available - j)).astype(np.int64)
        for before in np.sort(taken[:, :j], axis=1).T:
            rank += rank >= before
        taken[:, j] = rank
    chosen: Integers = points.point[offsets[people][:, None] + taken]
    return chosen


def worst_case(points: Points, k: int, *, index: Postings | None = None) -> np.ndarray:
    """Each person's risk `1 / fewest people that fit` over all their choices of k points.

    A person with fewer points is met with all of them. The measure of scikit-mobility's
    location attacks (Pellungrini et al. 2017, ACM TIST); exhaustive, so for few points only.

    Raises:
        UsageError: SQ-809 if a person has too many choices.
    """
    index = index or postings(points)
    offsets = points.offsets
    risk = np.zeros(points.people)
    for person in range(points.people):
        mine = points.point[offsets[person] : offsets[person + 1]]
        if not len(mine):
            continue
        size = min(k, len(mine))
        choices = list(combinations(mine.tolist(), size)) if len(mine) < 200 else []
        if not choices or len(choices) > _MOST_SUBSETS:
            raise UsageError(
                809,
                f"a person has {len(mine)} points and too many choices of {size}; ask for "
                "uniqueness, which draws, or coarsen the points",
            )
        risk[person] = 1.0 / index.counts(np.array(choices))[:, -1].min()
    return risk


def _share(k: int, crowds: list[NDArray[np.int32]], generator: np.random.Generator) -> Share:
    if not crowds:
        return Share(k, float("nan"), float("nan"), float("nan"), 0, float("nan"))
    of_person = np.concatenate([(part == 1).mean(axis=1) for part in crowds])
    chosen = generator.integers(0, len(of_person), (_RESAMPLES, len(of_person)))
    low, high = np.quantile(of_person[chosen].mean(axis=1), [0.025, 0.975])
    crowd = float(np.median(np.concatenate([part.ravel() for part in crowds])))
    return Share(k, float(of_person.mean()), float(low), float(high), len(of_person), crowd)
