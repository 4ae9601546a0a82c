"""Uniqueness against brute force, scikit-mobility's documented risks and measured figures."""

from itertools import combinations

import numpy as np
import pytest

from sequester.audit.uniqueness import (
    Points,
    Trajectories,
    difference,
    grid,
    hexagons,
    linkage,
    surface,
    uniqueness,
    worst_case,
)
from sequester.audit.uniqueness.match import BitPostings, ListPostings
from sequester.audit.uniqueness.share import draw_points
from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from tests.shared import needs_shared, shared


def town(people: int, records: int, *, places: int = 60, slots: int = 40, seed: int = 1):
    rng = np.random.Generator(np.random.Philox(seed))
    owner = np.repeat(np.arange(people), records)
    return owner, rng.integers(0, places, len(owner)), rng.integers(0, slots, len(owner))


def as_sets(points: Points) -> list[set[int]]:
    return [
        set(points.point[first:last].tolist())
        for first, last in zip(points.offsets[:-1], points.offsets[1:], strict=True)
    ]


@pytest.mark.parametrize("kind", [BitPostings, ListPostings])
def test_counts_equal_brute_force_on_fifty_people(kind):
    owner, place, slot = town(50, 30, places=6, slots=8)
    points = Points.of_keys(owner, [place, slot], 50)
    sets = as_sets(points)
    index = kind.of(points)
    queries = draw_points(points, np.repeat(np.arange(50), 40), 5, public_generator(3))
    expected = [
        [sum(set(query[: k + 1]) <= one for one in sets) for k in range(5)]
        for query in queries.tolist()
    ]
    assert (index.counts(queries) == np.array(expected)).all()
    assert (index.counts(queries)[:, 0] >= 1).all()


def test_the_share_converges_to_the_exact_one_over_all_choices():
    owner, place, slot = town(50, 12, places=4, slots=6)
    points = Points.of_keys(owner, [place, slot], 50)
    sets = as_sets(points)
    found = {share.k: share for share in uniqueness(points, known=(1, 2, 3), draws=2000)}
    for k in (1, 2, 3):
        exact = np.mean(
            [
                np.mean([sum(set(c) <= one for one in sets) == 1 for c in combinations(mine, k)])
                for mine in sets
                if len(mine) >= k
            ]
        )
        assert found[k].unique == pytest.approx(exact, abs=0.012)


def test_every_choice_of_points_is_equally_likely():
    points = Points.of_keys(np.zeros(5, np.int64), [np.arange(5)], 1)
    drawn = draw_points(points, np.zeros(40_000, np.int64), 3, public_generator(0))
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    _, counts = np.unique(drawn @ [25, 5, 1], return_counts=True)
    assert len(counts) == 60
    assert abs(counts - 40_000 / 60).max() < 5 * (40_000 / 60) ** 0.5


def test_risk_equals_scikit_mobility_on_its_toy_data():
    """`UniqueLocationAttack` as documented for scikit-mobility 1.3.1, knowledge 2 and 3."""
    visited = ["ABCD", "ACAB", "BCAD", "CBD", "CDA", "AB", "AD"]
    owner = np.repeat(np.arange(7), [len(v) for v in visited])
    place = np.array([ord(c) for v in visited for c in v])
    points = Points.of_keys(owner, [place], 7)
    assert worst_case(points, 2) == pytest.approx([1 / 3, 1 / 4, 1 / 3, 1 / 3, 1 / 4, 1 / 4, 1 / 4])
    assert worst_case(points, 3) == pytest.approx([1 / 2, 1 / 3, 1 / 2, 1 / 3, 1 / 3, 1 / 4, 1 / 4])


@needs_shared("data", "real", "foursquare_nyc")
def test_figures_of_foursquare_new_york():
    import pandas as pd

    table = pd.read_parquet(shared("data", "real", "foursquare_nyc", "data.parquet"))
    owner = pd.factorize(table["person"])[0].astype(np.int64)
    hour = table["time"].dt.hour.to_numpy().astype(np.int64)
    monday = table["time"].dt.day_of_week.to_numpy().astype(np.int64)
    seconds = (monday * 24 + hour) * 3600
    moves = Trajectories(
        owner, seconds, table["lat"].to_numpy(), table["lon"].to_numpy(), int(owner.max()) + 1
    )
    week = uniqueness(moves.points(0.01, cycle=168), known=(4,), draws=400)[0]
    day = uniqueness(moves.points(0.1, cycle=24), known=(4,), draws=400)[0]
    assert week.people == day.people == 193
    assert week.low <= 0.998 <= week.high
    assert day.low <= 0.334 <= day.high


def test_coarser_points_are_never_more_identifying():
    owner, place, slot = town(80, 20, places=400)
    moves = Trajectories(owner, slot * 3600, place / 1000, place / 700, 80)
    cells = surface(moves, degrees=(0.001, 0.05), hours=(1, 24), known=(2,), draws=50)
    by = {(cell.degrees, cell.hours): cell.shares[0].unique for cell in cells}
    assert by[0.001, 1] > by[0.05, 24]
    assert by[0.001, 1] >= by[0.001, 24]


def test_two_coarse_releases_meet_in_finer_cells():
    rng = np.random.Generator(np.random.Philox(2))
    owner = np.repeat(np.arange(200), 10)
    where = rng.random(len(owner)) * 60
    one, other = np.floor(where).astype(np.int64), np.floor(where + 0.5).astype(np.int64)
    found = difference([one], [other], owner, 200, known=(3,))
    assert found.together[0].unique > found.alone[0].unique


def test_a_known_week_finds_habits_and_not_noise():
    rng = np.random.Generator(np.random.Philox(4))
    owner = np.repeat(np.arange(100), 30)
    habits = rng.integers(0, 500, (100, 5))
    place = habits[owner, rng.integers(0, 5, len(owner))]
    known = np.tile(np.arange(30) < 10, 100)
    assert linkage(*Points.parts(owner, [place], 100, known)).found > 0.95
    noise = linkage(*Points.parts(owner, [rng.integers(0, 500, len(owner))], 100, known))
    assert noise.found < 0.1
    assert noise.chance == pytest.approx(0.01)


def test_people_with_few_points_count_where_they_can():
    points = Points.of_keys(np.array([0, 0, 0, 1]), [np.array([5, 6, 7, 5])], 3)
    shares = {share.k: share for share in uniqueness(points, known=(1, 3, 4), draws=10)}
    assert (shares[1].people, shares[3].people, shares[4].people) == (2, 1, 0)
    assert np.isnan(shares[4].unique)
    assert shares[3].unique == 1.0


def test_hexagons_and_grids_name_the_same_neighbourhood():
    pytest.importorskip("h3")
    latitude, longitude = np.array([40.71, 40.7101, 41.9]), np.array([-74.02, -74.0201, -75.0])
    cells = hexagons(latitude, longitude, 7)
    assert cells[0] == cells[1] != cells[2]
    squares = grid(latitude, longitude, 0.05)
    assert squares[0] == squares[1] != squares[2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: grid(np.array([1.0]), np.array([1.0]), 0.0),
        lambda: grid(np.array([np.nan]), np.array([1.0]), 0.1),
        lambda: Points.of_keys(np.array([0, 3]), [np.array([1, 1])], 3),
        lambda: Points.of_keys(np.array([0]), [], 1),
        lambda: uniqueness(Points.of_keys(np.array([0]), [np.array([1])], 1), known=()),
        lambda: worst_case(Points.of_keys(np.zeros(300, np.int64), [np.arange(300)], 1), 4),
    ],
)
def test_wrong_input_is_refused(wrong):
    with pytest.raises(UsageError, match="SQ-80"):
        wrong()
