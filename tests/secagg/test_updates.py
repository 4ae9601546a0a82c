"""Float updates through the real protocol: accuracy, noise, accounting, refusals."""

import math

import numpy as np
import pytest

from sequester import accounting, secagg
from sequester.core.errors import UsageError, VerificationError
from sequester.core.rng import Keystream, key_from_test_seed, public_generator
from sequester.secagg.encoding import Encoding, decode, encode
from sequester.secagg.masks import Words

ROTATION = b"r" * 32


def stream(member: int = 0) -> Keystream:
    return Keystream(key_from_test_seed(member), run="test", purpose="secagg encoding")


def unit_vector(length: int, seed: int = 0) -> np.ndarray:
    vector = public_generator(seed).normal(size=length)
    return vector / np.linalg.norm(vector)


def test_a_plain_sum_keeps_seven_digits() -> None:
    plan = secagg.plan(5, 40, dropout=0.2, corrupt=0.0, clip=2.0)
    updates = {m: unit_vector(40, m) for m in range(5)}
    done = secagg.simulate_updates(
        updates, plan, drops={2: "masked"}, weights={m: 10 + m for m in range(5)}
    )
    expected = sum(updates[m] for m in (0, 1, 3, 4))
    np.testing.assert_allclose(done.total, expected, atol=5 * 2 * plan.encoding.granularity)
    assert done.weight == 10 + 11 + 13 + 14
    assert done.event is None


def test_a_noised_sum_has_the_planned_error() -> None:
    plan = secagg.plan(10, 20_000, noise_multiplier=1.0, dropout=0.3, corrupt=0.0)
    update = unit_vector(20_000)
    for drops in ({}, {0: "masked"}, {0: "masked", 1: "advert", 2: "shares"}):
        done = secagg.simulate_updates(dict.fromkeys(range(10), update), plan, drops=drops)
        survivors = 10 - len(drops)
        variance = np.var(done.total - survivors * update)
        # Every survivor's share is there: z²·clip²·survivors/7, and the rounding's γ²/4 each.
        planned = survivors / 7 + survivors * plan.encoding.granularity**2 / 6
        error = planned * math.sqrt(2 / 20_000)
        assert abs(variance - planned) < 3.5 * error, (drops, variance, planned)
        assert isinstance(done.event, accounting.DiscreteGaussian)
        assert done.event.clients == survivors


@pytest.mark.parametrize("noise", ["discrete-gaussian", "skellam"])
@pytest.mark.parametrize(("members", "length"), [(10, 10_000), (50, 100_000)])
def test_distributed_noise_costs_less_than_one_percent(
    noise: str, members: int, length: int
) -> None:
    plan = secagg.plan(members, length, noise_multiplier=1.0, noise=noise, corrupt=0, dropout=0)
    # Skellam noise has a Rényi bound only, so its like is compared with that of the Gaussian.
    central = accounting.SelfComposed(accounting.Gaussian(1.0), 10)
    kind = "rdp" if noise == "skellam" else "pld"
    least = accounting.epsilon(central, 1e-6, accountant=kind)
    assert 1.0 <= plan.epsilon(1e-6, rounds=10) / least < (1.06 if noise == "skellam" else 1.01)


def test_wrapping_is_refused_before_a_round() -> None:
    with pytest.raises(UsageError, match=r"SQ-718.*use bits=20"):
        secagg.plan(1000, 1 << 20, noise_multiplier=4.0, bits=16)


def test_wrapping_is_caught_after_a_round() -> None:
    wide_open = Encoding(100, 100.0, 0.01, 16, "none", 0.0)
    total = Words.zeros(100, 4, 16)
    for member in range(5):
        update = np.zeros(100)
        update[7] = 90.0  # 5·90/0.01 = 45 000 > 2¹⁵
        total.add(encode(wide_open, update, rotation=ROTATION, stream=stream(member)).words)
    with pytest.raises(VerificationError, match=r"SQ-720.*wrapped"):
        decode(wide_open, total, 5, rotation=ROTATION)


def test_masks_that_do_not_cancel_are_caught() -> None:
    encoding = Encoding(10, 1.0, 0.01, 32)
    total = encode(encoding, np.ones(10), rotation=ROTATION, stream=stream()).words
    total.wide += np.uint32(123456)
    with pytest.raises(VerificationError, match=r"SQ-720.*cancel"):
        decode(encoding, total, 1, rotation=ROTATION)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 1e150])
def test_hostile_updates_stay_within_the_bound(bad: float) -> None:
    encoding = Encoding(50, 1.0, 0.02, 32, "discrete-gaussian", 1e-3)
    update = np.zeros(50)
    update[3] = bad
    done = encode(encoding, update, rotation=ROTATION, stream=stream())
    integers = done.words.narrow.view(np.int32).astype(float)
    # Noise of σ = 0.001 is zero except with probability e^−500000, so these are the bare integers.
    assert np.linalg.norm(integers) <= encoding.sensitivity
    assert (np.linalg.norm(integers) > 0) == (bad == 1e150)


@pytest.mark.parametrize("length", [1, 2, 3, 37, 1000])
def test_every_vector_leaves_within_the_sensitivity(length: int) -> None:
    encoding = Encoding(length, 1.0, 0.2 / math.sqrt(length), 32, "skellam", 1e-3)
    draw = public_generator(length)
    for trial in range(40):
        update = draw.normal(size=length) * 10.0 ** draw.integers(-3, 3)
        done = encode(encoding, update, rotation=ROTATION, stream=stream(trial))
        integers = done.words.narrow.view(np.int32).astype(float)
        assert np.linalg.norm(integers) <= encoding.sensitivity
        assert done.clipped == (np.linalg.norm(update) > 1)


def test_a_weight_beside_noise_is_refused() -> None:
    encoding = Encoding(4, 1.0, 0.1, 32, "skellam", 3.0)
    with pytest.raises(UsageError, match="SQ-713"):
        encode(encoding, np.ones(4), rotation=ROTATION, stream=stream(), weight=3)


def test_integer_vectors_sum_exactly() -> None:
    plan = secagg.plan(4, 6, dropout=0.0, corrupt=0.0, bits=32)
    vectors = {m: np.array([m, -m, 1000, -(10**6), 0, 2**20]) for m in range(4)}
    done = secagg.simulate_round(vectors, plan)
    np.testing.assert_array_equal(done.total, sum(vectors.values()))


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ({"members": 1}, 719),
        ({"length": 0}, 719),
        ({"length": (1 << 30) + 1}, 719),
        ({"noise_multiplier": -1.0}, 719),
        ({"noise_multiplier": math.nan}, 719),
        ({"bits": 17}, 719),
        ({"dropout": 1.0}, 719),
        ({"corrupt": -0.1}, 719),
        ({"clip": 0.0}, 719),
        ({"dropout": 0.5, "corrupt": 0.3}, 717),
        ({"members": 3, "dropout": 0.7}, 717),
    ],
)
def test_plans_that_cannot_work_are_refused(arguments: dict, number: int) -> None:
    with pytest.raises(UsageError) as refusal:
        secagg.plan(**({"members": 10, "length": 100} | arguments))
    assert refusal.value.code == number


@pytest.mark.parametrize(
    ("vector", "number"),
    [
        (np.full(4, 2**30), 720),  # Three of them are 3·2³⁰, which 32 bits would show as −2³⁰.
        (np.array([0, 0, 0, -(2**30)]), 720),
        (np.full(4, 2**31), 713),
        (np.full(4, 2**32 + 5), 713),  # It would have been sent as 5.
        (np.full(4, 0.5), 713),
    ],
)
def test_no_sum_of_32_bit_words_wraps_unseen(vector: np.ndarray, number: int) -> None:
    plan = secagg.plan(3, 4, clip=1.0)
    assert plan.encoding.bits == 32
    with pytest.raises(VerificationError, match=f"SQ-{number}"):
        secagg.simulate_round(dict.fromkeys(range(3), vector), plan)
    # As large as it may be, or with one large vector only, a sum is exact.
    most = np.full(4, (2**31 - 1) // 3)
    assert (secagg.simulate_round(dict.fromkeys(range(3), most), plan).total == 3 * most).all()
    parts = {x: np.where(np.arange(4) == x, 2**31 - 1, 0) for x in range(3)}
    assert (secagg.simulate_round(parts, plan).total == sum(parts.values())).all()
