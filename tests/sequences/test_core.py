"""The heart: who owns which record, on data whose counts others published."""

import numpy as np
import pyarrow as pa
import pytest

from sequester.core.errors import UsageError
from sequester.sequences import Features, People, Range, Target, datasets, mobility


@pytest.fixture(scope="module")
def randhie() -> People:
    return datasets.randhie()


def test_randhie_has_the_published_counts(randhie: People) -> None:
    assert (len(randhie), randhie.records, len(randhie.site_names)) == (5912, 20190, 6)
    assert (randhie.counts.min(), randhie.counts.max()) == (1, 5)
    labelled = randhie.windows(4, 1, target=Target("label", shortest=1))
    assert len(labelled) == 14266
    assert labelled.target is not None
    assert labelled.target.mean() == pytest.approx(0.352, abs=5e-4)


def test_the_declared_ranges_hold_the_published_values(randhie: People) -> None:
    values, mask = randhie.values(list(datasets.RANDHIE_RANGES))
    for j, (name, bounds) in enumerate(datasets.RANDHIE_RANGES.items()):
        inside = (values[:, j] >= bounds.lower) & (values[:, j] <= bounds.upper)
        assert np.mean(inside[mask[:, j]]) > 0.999, name


def test_windows_never_mix_people_and_keep_everyone(randhie: People) -> None:
    frame = pa.table(
        {"person": ["b", "a", "a", "a", "c"], "time": [1, 3, 1, 2, 1], "v": [9.0, 3, 1, 2, 7]}
    )
    people = People.read(frame)
    cut = people.windows(2, 1, features=Features(numeric={"v": Range(0, 10)}))
    assert cut.owner.tolist() == [0, 0, 1, 2]
    assert cut.mask.tolist() == [[True, True], [True, True], [True, False], [True, False]]
    assert np.allclose((cut.x[..., 0] + 1) * 5 * cut.mask, [[1, 2], [2, 3], [9, 0], [7, 0]])


def test_choices_about_one_person_depend_on_nobody_else() -> None:
    town = mobility.simulate(people=30, weeks=1, seed=1)
    some = town.select(np.arange(0, 30, 3))
    key = b"k" * 32
    assert town.bounded(20, key).select(np.arange(0, 30, 3)).fingerprint() == (
        some.bounded(20, key).fingerprint()
    )
    ours = town.windows(8, 4, 5, key=key)
    theirs = some.windows(8, 4, 5, key=key)
    at = np.isin(ours.owner, np.arange(0, 30, 3))
    starts = town.offsets[ours.owner[at]], some.offsets[theirs.owner]
    assert (ours.end[at] - starts[0]).tolist() == (theirs.end - starts[1]).tolist()


def test_the_town_is_reproducible_and_says_where_people_are() -> None:
    town = mobility.simulate(people=50, weeks=2, seed=3)
    assert town.fingerprint() == mobility.simulate(people=50, weeks=2, seed=3).fingerprint()
    assert town.fingerprint() != mobility.simulate(people=50, weeks=2, seed=4).fingerprint()
    assert town.codes("place", mobility.VOCABULARY).min() >= 1
    assert len(mobility.simulate(people=1, weeks=1)) == 1


def test_a_bound_needs_a_secret_key() -> None:
    town = mobility.simulate(people=3, weeks=1)
    with pytest.raises(UsageError, match="SQ-118"):
        town.windows(24, 24, 2)
