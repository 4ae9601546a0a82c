"""The sampler's coins against the binomial distribution and against each other."""

import numpy as np
import pytest
from scipy import stats

from sequester.accounting import Gaussian, PoissonSampled
from sequester.core.errors import UsageError
from sequester.core.rng import Keystream, key_from_test_seed
from sequester.sampling import PoissonSampler, poisson_event

KEY = key_from_test_seed(5)


def sampler(people: int, rate: float, run: str = "run") -> PoissonSampler:
    return PoissonSampler(people, rate, Keystream(KEY, run, "lots"))


def test_everybody_takes_part_at_the_rate_and_lot_sizes_are_binomial():
    people, rate, steps = 400, 0.07, 3000
    taken = np.zeros((steps, people), dtype=bool)
    for step in range(steps):
        taken[step, sampler(people, rate).draw(step)] = True
    # Inclusion of each person: binomial; the smallest of 400 p-values by Bonferroni.
    counts = taken.sum(axis=0)
    low = stats.binom.cdf(counts, steps, rate)
    high = stats.binom.sf(counts - 1, steps, rate)
    assert min(low.min(), high.min()) > 1e-6 / people
    # A shuffling loader has lots of constant size; coins have the binomial's variance.
    sizes = taken.sum(axis=1)
    expected = people * rate * (1 - rate)
    assert abs(sizes.var() / expected - 1) < 6 * np.sqrt(2 / steps)
    # Two people's coins, and one person's coins of two steps, are independent.
    pairs = np.corrcoef(taken[:, :20].T) - np.eye(20)
    assert np.abs(pairs).max() < 6 / np.sqrt(steps)
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 6 / np.sqrt(steps)


def test_the_same_step_gives_the_same_lot_and_others_do_not():
    first, again = sampler(1000, 0.3).draw(7), sampler(1000, 0.3).draw(7)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, sampler(1000, 0.3).draw(8))
    assert not np.array_equal(first, sampler(1000, 0.3, run="other").draw(7))


def test_rate_one_takes_everybody_and_claims_no_amplification():
    assert sampler(50, 1.0).draw(0).tolist() == list(range(50))
    assert poisson_event(1.0, Gaussian(2.0)) == Gaussian(2.0)
    assert sampler(50, 0.5).event(Gaussian(2.0)) == PoissonSampled(0.5, Gaussian(2.0))


def test_a_tiny_rate_gives_empty_lots():
    assert all(len(sampler(10, 1e-9).draw(step)) == 0 for step in range(20))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_rates_that_are_no_probability_are_refused(rate: float):
    with pytest.raises(UsageError, match="SQ-231"):
        sampler(10, rate)
