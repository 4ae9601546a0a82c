"""A simulated population that moves: home, work, routines, trips and noise.

Everything here is invented; it stands in for real traces where none may be shipped, and every
demo that uses it says so.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.sequences.people import People

HOURS_PER_DAY = 24
HOURS_PER_WEEK = 168
MONDAY = np.datetime64("2024-01-01T00", "h")  # the first simulated hour, a Monday

SIDE = 8  # the town is a grid of SIDE × SIDE places
PLACES = tuple(f"place-{row}-{column}" for row in range(SIDE) for column in range(SIDE))
AWAY = "away"
VOCABULARY = (*PLACES, AWAY)


def simulate(people: int = 5000, weeks: int = 4, seed: int = 0) -> People:
    """An invented town: `people` residents, an hourly place for `weeks` weeks.

    Each resident has a home, a place of work or study, a few haunts, a rhythm (when they leave,
    which evenings they go out, shift work for some), a trip out of town for some, and noise:
    detours, and hours that were not recorded.

    Args:
        people: Residents, at least 1.
        weeks: Length, at least 1.
        seed: The population's seed; the data are public, so is the seed.

    Returns:
        People with the categorical column `place`, the numeric columns `hour` (0–23) and
        `weekday` (0 Monday–6 Sunday), and sites `north` and `south` by home.

    Raises:
        UsageError: SQ-118 for fewer than one resident or week.
    """
    if people < 1 or weeks < 1:
        raise UsageError(118, f"a town needs people and weeks ≥ 1, got {people} and {weeks}")
    rng = public_generator(seed)
    hours = weeks * HOURS_PER_WEEK
    places = _itineraries(rng, people, hours)
    recorded = rng.random((people, hours)) >= rng.beta(1.0, 19.0, people)[:, None]
    recorded[np.arange(people), rng.integers(0, hours, people)] = True
    owner, hour = np.nonzero(recorded)
    home_row = places[:, :HOURS_PER_DAY][:, 3] // SIDE
    offsets = np.concatenate([[0], np.cumsum(recorded.sum(axis=1))]).astype(np.int64)
    stamps = (MONDAY + hour.astype("timedelta64[h]")).astype("datetime64[us]").astype(np.int64)
    words = pa.DictionaryArray.from_arrays(
        pa.array(places[owner, hour].astype(np.int32)), pa.array(VOCABULARY, pa.large_string())
    )
    names = pa.array([f"resident-{i:06d}" for i in range(people)], pa.large_string())
    return People(
        _ids=names,
        _records=pa.table(
            {
                "place": words,
                "hour": (hour % HOURS_PER_DAY).astype(np.float64),
                "weekday": (hour // HOURS_PER_DAY % 7).astype(np.float64),
            }
        ),
        _static=pa.table({"": pa.nulls(people)}).select([]),
        offsets=offsets,
        time=stamps,
        time_kind="absolute",
        kinds={"place": "categorical", "hour": "numeric", "weekday": "numeric"},
        site_names=("north", "south"),
        site=np.where(home_row < SIDE // 2, 0, 1).astype(np.int32),
    )


def _itineraries(rng: np.random.Generator, people: int, hours: int) -> np.ndarray:
    """Place code of every hour, int64 `(people, hours)`; `len(PLACES)` is out of town."""
    count = len(PLACES)
    popularity = rng.dirichlet(np.full(count, 0.3))
    home = rng.integers(0, count, people)
    work = rng.choice(count, people, p=popularity)
    haunts = rng.choice(count, (people, 3), p=popularity)
    clock = np.arange(hours) % HOURS_PER_DAY
    day = np.arange(hours) // HOURS_PER_DAY
    weekday = day % 7

    leaves = np.clip(np.rint(rng.normal(8, 1.2, people)), 5, 11)[:, None]
    stays = np.clip(np.rint(rng.normal(9, 1.0, people)), 5, 11)[:, None]
    shift = np.where(rng.random(people) < 0.08, 12, 0)[:, None]  # some work at night
    employed = (rng.random(people) < 0.85)[:, None]
    local = (clock[None, :] - shift) % HOURS_PER_DAY
    working = employed & (weekday < 5)[None, :] & (local >= leaves) & (local < leaves + stays)
    place = np.where(working, work[:, None], home[:, None])

    lunch = working & (local == leaves + 4) & (rng.random((people, 1)) < 0.5)
    place = np.where(lunch, haunts[:, :1], place)
    evenings = rng.random((people, 7)) < rng.beta(2, 5, people)[:, None]
    out = evenings[:, weekday] & (clock >= 19)[None, :] & (clock <= 21)[None, :] & ~working
    place = np.where(out, haunts[:, 1:2], place)
    saturdays = (rng.random(people) < 0.6)[:, None]
    shopping = saturdays & (weekday == 5)[None, :] & (clock >= 10)[None, :] & (clock <= 12)
    place = np.where(shopping, haunts[:, 2:], place)

    detour = rng.random((people, hours)) < 0.03
    place = np.where(detour, rng.choice(count, (people, hours), p=popularity), place)
    travels = rng.random(people) < 0.2
    leave_day = rng.integers(0, hours // HOURS_PER_DAY, people)
    return_day = leave_day + rng.integers(1, 8, people)
    gone = travels[:, None] & (day >= leave_day[:, None]) & (day < return_day[:, None])
    return np.where(gone, count, place)
