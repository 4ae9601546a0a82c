"""What a run is put together from: nobody's noise, coins or shares are anybody else's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from sequester.federated import clients as federated_clients
from sequester.federated import run as federated_run
from sequester.federated import sites as federated_sites
from sequester.federated.checkpoint import FileStore
from sequester.federated.compression import Feedback, LowRank, Quantise, RandomK, TopK
from sequester.federated.engine.base import Trained, layout_of, model_vector
from sequester.federated.gate import Accepted
from sequester.federated.masking import Masking, Ticket
from sequester.federated.messages import Reason
from sequester.federated.noise import EXACT, SiteSum
from sequester.federated.run import federate
from sequester.federated.settings import SecureSum
from sequester.federated.shares import SITE_GRAIN, Sums
from sequester.models.build import build
from sequester.training.dataset import shape_of
from tests.federated.test_run import make_study, table
from tests.federated.world import PEOPLE, make_engine, make_simulation

__all__ = ["table"]  # a fixture

LOUD = {"privacy": {"noise_multiplier": 50.0}}
SITES = {
    "placement": "cross-silo",
    "local_steps": 2,
    "local_learning_rate": 0.5,
    "sites": {"s0": 10, "s1": 20, "s2": 20},
}
LOCAL = {"placement": "local"}


def sent_by(monkeypatch, study, out):
    """Everybody's delta in the first round, and the weights in the end."""
    sent = {}
    real = federated_clients.answer

    def spy(instruction, tensors, **counts):
        if instruction.round == 0:
            flat = [np.asarray(value, np.float64).reshape(-1) for value in tensors.values()]
            sent[instruction.client] = np.concatenate(flat)
        return real(instruction, tensors, **counts)

    monkeypatch.setattr(federated_clients, "answer", spy)
    monkeypatch.setattr(federated_sites, "answer", spy)
    done = federate(study, out=out)
    return np.stack([sent[client] for client in sorted(sent)]), done


def put_together(monkeypatch, study, out):
    """A run's simulation, after its last round."""
    seen = []
    real = federated_run._rounds

    def rounds(simulation, *rest):
        seen.append(simulation)
        return real(simulation, *rest)

    monkeypatch.setattr(federated_run, "_rounds", rounds)
    federate(study, out=out)
    return seen[0]


@pytest.mark.parametrize("federated", [LOCAL, SITES], ids=["local", "site steps"])
def test_nobody_shares_noise_with_another(federated, table, tmp_path, monkeypatch):
    rate = {"sampling_rate": 1.0, "steps": 2}
    study = make_study(table, federated, training=rate, **LOUD)
    sent, _ = sent_by(monkeypatch, study, tmp_path)
    assert len(sent) > 2
    alike = np.corrcoef(sent) - np.eye(len(sent))
    assert np.abs(alike).max() < 7 / math.sqrt(sent.shape[1])


def test_a_site_divides_by_its_own_public_size_and_counts_by_it(table, tmp_path, monkeypatch):
    study = make_study(table, SITES, training={"sampling_rate": 1.0, "steps": 2}, **LOUD)
    sent, done = sent_by(monkeypatch, study, tmp_path)
    spread = sent.std(axis=1)
    slack = 5 / math.sqrt(2 * sent.shape[1])
    np.testing.assert_allclose(spread[0] / spread[1:], 2.0, rtol=2 * slack)
    shape = shape_of(study)
    start = model_vector(build("gru", shape, study.model.options, seed=study.training.seed))
    layout = layout_of(build("gru", shape, study.model.options))
    weights = load_file(done.folder.weights)
    final = np.concatenate([weights[name].reshape(-1) for name in layout.names])
    mean = np.array([0.2, 0.4, 0.4]) @ sent
    np.testing.assert_allclose(final - start, mean, atol=1e-4 * np.abs(mean).max())


def test_sites_flip_coins_of_their_own(table, tmp_path, monkeypatch):
    for steps in (1, 2):
        federated = {"placement": "cross-silo", "local_steps": steps}
        simulation = put_together(monkeypatch, make_study(table, federated), tmp_path)
        samplers = simulation.crowd.samplers
        drawn = [
            np.concatenate([np.isin(np.arange(12), s.draw(step)) for step in range(20)])
            for s in samplers
        ]
        alike = np.corrcoef(drawn) - np.eye(len(samplers))
        assert np.abs(alike).max() < 5 / math.sqrt(240)


def test_no_round_runs_beyond_what_is_reserved(table, tmp_path, monkeypatch):
    simulation = put_together(monkeypatch, make_study(table), tmp_path)
    assert simulation.next_round == 4
    outcome = simulation.run_round()
    assert not outcome.done
    assert "ledger" in outcome.why
    assert simulation.next_round == 4


def test_a_total_of_sites_is_held_to_what_is_exact():
    total = SiteSum(3, 0.5)
    for _ in range(3):
        sent = np.array([0.6, -0.6, 0.1, 0.0, 0.0]) * EXACT * 0.5
        total.add(Accepted(0, sent, 1, 1.0), 1.0)
    held = total.sealed().total
    np.testing.assert_array_equal(held[:2], [EXACT * 0.5, -EXACT * 0.5])
    assert held[2] == 3 * np.rint(0.1 * EXACT) * 0.5


def test_a_private_round_without_answers_is_not_told_from_others():
    simulation = make_simulation(
        rate=1.0, expected=float(PEOPLE), tamper=dict.fromkeys(range(PEOPLE), lambda update: None)
    )
    before = simulation.state.model.copy()
    assert simulation.run_round().done
    np.testing.assert_array_equal(simulation.state.model, before)


def test_a_sum_that_was_released_is_not_released_again(tmp_path):
    store = FileStore(tmp_path, "study", "data")
    simulation = make_simulation(plan={}, store=store)
    simulation.run_round()
    simulation.run_round()
    assert (tmp_path / "sealed.safetensors").exists()
    again = make_simulation(plan={}, store=store)
    store.load(again)
    assert again.sealed is None
    assert again.next_round == 2
    np.testing.assert_array_equal(again.state.model, simulation.state.model)


def test_a_local_client_without_data_answers_like_others():
    simulation = make_simulation(
        counts=(0, *(6,) * (PEOPLE - 1)),
        rate=1.0,
        expected=float(PEOPLE),
        protect=lambda instruction, delta: delta + np.float32(1.0),
    )
    outcome = simulation.run_round()
    assert (outcome.accepted, outcome.rejected) == (PEOPLE, {})


@pytest.mark.parametrize("codec", [TopK(0.1), RandomK(0.1), Quantise(4), LowRank(1)], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_codec_hides_that_training_diverged(codec, value):
    simulation = make_simulation(
        rate=1.0, feedback=Feedback(codec, layout_of(make_engine()[1])), quorum=1
    )
    engine = simulation.crowd.engine

    class Diverging:
        layout, name = engine.layout, engine.name

        def train(self, job):
            trained = engine.train(job)
            deltas = trained.deltas.copy()
            deltas[3, 5] = value
            return Trained(deltas, trained.steps, trained.windows)

    simulation.crowd.engine = Diverging()
    outcome = simulation.run_round()
    assert outcome.rejected == {Reason.NOT_FINITE: 1}
    residuals = simulation.crowd.feedback.residuals
    assert 3 not in residuals
    assert all(np.isfinite(value).all() for value in residuals.values())


def masked(**changes):
    fields = {"members": 10, "size": 400, "sites": False, "most": 10}
    chosen = SecureSum(**changes.pop("chosen", {}))
    return Sums(chosen, **(fields | changes))


@pytest.mark.parametrize("most", [10, 100_000])
def test_rounding_to_the_masked_grid_keeps_the_clip(most):
    sums, clip = masked(most=most), 0.7
    masking = Masking(sums, multiplier=0.0, run="r", key=bytes(32), full=sums.size)
    plan = sums.round_plan(clip, 0.0)
    draw = np.random.default_rng(0)
    far = [
        Accepted(client, draw.normal(size=sums.size).astype(np.float32), 1, 1.0)
        for client in range(10)
    ]
    ticket = Ticket(0, "v", clip, private=True)
    for vector in masking.integers(ticket, plan, far, np.ones(10)).values():
        norm = np.linalg.norm(vector[: sums.size] * plan.encoding.granularity)
        assert 0.9 * clip < norm <= clip


@pytest.mark.parametrize("size", [4, 400, 10_000])
def test_two_roundings_move_a_sites_integers_by_no_more_than_is_charged(size):
    sums = masked(sites=True, size=size, chosen={"noise": "discrete-gaussian"})
    grain = 1 / SITE_GRAIN  # coordinates of a person of norm C, in steps of the grid
    low, high = 0.8 * grain + 0.001, math.sqrt(2 * grain**2 - (0.8 * grain + 0.001) ** 2)
    person = np.where(np.arange(size) % 2, low, high)
    assert np.linalg.norm(person) == pytest.approx(grain * math.sqrt(size))
    others = np.ceil(person) - person - 0.5 + 1e-9 + np.zeros(size)  # just enough to round up
    moved = np.rint(others + person) - np.rint(others)
    assert np.linalg.norm(moved) > 1.001 * grain * math.sqrt(size)
    assert np.linalg.norm(moved) <= sums.site_sensitivity()


@pytest.mark.parametrize("noise", ["discrete-gaussian", "skellam"])
@pytest.mark.parametrize("sites", [True, False])
def test_the_noise_of_members_who_help_the_server_is_not_counted(sites, noise):
    chosen = {"noise": noise, "corrupt": 0.2, "dropout": 0.3}
    sums = masked(sites=sites, chosen=chosen)
    trusting = masked(sites=sites, chosen=chosen | {"corrupt": 0.0})
    assert (sums.fewest, sums.honest(7), trusting.honest(7)) == (7, 5, 7)
    event, whole = sums.event(1.0), trusting.event(1.0)
    if noise == "discrete-gaussian":
        assert (event.clients, whole.clients) == (5, 7)
        assert event.standard_deviation * math.sqrt(5) == pytest.approx(
            whole.standard_deviation * math.sqrt(7), rel=0.05
        )
        assert sums.event(1.0, 9).clients == 7
    else:  # the variance that is charged is that of the honest
        more = sums.event(1.0, 9)
        assert more.variance / event.variance == pytest.approx(7 / 5)
