"""Membership: measures against scikit-learn, attacks on an overfitted and a private model."""

import copy
from dataclasses import replace

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
    signals_of_iterates,
)
from sequester.core.errors import UsageError
from sequester.federated.algorithms import FedAvg, LocalWork, ServerState
from sequester.federated.clients import Devices
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.simulate import Simulation
from sequester.models import Classes, Forecast, Shape, build
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


def each_step(count: int, *, words: int = 0, seed: int = 0) -> Lot:
    """Windows with an answer of pure chance at every step: a number, or one of `words`."""
    g, plain = torch.Generator().manual_seed(seed), people(count, seed=seed)
    shape = plain.mask.shape
    target = (
        torch.randint(0, words, shape, generator=g) if words else torch.rand(shape, generator=g)
    )
    return replace(plain, target=target)


@pytest.mark.parametrize(
    ("task", "words"), [(Forecast(), 0), (Classes(outputs=5), 5)], ids=["forecaster", "next event"]
)
def test_models_that_answer_at_every_step_remember_their_people_too(task, words):
    everybody = each_step(40, words=words)
    shape = Shape(features=3, vocabularies=(), steps=8, outputs=task.outputs, pool="none")
    model, member = build("gru", shape, {"hidden": 32}), np.arange(40) < 20
    train = adam(epochs=60, rate=0.02, batches=1)
    target = signals(train(model, task, everybody.select(0, 20)), task, everybody)
    rows = halves(40, 4, seed=1)
    references = reference_signals(model, task, everybody, rows, train)
    for found in (
        loss(target),
        lira(target, references, rows),
        rmia(target, references, population=~member),
    ):
        assert measure("x", found[member], found[~member]).auc.value >= 0.80


def test_the_models_of_federated_rounds_remember_the_clients():
    everybody, member = people(40), np.arange(40) < 20
    model, algorithm, work = build("gru", SHAPE, {"hidden": 24}), FedAvg(), LocalWork(2.0, 5, 1)
    inside = everybody.pick(np.flatnonzero(member))
    simulation = Simulation(
        run="attacked",
        state=ServerState(model_vector(model).astype(np.float64)),
        crowd=Devices(
            choose_engine(model, TASK, inside, engine="auto", threads=1), work, algorithm, 7
        ),
        algorithm=algorithm,
        work=work,
        cohort=lambda number: np.arange(20),
    )
    iterates = []
    for _ in range(30):
        simulation.run_round()
        iterates.append(with_vector(model, simulation.state.model))
    target = signals_of_iterates(iterates, TASK, everybody)
    assert target == pytest.approx(np.mean([signals(m, TASK, everybody) for m in iterates], axis=0))
    rows = halves(40, 4, seed=1)
    train = adam(epochs=15, rate=0.02, batches=2)
    references = reference_signals(model, TASK, everybody, rows, train)
    for found in (
        lira(target, references, rows),
        rmia(target, references, population=~member),
    ):
        assert measure("x", found[member], found[~member]).auc.value >= 0.80


def with_vector(model, vector):
    changed, at = copy.deepcopy(model), 0
    with torch.no_grad():
        for parameter in changed.parameters():
            piece = vector[at : at + parameter.numel()]
            parameter.copy_(torch.from_numpy(piece).view_as(parameter))
            at += parameter.numel()
    return changed


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
