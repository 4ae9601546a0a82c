"""Several private steps of a site in one round, and cohorts of fixed size."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sequester import accounting
from sequester.accounting import FixedSizeSampled, Gaussian, SelfComposed, from_json
from sequester.core.errors import UsageError
from sequester.core.rng import Keystream, key_from_test_seed
from sequester.federated.algorithms import ServerState
from sequester.federated.checkpoint import FileStore
from sequester.federated.engine.base import layout_of, model_vector
from sequester.federated.gate import Accepted
from sequester.federated.network.site import check_networked
from sequester.federated.run import federate, resume
from sequester.federated.settings import settings_of
from sequester.federated.sites import ByPopulation, NoisySites, names_of_sites, people_of_sites
from sequester.gradients import Flat
from sequester.mechanism import Claim, NoiseStream
from sequester.sampling import FixedSizeSampler, PoissonSampler
from sequester.training import train
from sequester.training.chance import Chance
from tests.federated.clients import TASKS, make_lot, make_model
from tests.federated.test_run import make_study, table  # noqa: F401 - a fixture
from tests.federated.world import make_engine, make_plan


def site(noise, steps, *, rate=1.0, seed=0):
    """One site of eight people, its crowd and the model it starts from."""
    task = TASKS["binary"]
    lot, model = make_lot(task, counts=(3, 2, 4, 1, 5, 2, 3, 4)), make_model(task, hidden=5)
    layout = layout_of(model)
    plan = make_plan(
        make_engine()[0],
        population=8,
        sampling_rate=rate,
        noise_multiplier=noise,
        clip=0.05,
        parameters=layout.size,
    )
    key = key_from_test_seed(seed)
    crowd = NoisySites(
        model=model,
        task=task,
        sites=[lot],
        samplers=[PoissonSampler(8, rate, Keystream(key, "r", "lots/a"))],
        plans=[plan],
        rule=lambda _, clip: Flat(clip),
        streams=lambda _: NoiseStream(key, "r", private=False),
        steps=steps,
        learning_rate=2.0,
        layout=layout,
        chance=Chance.of(key, "r"),
    )
    return crowd, model_vector(model), lot, task


def delta_of(crowd, start, number=0):
    instruction = type("I", (), {"client": 0, "round": number, "run": "r"})()
    instruction.version = instruction.nonce = "v"
    (event,) = crowd.answer([instruction], ServerState(start.astype(np.float64)), 0.05)
    return crowd.layout.flatten(event.update.tensors), event.update


def test_local_steps_are_dp_sgd_by_hand():
    """Three steps against a loop with autograd, one person after another, in float64."""
    crowd, start, lot, task = site(1e-6, 3)
    found, update = delta_of(crowd, start)
    assert (update.steps, update.weight) == (1, 1.0)  # no counts leave
    model = make_model(task, hidden=5)
    for _ in range(3):
        total = np.zeros(len(start))
        for person in range(8):
            alone = lot.pick(np.array([person]))
            losses = task.loss(model, alone)
            gradient = torch.autograd.grad(losses.mean(), list(model.parameters()))
            flat = np.concatenate([g.double().numpy().reshape(-1) for g in gradient])
            total += flat * min(1.0, 0.05 / max(np.linalg.norm(flat), 1e-30))
        with torch.no_grad():
            at = 0
            for p in model.parameters():
                step = torch.from_numpy(total[at : at + p.numel()]).view_as(p).float()
                p.sub_(2.0 * step / 8.0)
                at += p.numel()
    np.testing.assert_allclose(found, model_vector(model) - start, atol=2e-6)
    assert np.abs(found).max() > 1e-3


def test_every_local_step_has_noise_of_its_own():
    crowd, start, _, _ = site(50.0, 4)
    plan = crowd.plans[0]
    once, _ = delta_of(replace(crowd, steps=1), start)
    whole, _ = delta_of(crowd, start)
    later, _ = delta_of(crowd, start, 1)
    std = 2.0 * plan.noise_multiplier * plan.sensitivity() / plan.expected_lot
    spread = 5 / math.sqrt(2 * len(start))
    assert once.std() == pytest.approx(std, rel=spread)
    assert whole.std() == pytest.approx(std * 2.0, rel=spread)  # four steps: √4
    # the next round draws steps 4 to 7: nothing is drawn twice
    assert abs(np.corrcoef(whole, later)[0, 1]) < 5 / math.sqrt(len(start))


def test_a_site_that_is_silent_leaves_its_public_share_unused():
    weighting = ByPopulation((0.25, 0.75))
    updates = [Accepted(1, np.ones(3, np.float32), 1, 999.0)]
    np.testing.assert_array_equal(weighting.raw(updates), [0.75])
    assert people_of_sites({}, ["a", "b"], 100) == [50, 50]
    assert people_of_sites({"b": 90, "a": 10}, ["a", "b"], 100) == [10, 90]
    assert names_of_sites(np.array(["b", "a", "b"])) == ["a", "b"]
    assert names_of_sites(np.array(["b", "b"]), {"b": 90, "a": 10}) == ["a", "b"]
    with pytest.raises(UsageError, match="SQ-625"):
        names_of_sites(np.array(["b", "a"]), {"a": 10})


SITES = {
    "placement": "cross-silo",
    "local_steps": 2,
    "local_learning_rate": 0.5,
    "sites": {"s0": 10, "s1": 20, "s2": 20},
}


def test_a_run_charges_each_local_step_and_resumes_to_the_same_weights(
    table,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    study = make_study(table, SITES, privacy={"noise_multiplier": 1.0, "clip": 0.2})
    whole = federate(study, out=tmp_path / "whole")
    assert (whole.rounds, whole.steps) == (2, 4)
    claim = Claim.read(whole.folder.claim)
    assert from_json(json.dumps(claim.fields["events"])).count == 4
    assert json.loads(whole.folder.facts.read_text())["plan"]["local steps a round"] == 2
    assert "trusted by its own people" in " ".join(claim.fields["assumptions"])
    save = FileStore.save

    def dying_save(self, simulation):
        if simulation.next_round == 2:
            raise KeyboardInterrupt
        save(self, simulation)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "save", dying_save)
        with pytest.raises(KeyboardInterrupt):
            federate(study, out=tmp_path / "killed")
    (folder,) = (tmp_path / "killed").iterdir()
    again, first = (load_file(run.folder.weights) for run in (resume(folder), whole))
    assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in first.items()}


@pytest.mark.parametrize(
    ("federated", "changes"),
    [
        ({"local_steps": 2}, {}),
        (SITES, {"privacy": {"mode": "none"}}),
        (SITES | {"local_steps": 3}, {}),
        (SITES, {"privacy": {"adaptive": {}}}),
        ({"placement": "cross-silo"}, {"training": {"lot_size": 20}}),
        ({"placement": "local"}, {"training": {"lot_size": 20, "sampling_rate": 1.0}}),
    ],
)
def test_what_several_steps_and_fixed_cohorts_do_not_cover_is_refused(
    federated,
    changes,
    table,  # noqa: F811
):
    with pytest.raises(UsageError, match="SQ-621"):
        settings_of(make_study(table, federated, **changes))


@pytest.mark.parametrize(
    ("federated", "changes"),
    [(SITES, {}), ({}, {"training": {"steps": 4, "lot_size": 12, "sampling_rate": 0.24}})],
)
def test_both_stay_in_one_process(federated, changes, table):  # noqa: F811
    with pytest.raises(UsageError, match="SQ-638"):
        check_networked(make_study(table, federated, **changes))


def test_every_set_of_fixed_size_is_equally_likely():
    sampler = FixedSizeSampler(5, 2, Keystream(key_from_test_seed(1), "r", "lots"))
    draws = [tuple(sampler.draw(step).tolist()) for step in range(3000)]
    assert sampler.draw(7).tolist() == list(draws[7])
    counts = np.array([draws.count(pair) for pair in combinations(range(5), 2)])
    assert counts.sum() == 3000
    # ten sets, 300 expected each; χ² with 9 degrees of freedom is below 35 but once in 10,000
    assert ((counts - 300.0) ** 2 / 300.0).sum() < 35
    with pytest.raises(UsageError, match="SQ-244"):
        FixedSizeSampler(5, 6, sampler.keystream)


def test_equal_numbers_are_drawn_again(monkeypatch):
    """Otherwise the earlier position would win more often than the accountant believes."""
    sampler = FixedSizeSampler(4, 2, Keystream(key_from_test_seed(1), "r", "lots"))
    real = Keystream.bytes

    def tied(self, step, count, *, rank=0):
        return b"\0" * count if rank == 0 else real(self, step, count, rank=rank)

    wanted = np.sort(np.argsort(np.frombuffer(sampler.keystream.bytes(3, 32, rank=1), "<u8"))[:2])
    monkeypatch.setattr(Keystream, "bytes", tied)
    np.testing.assert_array_equal(sampler.draw(3), wanted)


def test_a_cohort_of_fixed_size_is_charged_as_what_it_is(table, tmp_path):  # noqa: F811
    study = make_study(
        table,
        {},
        training={"steps": 4, "lot_size": 12, "sampling_rate": 0.3},
        data={"population": 40},
    )
    done = federate(study, out=tmp_path)
    assert done.cohort == 12.0
    claim = Claim.read(done.folder.claim)
    assert claim.fields["adjacency"] == "replace-one"
    event = SelfComposed(FixedSizeSampled(40, 12, Gaussian(1.0)), 4)
    assert from_json(json.dumps(claim.fields["events"])) == event
    assert claim.epsilon >= accounting.epsilon(event, 1e-5, adjacency="replace-one")
    told = json.loads(done.folder.facts.read_text())["plan"]
    assert told["people in each round"] == 12
    assert told["algorithm"] == "fedavg"
    assert not {"sampling rate", "optimiser", "learning rate"} & told.keys()
    said = " ".join(claim.fields["assumptions"])
    assert "without replacement" in said
    assert "Poisson" not in said
    rounds = (done.folder.private / "rounds.jsonl").read_text().splitlines()
    assert {json.loads(line)["cohort"] for line in rounds} == {12}
    # half the sensitivity is not enough: an exchange moves the sum by 2C
    poisson = accounting.epsilon(
        SelfComposed(accounting.PoissonSampled(12 / 40, Gaussian(1.0)), 4), 1e-5
    )
    assert claim.epsilon > 1.5 * poisson


def test_fewer_people_than_declared_are_refused_and_so_is_central_training(
    table,  # noqa: F811
    tmp_path,
):
    study = make_study(
        table, {}, training={"lot_size": 12, "sampling_rate": 0.1}, data={"population": 59}
    )
    with pytest.raises(UsageError, match="SQ-626"):
        federate(study, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()  # nor was anything charged
    with pytest.raises(UsageError, match="SQ-276"):
        train(study, out=tmp_path)
    with pytest.raises(UsageError, match="SQ-244"):
        make_plan(make_engine()[0], lot_size=11, adjacency="replace-one")
    with pytest.raises(UsageError, match="SQ-244"):
        make_plan(make_engine()[0], lot_size=12)
