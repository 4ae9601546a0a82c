"""The vocabulary: a closed schema that round-trips and never runs anything."""

import json
import math

import pytest

from sequester import accounting as acc
from sequester.core.errors import UsageError

EXAMPLES = [
    acc.Gaussian(1.1),
    acc.Gaussian(1),
    acc.Laplace(0.5),
    acc.RandomizedResponse(0.2, 3),
    acc.DiscreteGaussian(4.0, 2.0, 10, 5),
    acc.Skellam(100.0, 2.0, 4.0),
    acc.ZCDP(0.1),
    acc.ApproximateDP(1.0, 1e-9),
    acc.QuantileEstimate(5.0),
    acc.MatrixMechanism(1.3, 2.5),
    acc.TreeAggregation(2.0, 64, 3, 4),
    acc.PoissonSampled(0.01, acc.Gaussian(1.0)),
    acc.TruncatedPoissonSampled(0.1, 1000, 130, acc.Gaussian(1.0)),
    acc.FixedSizeSampled(100, 10, acc.Gaussian(1.0)),
    acc.Shuffled(10, 3, acc.Gaussian(1.0)),
    acc.CyclicPoissonSampled(0.1, 8, 100, acc.Gaussian(1.0)),
    acc.RecordsPoissonSampled(0.01, 4, acc.Gaussian(1.0)),
    acc.SelfComposed(acc.Gaussian(1.0), 7),
    acc.Composed([acc.Gaussian(1.0), acc.Laplace(2.0)]),
    acc.Composed([]),
    acc.RepeatAndSelect(acc.Gaussian(1.0), 10.0, math.inf),
    acc.RepeatAndSelect(acc.Gaussian(1.0), 10, 0),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.kind)
def test_round_trip(event: acc.Event) -> None:
    text = acc.to_json(event)
    assert acc.from_json(text) == event
    assert acc.to_json(acc.from_json(text)) == text
    assert hash(event) == hash(acc.from_json(text))


def test_every_type_is_tried_and_named() -> None:
    assert {event.kind for event in EXAMPLES} == set(acc.VOCABULARY)


def test_the_vocabulary_on_disk_never_changes() -> None:
    # Ledgers hold these texts for years; a change here is a broken promise.
    run = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.1)), 4000)
    assert acc.to_json(run) == (
        '{"count":4000,"event":{"event":{"noise_multiplier":1.1,"type":"gaussian"},'
        '"sampling_rate":0.01,"type":"poisson-sampled"},"type":"self-composed"}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"type":"os.system","noise_multiplier":1}',
        '{"type":"gaussian"}',
        '{"type":"gaussian","noise_multiplier":NaN}',
        '{"type":"gaussian","noise_multiplier":Infinity}',
        '{"type":"gaussian","noise_multiplier":"1"}',
        '{"type":"gaussian","noise_multiplier":true}',
        '{"type":"gaussian","noise_multiplier":1e999}',
        '{"type":"gaussian","noise_multiplier":1,"module":"os"}',
        '{"type":"gaussian","noise_multiplier":1,"noise_multiplier":9}',
        '{"type":["gaussian"],"noise_multiplier":1}',
        '{"type":"self-composed","event":{"type":"gaussian","noise_multiplier":1},"count":1.0}',
        '{"type":"composed","events":{"type":"gaussian","noise_multiplier":1}}',
        '{"type":"self-composed","count":1,"event":' * 50 + '{"type":"zcdp","rho":1}' + "}" * 50,
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        acc.from_json(text)


def test_events_are_values() -> None:
    with pytest.raises(AttributeError):
        acc.Gaussian(1.0).noise_multiplier = 2.0  # type: ignore[misc]
    with pytest.raises(UsageError):
        acc.SelfComposed(1.0, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        acc.Composed(acc.Gaussian(1.0))  # type: ignore[arg-type]
    assert json.loads(acc.to_json(acc.Gaussian(2)))["noise_multiplier"] == 2.0


def test_samplers_are_charged_for_what_they_are() -> None:
    gaussian, delta = acc.Gaussian(1.1), 1e-6
    poisson = acc.epsilon(acc.SelfComposed(acc.PoissonSampled(0.01, gaussian), 4000), delta)
    shuffled = acc.Shuffled(100, 40, gaussian)
    # No amplification: somebody's one batch per epoch, at least 14.75 by a published attack.
    assert acc.epsilon(shuffled, delta, adjacency="zero-out") == pytest.approx(43.1, rel=2e-3)
    assert acc.epsilon(shuffled, delta) > acc.epsilon(shuffled, delta, adjacency="zero-out")
    assert acc.epsilon(shuffled, delta, adjacency="zero-out") > 4.0 * poisson
    cyclic = acc.CyclicPoissonSampled(0.08, 8, 4000, gaussian)
    same = acc.SelfComposed(acc.PoissonSampled(0.08, gaussian), 500)
    assert acc.epsilon(cyclic, delta) == acc.epsilon(same, delta)
    with pytest.raises(UsageError, match="SQ-210"):
        acc.epsilon(acc.FixedSizeSampled(100, 10, gaussian), delta)
    with pytest.raises(UsageError, match="SQ-210"):
        acc.epsilon(acc.RandomizedResponse(0.5), delta)
    mixed = acc.PoissonSampled(0.1, acc.Composed([gaussian, acc.Laplace(1.0)]))
    with pytest.raises(UsageError, match="SQ-211"):
        acc.epsilon(mixed, delta)


def test_lot_with_several_gaussians_is_one_gaussian() -> None:
    # Gradient and clipping count of adaptive clipping together are worth the whole.
    split = acc.quantile_split(1.0, 5.0)
    both = acc.PoissonSampled(0.1, acc.Composed([acc.Gaussian(split), acc.QuantileEstimate(5.0)]))
    whole = acc.PoissonSampled(0.1, acc.Gaussian(1.0))
    ours = acc.epsilon(acc.SelfComposed(both, 50), 1e-6)
    assert ours == pytest.approx(acc.epsilon(acc.SelfComposed(whole, 50), 1e-6), rel=1e-6)
    with pytest.raises(UsageError, match="SQ-218"):
        acc.quantile_split(1.0, 0.5)


def test_two_coins_are_one() -> None:
    inner = acc.PoissonSampled(0.1, acc.Gaussian(1.0))
    twice = acc.SelfComposed(acc.PoissonSampled(0.5, inner), 30)
    once = acc.SelfComposed(acc.PoissonSampled(0.05, acc.Gaussian(1.0)), 30)
    assert acc.epsilon(twice, 1e-6) == acc.epsilon(once, 1e-6)


@pytest.mark.parametrize(
    ("noise", "batches", "epochs", "delta", "published"),
    [
        (1.1, 100, 40, 1e-6, 14.75),
        (1.0, 39, 10, 1e-5, 11.89),
        (1.1, 234, 60, 1e-5, 10.87),
        (0.6, 1000, 10, 1e-6, 30.88),
        (0.5, 10_000, 1, 1e-6, 10.99),
        (1.0, 1000, 1, 1e-6, 3.72),
    ],
)
def test_shuffling_leaks_at_least_what_attacks_showed(
    noise: float, batches: int, epochs: int, delta: float, published: float
) -> None:
    from sequester.accounting.shuffle import lower_bound

    low = lower_bound(noise, batches, epochs, delta)
    assert low == pytest.approx(published, rel=0.01)
    event = acc.Shuffled(batches, epochs, acc.Gaussian(noise))
    assert low <= acc.epsilon(event, delta, adjacency="zero-out")
