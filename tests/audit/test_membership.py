"""Membership: measures against scikit-learn, attacks on an overfitted and a private model."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from sequester import accounting
from sequester.audit.mechanism.gaussian import mu_of_epsilon
from sequester.audit.membership import (
    Caps,
    adam,
    exposure,
    halves,
    lira,
    loss,
    measure,
    reference_signals,
    repeated,
    rmia,
    signals,
)
from sequester.core.errors import UsageError
from sequester.models import Classes, Shape, build
from sequester.sampling import Lot

TASK = Classes(outputs=4)
SHAPE = Shape(features=3, vocabularies=(), steps=8, outputs=4, pool="mean")


def people(count: int, *, windows: int = 3, seed: int = 0) -> Lot:
    """Windows whose answers are mostly chance: a model can only learn them by heart."""
    g = torch.Generator().manual_seed(seed)
    rows = count * windows
    return Lot(
        x=torch.randn(rows, 8, 3, generator=g),
        mask=torch.ones(rows, 8, dtype=torch.bool),
        target=torch.randint(0, 4, (rows,), generator=g),
        owner=torch.arange(count).repeat_interleave(windows),
        people=count,
    )


def test_auc_and_its_interval():
    rng = np.random.Generator(np.random.Philox(1))
    covered = 0
    truth = norm.cdf(1 / 2**0.5)
    for _ in range(200):
        inside, outside = rng.normal(1, 1, 80).round(1), rng.normal(0, 1, 60).round(1)
        found = measure("x", inside, outside)
        labels = np.r_[np.ones(80), np.zeros(60)]
        expected = roc_auc_score(labels, np.r_[inside, outside])
        assert found.auc.value == pytest.approx(expected, abs=1e-12)
        covered += found.auc.low <= truth <= found.auc.high
    assert 180 <= covered <= 200


def test_low_false_positive_rates_come_with_honest_intervals():
    inside, outside = np.arange(2000) / 10.0, np.arange(1000) / 10.0
    found = measure("x", inside, outside)
    assert found.tpr_at_fpr[0.01].value == pytest.approx(0.505, abs=0.002)
    assert found.tpr_at_fpr[0.01].low < found.tpr_at_fpr[0.01].value < found.tpr_at_fpr[0.01].high
    few = measure("x", np.ones(50), np.zeros(50))
    assert few.tpr_at_fpr[0.001].low == 0.0  # 50 others cannot show a rate of 1 in 1,000


@pytest.mark.parametrize(("epsilon", "auc"), [(1, 0.575), (2, 0.639), (4, 0.743), (8, 0.881)])
def test_caps_that_epsilon_implies(epsilon, auc):
    curve = accounting.tradeoff(accounting.Gaussian(1 / mu_of_epsilon(epsilon, 1e-5)))
    caps = Caps.of(curve)
    assert caps.auc == pytest.approx(auc, abs=0.002)
    rng = np.random.Generator(np.random.Philox(2))
    within = measure("x", rng.normal(size=500), rng.normal(size=500))
    assert caps.exceeded_by(within) == ()
    above = measure("x", rng.normal(4, 1, 500), rng.normal(size=500))
    assert "auc" in caps.exceeded_by(above)


def test_a_claim_that_holds_is_rarely_above_its_caps():
    curve = accounting.tradeoff(accounting.Gaussian(1 / mu_of_epsilon(0.1, 1e-5)))
    caps = Caps.of(curve)
    rng = np.random.Generator(np.random.Philox(11))
    alarms = 0
    for _ in range(400):
        found = [measure("x", *rng.normal(size=(2, 200))) for _ in range(3)]
        alarms += any(caps.exceeded_by(attack, attacks=3) for attack in found)
    assert alarms / 400 <= 0.01 + 3 * (0.01 * 0.99 / 400) ** 0.5
    # Three of three apart is chance (1 in 20); two hundred are not.
    assert caps.exceeded_by(measure("x", np.ones(3), np.zeros(3))) == ()
    breach = caps.exceeded_by(measure("x", np.ones(200), np.zeros(200)), attacks=3)
    assert breach == ("auc", "tpr at fpr 0.001", "tpr at fpr 0.01")
    few = rng.normal(size=200)
    few[:30] += 10.0  # a breach of a few, whose area is within its cap
    assert caps.exceeded_by(measure("x", few, rng.normal(size=200)), attacks=3) != ()


def test_an_overfitted_gru_remembers_its_people_and_references_see_it():
    everybody, model = people(60), build("gru", SHAPE, {"hidden": 24})
    member = np.arange(60) < 30
    train = adam(epochs=30, rate=0.02, batches=2)
    target_model = train(model, TASK, everybody.pick(np.flatnonzero(member)))
    rows = halves(60, 4, seed=1)
    references = reference_signals(model, TASK, everybody, rows, train)
    target = signals(target_model, TASK, everybody)
    for found in (
        loss(target),
        lira(target, references, rows),
        rmia(target, references, population=~member),
    ):
        assert measure("x", found[member], found[~member]).auc.value >= 0.80
    by_window = signals(target_model, TASK, everybody, by="window")
    windows = member[everybody.owner.numpy()]
    assert measure("x", by_window[windows], by_window[~windows]).auc.value >= 0.75


def test_an_untrained_model_tells_nothing():
    everybody, model = people(200), build("gru", SHAPE, {"hidden": 24})
    target = signals(model, TASK, everybody)
    found = measure("x", target[:100], target[100:])
    assert found.auc.low <= 0.5 <= found.auc.high


def test_exposure_is_bits_above_chance():
    others = np.arange(1023, dtype=float)
    assert exposure(5000.0, others) == 10.0
    assert exposure(-1.0, others) == 0.0
    assert exposure(511.0, others) == pytest.approx(1.0, abs=0.01)
    rng = np.random.Generator(np.random.Philox(3))
    chance = [exposure(rng.random(), rng.random(1023)) for _ in range(2000)]
    assert np.mean(chance) == pytest.approx(1 / np.log(2), abs=0.12)
    assert repeated({4: np.array([1.0, 3.0])})[4] == (2.0, pytest.approx(1.0))


def test_halves_are_balanced_and_complementary():
    rows = halves(31, 6, seed=0)
    assert rows.shape == (6, 31)
    assert (rows.sum(axis=0) == 3).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: measure("x", np.empty(0), np.ones(1)),
        lambda: measure("x", np.array([np.nan]), np.ones(1)),
        lambda: halves(10, 3),
        lambda: lira(np.ones(2), np.ones((2, 2)), np.ones((2, 2), bool)),
        lambda: rmia(np.ones(2), np.ones((0, 2)), population=np.ones(2, bool)),
        lambda: exposure(1.0, np.empty(0)),
        lambda: signals(build("gru", SHAPE, {}), TASK, people(2), by="site"),
    ],
)
def test_wrong_input_is_refused(wrong):
    with pytest.raises(UsageError, match="SQ-82"):
        wrong()
