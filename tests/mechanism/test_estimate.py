"""Private ranges, means and vocabularies: near the truth, and bounded per person."""

import math

import numpy as np
import pytest
from scipy import stats

from sequester.core.errors import UsageError
from sequester.mechanism import NoiseStream
from sequester.mechanism.estimate import Column, means, ranges, threshold, vocabulary

PEOPLE = 4000


def column(seed: int = 0, **changes: object) -> Column:
    generator = np.random.default_rng(seed)
    owner = np.sort(generator.integers(0, PEOPLE, 12_000))
    values = generator.normal(70.0, 10.0, len(owner))
    values[::50] = np.nan
    return Column(**({"values": values, "owner": owner, "lower": 0.0, "upper": 640.0} | changes))


def stream(seed: int = 0) -> NoiseStream:
    return NoiseStream.from_test_seed(seed, "setup")


def test_ranges_hold_nearly_all_the_mass_and_little_else():
    found = ranges(
        {"a": column(), "b": column(1, upper=1280.0)},
        people=PEOPLE,
        multiplier=10.0,
        stream=stream(),
        step=0,
    )
    for lower, upper in found.values():
        assert 20.0 <= lower <= 60.0
        assert 80.0 <= upper <= 130.0


def test_ranges_under_hopeless_noise_stay_the_public_ones():
    found = ranges({"a": column()}, people=PEOPLE, multiplier=1e6, stream=stream(), step=0)
    assert found["a"] == (0.0, 640.0)


def test_log_ranges_are_found_on_the_log_scale():
    values = np.random.default_rng(0).lognormal(2.0, 0.5, 5000)
    logged = Column(values, np.arange(5000), 0.0, 1e6, log=True)
    lower, upper = ranges({"a": logged}, people=5000, multiplier=5.0, stream=stream(), step=0)["a"]
    assert 0.5 < lower < 4.0
    assert 15.0 < upper < 50.0


@pytest.mark.parametrize("records", [1, 5, 1000])
def test_one_person_moves_a_histogram_by_at_most_one(records: int):
    from sequester.mechanism.estimate import _histogram

    generator = np.random.default_rng(records)
    extra = generator.uniform(-50, 900, records)
    base = column()
    owner = np.concatenate([base.owner, np.full(records, PEOPLE)])
    more = column(values=np.concatenate([base.values, extra]), owner=owner)
    moved = _histogram(more, PEOPLE + 1) - _histogram(base, PEOPLE + 1)
    assert np.linalg.norm(moved) <= 1.0 + 1e-9


def test_means_are_close_and_bounded():
    found = means(
        {"a": column(upper=140.0)},
        people=PEOPLE,
        multiplier=3.0,
        stream=stream(),
        step=0,
        population=PEOPLE,
    )
    assert found["a"] == pytest.approx(70.0, abs=1.5)


def test_a_vocabulary_keeps_common_words_and_hides_one_persons_word():
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(500), 3)
    words = [str(w) for w in generator.choice(["home", "work", "gym"], len(owner))]
    words[0] = "a-secret-place"
    hits = 0
    for seed in range(200):
        found = vocabulary(words, owner, multiplier=3.0, failure=1e-3, stream=stream(seed), step=0)
        hits += "a-secret-place" in found
        assert {"home", "work", "gym"} <= set(found)
    # Probability at most 1e-3 each time; three or more of 200 has probability 1e-3.
    assert hits < 3


def test_one_person_with_a_thousand_words_releases_none():
    words = [f"word-{k:04d}" for k in range(1000)]
    assert (
        vocabulary(
            words, np.zeros(1000, dtype=int), multiplier=2.0, failure=1e-6, stream=stream(), step=0
        )
        == ()
    )


def test_the_threshold_keeps_its_promise():
    std, failure, most = 2.0, 1e-3, 8
    limit = threshold(std, failure, most)
    for k in range(1, most + 1):
        below = stats.norm.cdf((limit - 1 / math.sqrt(k)) / std) ** k
        assert 1 - below <= failure * (1 + 1e-6)


def test_impossible_promises_are_refused():
    with pytest.raises(UsageError, match="SQ-239"):
        vocabulary([], np.zeros(0, dtype=int), multiplier=1.0, failure=0.0, stream=stream(), step=0)
