"""What must hold for every setting, on random ones."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sequester import accounting as acc
from sequester.accounting import pld
from sequester.accounting.accountant import renyi_epsilon
from sequester.accounting.lower import lower

relaxed = settings(
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


noises, rates = logarithmic(0.5, 8.0), logarithmic(1e-4, 0.9)
steps, deltas = logarithmic(1, 1000).map(round), logarithmic(1e-12, 0.05)


def run(noise: float, rate: float, count: int) -> acc.Event:
    return acc.SelfComposed(acc.PoissonSampled(rate, acc.Gaussian(noise)), count)


@settings(relaxed, max_examples=300)
@given(noises, rates, steps, deltas)
def test_estimate_below_upper_below_renyi(z: float, q: float, t: int, delta: float) -> None:
    event = run(z, q, t)
    parts = lower(event, "add-or-remove")
    rough = renyi_epsilon(parts, delta)
    solved = pld.solve(parts, delta, rough)
    assert solved is not None
    upper, estimate = solved
    assert 0.0 <= estimate <= upper
    # Not merely the smaller of both: the transform's own bound keeps below Rényi's.
    assert upper <= rough * (1 + 1e-3) + 2e-6
    best = acc.epsilon(event, delta)
    assert best <= rough * (1 + 1e-9)
    assert upper - estimate <= 5e-4 * upper + 5e-6
    assert acc.from_json(acc.to_json(event)) == event


@settings(relaxed, max_examples=300)
@given(noises, rates, steps, deltas, st.floats(1.02, 3.0))
def test_monotone_in_every_argument(
    z: float, q: float, t: int, delta: float, factor: float
) -> None:
    base = acc.epsilon(run(z, q, t), delta)
    slack = base * (1 + 2e-4) + 2e-6
    assert acc.epsilon(run(z * factor, q, t), delta) <= slack
    assert acc.epsilon(run(z, q / factor, t), delta) <= slack
    assert acc.epsilon(run(z, q, max(1, round(t / factor))), delta) <= slack
    assert acc.epsilon(run(z, q, t), min(delta * factor, 0.9)) <= slack


@settings(relaxed, max_examples=12)
@given(noises, rates, steps, logarithmic(1e-10, 0.05))
def test_delta_and_epsilon_are_inverse(z: float, q: float, t: int, delta: float) -> None:
    event = run(z, q, t)
    epsilon = acc.epsilon(event, delta)
    if epsilon > 1e-3:
        back = acc.delta(event, epsilon)
        assert back <= delta * 1.02  # another grid, another rounding up
        assert back >= delta * 0.9


@settings(relaxed, max_examples=300)
@given(noises, rates, st.integers(1, 500), st.integers(1, 500), deltas)
def test_composition_adds(z: float, q: float, a: int, b: int, delta: float) -> None:
    apart = acc.Composed([run(z, q, a), run(z, q, b)])
    assert acc.epsilon(apart, delta) == acc.epsilon(run(z, q, a + b), delta)
    orders = [1.5, 2.0, 7.3]
    np.testing.assert_allclose(
        acc.rdp(apart, orders), acc.rdp(run(z, q, a), orders) + acc.rdp(run(z, q, b), orders)
    )


@settings(relaxed, max_examples=60)
@given(noises, rates, steps)
def test_tradeoff_curve_is_convex_and_above_guessing(z: float, q: float, t: int) -> None:
    curve = acc.tradeoff(run(z, q, t))
    fprs = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 60)])
    tprs = np.array([curve.tpr(float(x)) for x in fprs])
    assert np.all(tprs >= fprs)
    assert curve.tpr(1e-6) >= 1e-6
    assert np.all(np.diff(tprs) >= -1e-12)
    slopes = np.diff(tprs) / np.diff(fprs)
    assert np.all(np.diff(slopes) <= 1e-6 * np.maximum(1.0, slopes[:-1]) + 1e-9)
    assert 0.0 <= curve.advantage <= 1.0
    assert curve.advantage >= np.max(tprs - fprs) - 1e-9
    assert curve.fnr(0.3) == 1.0 - curve.tpr(0.3)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_gaussian_steps_are_one_gaussian_with_less_noise(noise: float) -> None:
    many = acc.SelfComposed(acc.Gaussian(noise), 25)
    once = acc.Gaussian(noise / 5.0)
    assert acc.epsilon(many, 1e-6) == pytest.approx(acc.epsilon(once, 1e-6), rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("noise", "rate", "count"),
    [(1.0, 0.01, 10**9), (0.01, 1e-4, 10**9), (0.04, 0.5, 10**7), (1.0, 1e-6, 10**12)],
)
def test_what_no_grid_can_hold_has_its_renyi_bound(noise: float, rate: float, count: int) -> None:
    event = run(noise, rate, count)
    said = acc.statement(event, 1e-6)
    assert said.epsilon == said.epsilon_rdp == acc.epsilon(event, 1e-6, accountant="rdp")
    assert acc.delta(event, said.epsilon * 1.001) <= 1e-6
    assert said.curve.tpr(0.01) >= 0.01


def test_real_attacks_stay_below_the_curve() -> None:
    # The optimal test of the worst pair, simulated: its ROC may touch the bound, never cross.
    rng = np.random.default_rng(7)
    noise, rate, count, people = 1.0, 0.1, 20, 200_000
    curve = acc.tradeoff(run(noise, rate, count))
    member = np.zeros(people)
    other = np.zeros(people)
    for _ in range(count):
        for losses, shift in ((member, rng.random(people) < rate), (other, 0.0)):
            x = rng.normal(size=people) * noise + shift
            losses += np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    for threshold in np.quantile(other, [0.1, 0.5, 0.9, 0.99, 0.999]):
        fpr, tpr = np.mean(other > threshold), np.mean(member > threshold)
        error = 5 * math.sqrt(0.25 / people)
        assert tpr <= curve.tpr(min(1.0, float(fpr) + error)) + error
    middle = np.quantile(other, 0.9)
    assert np.mean(member > middle) >= curve.tpr(0.1) - 0.01  # and the bound is tight


@pytest.mark.parametrize("noise", [0.6, 3.0, 50.0, 1e3, 1e5, 1e7, 1e9])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-3])
def test_mu_covers_the_advantage_however_small(noise: float, delta: float) -> None:
    curve = acc.tradeoff(run(noise, 0.5, 12))
    mu = curve.mu(delta)
    assert 2.0 * ndtr(mu / 2.0) - 1.0 >= curve.advantage * (1 - 1e-9) > 0.0
    assert acc.tradeoff(run(noise / 1.5, 0.5, 12)).mu(delta) >= mu
