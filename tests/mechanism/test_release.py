"""One release: the grid, the noise's size, the denominator, and adaptive clipping's price."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sequester.accounting import Composed, Gaussian, PoissonSampled, SelfComposed
from sequester.core.errors import SequesterError, UsageError
from sequester.mechanism import AdaptiveClipping, NoiseStream, Plan, release


def plan(**changes: object) -> Plan:
    fields: dict = {
        "unit": "person",
        "population": 1000,
        "sampling_rate": 0.1,
        "steps": 50,
        "noise_multiplier": 1.3,
        "clip": 0.5,
        "parameters": 20_000,
        "delta": 1e-5,
    }
    return Plan(**(fields | changes))


def released(made: Plan, total: torch.Tensor, norms: torch.Tensor, *, seed: int = 1, step: int = 0):
    stream = NoiseStream.from_test_seed(seed, "run")
    return release({"w": total}, norms, plan=made, stream=stream, step=step, clip=made.clip)


def test_an_empty_lot_releases_pure_noise_of_the_planned_size():
    made = plan()
    out = released(made, torch.zeros(20_000), torch.zeros(0))
    noise = out.update["w"].numpy()
    std = 1.3 * made.sensitivity() / 100.0
    assert out.noise_std == pytest.approx(std)
    assert stats.kstest(noise / std, "norm").pvalue > 1e-4
    # The lot was empty, the denominator is still the expected 100 people.
    assert noise.std() == pytest.approx(1.3 * 0.5 / 100, rel=0.03)


def test_the_released_value_is_a_multiple_of_the_grid():
    made = plan()
    out = released(
        made, torch.randn(20_000, generator=torch.Generator().manual_seed(0)), torch.zeros(3)
    )
    counts = out.update["w"] * made.expected_lot / made.grid()
    # Off by no more than the rounding of one division in double precision.
    assert float((counts - counts.round()).abs().max()) < 1e-6
    assert float(counts.abs().max()) > 1e6


def test_the_sum_arrives_unbiased_in_double_precision():
    made = plan(noise_multiplier=1e-7)
    total = torch.linspace(-3, 3, 20_000)
    out = released(made, total, torch.zeros(5))
    assert torch.allclose(out.update["w"] * 100, total.double(), atol=1e-6)


def test_rounding_to_the_grid_never_exceeds_the_stated_sensitivity():
    generator = np.random.default_rng(3)
    made = plan(parameters=500, clip=1.0)
    for _ in range(200):
        others = generator.normal(size=500) * 10
        person = generator.normal(size=500)
        person /= np.linalg.norm(person)
        grid = made.grid()
        with_person = np.round((others + person) / grid) * grid
        without = np.round(others / grid) * grid
        assert np.linalg.norm(with_person - without) <= made.sensitivity()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sum_that_is_not_finite_is_never_released(bad: float):
    total = torch.zeros(20_000)
    total[7] = bad
    with pytest.raises(SequesterError, match="SQ-238"):
        released(plan(), total, torch.zeros(1))


def test_a_sum_beyond_the_grid_is_refused_and_one_at_its_edge_is_not():
    made = plan(parameters=4)
    edge = made.grid() * 2.0**62
    with pytest.raises(SequesterError, match="SQ-238"):
        released(made, torch.tensor([0.0, edge, 0.0, 0.0], dtype=torch.float64), torch.zeros(3))
    below = torch.full((4,), 0.9 * edge, dtype=torch.float64)  # their length is beyond
    assert (
        float((released(made, below, torch.zeros(3)).update["w"] * 100 / below - 1).abs().max())
        < 1e-9
    )


def test_a_sum_of_another_size_than_planned_is_refused():
    with pytest.raises(SequesterError, match="SQ-238"):
        released(plan(), torch.zeros(19_999), torch.zeros(1))


def test_events_follow_from_the_plan():
    step = PoissonSampled(0.1, Gaussian(1.3))
    assert plan().event() == SelfComposed(step, 50)
    assert plan().event(7) == SelfComposed(step, 7)
    setup = (Gaussian(9.0),)
    assert plan(setup=setup).event() == Composed((Gaussian(9.0), SelfComposed(step, 50)))
    assert plan(setup=setup).event(0) == Gaussian(9.0)


def test_adaptive_clipping_is_charged_by_adding_more_noise_to_the_gradient():
    adaptive = AdaptiveClipping(quantile=0.5, count_noise=5.0)
    made = plan(adaptive=adaptive)
    gradient = made.gradient_noise_multiplier
    # Two Gaussians on one lot: inverse squares add (Andrew et al. 2021, theorem 1).
    assert gradient**-2 + (2 * 5.0) ** -2 == pytest.approx(1.3**-2)
    assert gradient > 1.3
    assert made.event() == plan().event()


def test_adaptive_clipping_finds_the_quantile():
    adaptive = AdaptiveClipping(quantile=0.3, learning_rate=0.3, count_noise=3.0)
    made = plan(adaptive=adaptive, parameters=64, clip=20.0)
    generator = np.random.default_rng(0)
    stream = NoiseStream.from_test_seed(2, "run")
    clip, seen = 20.0, []
    for step in range(400):
        norms = torch.from_numpy(generator.lognormal(0.0, 1.0, generator.binomial(1000, 0.1)))
        out = release({"w": torch.zeros(64)}, norms, plan=made, stream=stream, step=step, clip=clip)
        clip = out.clip
        seen.append(clip)
    target = math.exp(stats.norm.ppf(0.3))
    assert np.median(seen[200:]) == pytest.approx(target, rel=0.15)


def test_a_count_that_costs_more_than_the_step_is_refused():
    with pytest.raises(UsageError, match="SQ-237"):
        _ = plan(adaptive=AdaptiveClipping(count_noise=0.5)).gradient_noise_multiplier


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("noise_multiplier", 0.0, 214),
        ("noise_multiplier", math.nan, 214),
        ("clip", -1.0, 234),
        ("unit", "household", 233),
        ("steps", 0, 235),
        ("sampling_rate", 1.5, 231),
        ("delta", 1.0, 201),
    ],
)
def test_plans_that_mean_nothing_are_refused(field: str, value: object, code: int):
    with pytest.raises(UsageError, match=f"SQ-{code}"):
        plan(**{field: value})


def test_epsilon_agrees_with_dp_accounting():
    from dp_accounting import dp_event, pld

    made = plan(steps=100)
    oracle = pld.PLDAccountant()
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.3))
    oracle.compose(dp_event.SelfComposedDpEvent(event, 100))
    assert oracle.get_epsilon(1e-5) <= made.epsilon() * 1.001
    assert made.epsilon() <= oracle.get_epsilon(1e-5) * 1.35
