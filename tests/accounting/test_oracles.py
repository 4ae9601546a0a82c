"""Other people's accountants as oracles, where theirs are right."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from sequester import accounting as acc
from sequester.core.errors import UsageError

Pld = privacy_loss_distribution


def close_from_above(ours: float, theirs: float, relative: float = 3e-4) -> None:
    assert theirs * (1 - 1e-6) <= ours <= theirs * (1 + relative)


@pytest.mark.parametrize("scale", [0.7, 2.0, 5.0])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_laplace(scale: float, rate: float) -> None:
    theirs = Pld.from_laplace_mechanism(scale, sampling_prob=rate).self_compose(20)
    event = acc.SelfComposed(acc.PoissonSampled(rate, acc.Laplace(scale)), 20)
    close_from_above(acc.epsilon(event, 1e-6), theirs.get_epsilon_for_delta(1e-6), 1e-3)


@pytest.mark.parametrize("flip", [0.1, 0.5])
@pytest.mark.parametrize("categories", [2, 5])
def test_randomized_response_against_enumeration(flip: float, categories: int) -> None:
    # Loss of one answer: ±log(truth/other), or 0; eight answers are enumerated exactly.
    other = flip / categories
    truth = 1 - flip + other
    unit, p_one = math.log(truth / other), {1: truth, -1: other, 0: other * (categories - 2)}
    total = {0: 1.0}
    for _ in range(8):
        grown: dict[int, float] = {}
        for loss, mass in total.items():
            for step, p in p_one.items():
                grown[loss + step] = grown.get(loss + step, 0.0) + mass * p
        total = grown

    def delta(epsilon: float) -> float:
        return sum(
            mass * -math.expm1(epsilon - unit * k)
            for k, mass in total.items()
            if unit * k > epsilon
        )

    event = acc.SelfComposed(acc.RandomizedResponse(flip, categories), 8)
    ours = acc.epsilon(event, 1e-4, adjacency="replace-one")
    assert delta(ours) <= 1e-4 <= delta(ours * (1 - 3e-4))


def exact_epsilon(losses: np.ndarray, masses: np.ndarray, delta: float) -> float:
    """ε of a discrete loss by bisection on the definition of δ."""
    low, high = 0.0, float(losses.max())
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = losses > middle
        excess = float((masses[above] * -np.expm1(middle - losses[above])).sum())
        low, high = (middle, high) if excess > delta else (low, middle)
    return high


def test_discrete_gaussian_against_convolution() -> None:
    # Ten outcomes enter the joint loss through their sum only: (2Σ − 10)/(2σ²).
    sigma, times = 4.0, 10
    k = np.arange(-150, 151)
    pmf = np.exp(-(k**2) / (2 * sigma**2))
    pmf /= pmf.sum()
    total = np.ones(1)
    for _ in range(times):
        total = np.convolve(total, pmf)
    place = np.arange(total.size) - 150 * times + times  # each shifted by one under P
    losses = (2 * place - times) / (2 * sigma**2)
    exact = exact_epsilon(losses, total, 1e-6)
    ours = acc.epsilon(acc.SelfComposed(acc.DiscreteGaussian(sigma), times), 1e-6)
    close_from_above(ours, exact)
    assert math.isclose(ours, 3.7464, rel_tol=1e-4)


def test_replace_one_doubles_the_sensitivity() -> None:
    # Their Rényi accountant reports half of this; their PLD is right.
    exact = acc.epsilon(acc.Gaussian(1.0), 1e-5, adjacency="replace-one")
    assert math.isclose(exact, acc.epsilon(acc.Gaussian(0.5), 1e-5), rel_tol=1e-12)
    assert math.isclose(exact, 9.997, rel_tol=1e-3)
    curve = acc.rdp(acc.Gaussian(1.0), [2.0], adjacency="replace-one")
    assert math.isclose(curve[0], 4.0, rel_tol=1e-9)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.1, 0.05, 200), (0.7, 0.3, 20)])
def test_poisson_replace_one(noise: float, rate: float, steps: int) -> None:
    theirs = Pld.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        neighboring_relation=Pld.NeighborRel.REPLACE_ONE,
        value_discretization_interval=1e-4,
    ).self_compose(steps)
    event = acc.SelfComposed(acc.PoissonSampled(rate, acc.Gaussian(noise)), steps)
    ours = acc.epsilon(event, 1e-6, adjacency="replace-one")
    close_from_above(ours, theirs.get_epsilon_for_delta(1e-6))


def test_several_records_per_person() -> None:
    from scipy.stats import binom

    k, rate = 2, 0.05
    theirs = Pld.from_mixture_gaussian_mechanism(
        1.3,
        list(range(k + 1)),
        [float(binom.pmf(i, k, rate)) for i in range(k + 1)],
        value_discretization_interval=1e-3,
    ).self_compose(20)
    event = acc.SelfComposed(acc.RecordsPoissonSampled(rate, k, acc.Gaussian(1.3)), 20)
    close_from_above(acc.epsilon(event, 1e-6), theirs.get_epsilon_for_delta(1e-6))


@pytest.mark.parametrize("cap", [12, 18, 40])
def test_truncated_poisson(cap: int) -> None:
    theirs = Pld.from_truncated_subsampled_gaussian_mechanism(
        100, 0.1, cap, 1.5, value_discretization_interval=1e-3
    ).self_compose(20)
    event = acc.SelfComposed(acc.TruncatedPoissonSampled(0.1, 100, cap, acc.Gaussian(1.5)), 20)
    close_from_above(acc.epsilon(event, 1e-5), theirs.get_epsilon_for_delta(1e-5))


def test_approximate_dp_against_the_optimal_composition() -> None:
    from scipy.stats import binom

    # Kairouz, Oh & Viswanath 2015: a binomial number of losses +ε, the rest −ε.
    times, epsilon, own = 30, 0.3, 1e-8
    ups = np.arange(times + 1)
    masses = binom.pmf(ups, times, 1 / (1 + math.exp(-epsilon))) * (1 - own) ** times
    left = 1e-5 + math.expm1(times * math.log1p(-own))
    exact = exact_epsilon((2 * ups - times) * epsilon, masses, left)
    ours = acc.epsilon(acc.SelfComposed(acc.ApproximateDP(epsilon, own), times), 1e-5)
    close_from_above(ours, exact)


def test_a_guarantee_with_a_delta_of_its_own_has_no_curve() -> None:
    event = acc.Composed([acc.Gaussian(1.0), acc.ApproximateDP(0.1, 1e-8)])
    with pytest.raises(UsageError, match="SQ-213"):
        acc.rdp(event, [2.0])
    # Its ε is defined all the same, and counts that probability.
    assert math.isinf(acc.epsilon(event, 1e-9, accountant="rdp"))
    assert acc.epsilon(event, 1e-6, accountant="rdp") > acc.epsilon(acc.Gaussian(1.0), 1e-6)
    assert acc.rdp(acc.ApproximateDP(0.1), [2.0])[0] > 0.0


def test_whole_orders_of_the_sampled_gaussian() -> None:
    orders = [2, 3, 5, 16, 64, 256]
    theirs = dp_accounting.rdp.RdpAccountant(orders)
    theirs.compose(dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(0.9)))
    ours = acc.rdp(acc.PoissonSampled(0.02, acc.Gaussian(0.9)), orders)
    np.testing.assert_allclose(ours, theirs._rdp, rtol=1e-8)


@pytest.mark.parametrize("order", [2.0, 4.0, 17.0])
def test_laplace_order(order: float) -> None:
    theirs = dp_accounting.rdp.RdpAccountant([order])
    theirs.compose(dp_accounting.LaplaceDpEvent(1.7))
    assert acc.rdp(acc.Laplace(1.7), [order])[0] == pytest.approx(theirs._rdp[0], rel=1e-9)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, math.inf])
def test_repeat_and_select(shape: float) -> None:
    base = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.2))
    theirs = dp_accounting.rdp.RdpAccountant()
    theirs.compose(
        dp_accounting.dp_event.RepeatAndSelectDpEvent(
            dp_accounting.SelfComposedDpEvent(base, 500), 20.0, shape
        )
    )
    run = acc.SelfComposed(acc.PoissonSampled(0.02, acc.Gaussian(1.2)), 500)
    ours = acc.epsilon(acc.RepeatAndSelect(run, 20.0, shape), 1e-6)
    assert theirs.get_epsilon(1e-6) * 0.99 <= ours <= theirs.get_epsilon(1e-6) * (1 + 1e-6)


def test_tree_is_one_gaussian() -> None:
    # z = 2 over 1024 leaves: 7.955 exactly, 8.552 by their Rényi accountant.
    ours = acc.epsilon(acc.TreeAggregation(2.0, 1024), 1e-5)
    assert ours == pytest.approx(acc.epsilon(acc.Gaussian(2.0 / math.sqrt(11)), 1e-5), rel=1e-12)
    assert ours == pytest.approx(7.955, rel=1e-3)


def test_zcdp_covers_the_gaussian() -> None:
    gaussian = acc.epsilon(acc.Gaussian(1.5), 1e-6)
    assert gaussian < acc.epsilon(acc.ZCDP(1 / (2 * 1.5**2)), 1e-6) < 1.2 * gaussian


def test_integer_noise_costs_hardly_more_than_continuous_noise() -> None:
    sigma, dimension = 20.0, 1000
    continuous = acc.epsilon(acc.Gaussian(sigma / 10.0), 1e-6)
    summed = acc.DiscreteGaussian(sigma / math.sqrt(50), 10.0, dimension, clients=50)
    skellam = acc.Skellam(sigma**2, 10.0, 10.0 * math.sqrt(10))
    for event in (summed, skellam):
        assert continuous <= acc.epsilon(event, 1e-6) <= 1.1 * continuous
    # Too little noise per client is charged: the sum is then far from a discrete Gaussian.
    thin = acc.DiscreteGaussian(0.3, 10.0, dimension, clients=4444)
    assert acc.epsilon(thin, 1e-6) > 2.0 * continuous


def test_generic_sampling_covers_the_exact_one() -> None:
    generic = acc.PoissonSampled(0.05, acc.ZCDP(1 / (2 * 1.3**2)))
    exact = acc.PoissonSampled(0.05, acc.Gaussian(1.3))
    orders = [2.0, 3.0, 5.5, 12.0]
    assert np.all(acc.rdp(generic, orders) >= acc.rdp(exact, orders))
    assert np.all(acc.rdp(generic, orders) <= 9.0 * acc.rdp(exact, orders))


def test_sampled_discrete_gaussian_is_close_to_the_continuous() -> None:
    event = acc.SelfComposed(acc.PoissonSampled(0.1, acc.DiscreteGaussian(4.0)), 50)
    twin = acc.SelfComposed(acc.PoissonSampled(0.1, acc.Gaussian(4.0)), 50)
    assert acc.epsilon(event, 1e-6) == pytest.approx(acc.epsilon(twin, 1e-6), rel=5e-3)


def test_sampled_integer_noise_needs_no_generic_factor_in_either_direction() -> None:
    """Moments summed over the integers, both ways, below the curve and close to it."""
    sigma, shift, rate = 2.5, 3.0, 0.1
    k = np.arange(-60.0, 64.0)
    centre, moved = (np.exp(-((k - at) ** 2) / (2 * sigma**2)) for at in (0.0, shift))
    centre, moved = centre / centre.sum(), moved / moved.sum()
    mixed = (1 - rate) * centre + rate * moved
    event = acc.PoissonSampled(rate, acc.DiscreteGaussian(sigma, shift))
    for order in (2.0, 3.0, 8.0):
        curve = float(acc.rdp(event, [order])[0])
        ways = [
            math.log(float((one * (one / other) ** (order - 1)).sum())) / (order - 1)
            for one, other in ((mixed, centre), (centre, mixed))
        ]
        assert max(ways) <= curve <= 1.0001 * max(ways) + 1e-12
    orders = [2.0, 3.0, 5.0, 12.0]
    fine = acc.PoissonSampled(0.05, acc.DiscreteGaussian(1300.0, 1000.0))
    exact = acc.PoissonSampled(0.05, acc.Gaussian(1.3))
    np.testing.assert_allclose(acc.rdp(fine, orders), acc.rdp(exact, orders), rtol=1e-6)
