"""Users' modules in rounds: nothing goes from person to person, and numbers come from the run."""

from __future__ import annotations

import random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sequester.core.errors import UsageError
from sequester.core.rng import key_from_test_seed
from sequester.federated.engine.base import model_vector
from sequester.federated.engine.loop import LoopEngine
from sequester.federated.run import federate, resume
from sequester.ledger import Ledger
from sequester.models.tasks import Classes
from sequester.training import train
from sequester.training.chance import Chance
from sequester.training.study import Model
from tests.federated.clients import COUNTS, make_job, make_lot
from tests.federated.killed import killed
from tests.federated.modules import BESIDE, DRAW, KEEP, Dropout, Plain
from tests.federated.test_run import make_study, table

__all__ = ["table"]  # a fixture

TASK = Classes(4)
OUTSIDE = "Global"


def of(kind, study):
    """The study with a module of `modules` as its network."""
    module = f"tests.federated.modules:{kind.__name__}"
    return msgspec.structs.replace(study, model=Model(module=module))


def make_engine(kind, key=1):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(SimpleNamespace(features=3, outputs=4, pool="mean"))
    chance = Chance.of(key_from_test_seed(key), "run")
    return LoopEngine(model, TASK.loss, make_lot(TASK, ragged=False), chance=chance), model


@pytest.mark.parametrize("kind", KEEP)
def test_nothing_goes_from_client_to_client(kind):
    engine, model = make_engine(kind)
    with pytest.raises(UsageError, match="SQ-406"):
        engine.train(make_job(engine, model_vector(model)))


@pytest.mark.parametrize("kind", BESIDE)
def test_what_is_kept_beside_a_module_is_refused_at_calls_that_compare_nobody(kind, monkeypatch):
    engine, model = make_engine(kind)
    monkeypatch.setattr("sequester.federated.engine.loop.due", lambda call: None)
    with pytest.raises(UsageError, match=r"SQ-406 .*changed while the model ran"):
        engine.train(make_job(engine, model_vector(model)))


@pytest.mark.parametrize("kind", [Plain, *DRAW])
def test_a_clients_update_depends_on_nobody_else_and_no_seed_of_a_user(kind):
    engine, model = make_engine(kind)
    start = model_vector(model)
    everyone = list(range(len(COUNTS)))
    whole = engine.train(make_job(engine, start)).deltas
    for clients in (everyone[::-1], [4], [6, 1, 3]):
        torch.manual_seed(99)
        np.random.seed(99)
        random.seed(99)
        fresh, _ = make_engine(kind)
        found = fresh.train(make_job(fresh, start, clients)).deltas
        np.testing.assert_array_equal(found, whole[clients])
    after = torch.rand(1), np.random.rand(), random.random()
    np.random.seed(99)
    random.seed(99)
    torch.manual_seed(99)
    assert after == (torch.rand(1), np.random.rand(), random.random())


@pytest.mark.parametrize("kind", DRAW)
def test_clients_rounds_and_runs_draw_other_numbers(kind):
    engine, model = make_engine(kind)
    start = model_vector(model)
    job = make_job(engine, start, [4])
    first = engine.train(job).deltas
    later = engine.train(type(job)(**{**vars(job), "round": job.round + 1, "seed": 0})).deltas
    other, _ = make_engine(kind, key=2)
    assert not np.array_equal(first, later)
    assert not np.array_equal(first, other.train(job).deltas)


@pytest.mark.parametrize("kind", [kind for kind in KEEP if kind.__name__ != OUTSIDE])
@pytest.mark.parametrize("placement", ["cross-device", "cross-silo", "central"])
def test_what_keeps_people_is_refused_before_anything_is_charged(kind, placement, table, tmp_path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    ledger = Ledger.create(url)
    ledger.create_budget("clinic", "clinic", 50.0, 1e-5)
    rows = len(ledger.rows())
    study = of(kind, make_study(table, ledger={"url": url, "budget": "clinic"}))
    rounds = None if placement == "central" else {"placement": placement}
    study = msgspec.structs.replace(study, federated=rounds)
    with pytest.raises(UsageError, match="SQ-406"):
        (federate if rounds else train)(study, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert len(ledger.rows()) == rows


WORLDS = {
    "cross-device": ({}, {}),
    "cross-silo": ({"placement": "cross-silo"}, {}),
    "site steps": ({"placement": "cross-silo", "local_steps": 2}, {"training": {"steps": 8}}),
    "local": ({"placement": "local"}, {"training": {"steps": 4, "sampling_rate": 1.0}}),
    "no guarantee": ({}, {"privacy": {"mode": "none"}}),
}


def weights(done):
    return {k: v.tobytes() for k, v in load_file(done.folder.weights).items()}


@pytest.mark.parametrize("name", WORLDS)
def test_a_killed_run_whose_layers_draw_resumes_to_the_same_weights(name, table, tmp_path):
    federated, changes = WORLDS[name]
    study = of(Dropout, make_study(table, federated, **changes))
    torch.manual_seed(1)
    whole = weights(federate(study, out=tmp_path / "whole"))
    folder = killed(study, tmp_path / "killed", "before saving")
    torch.manual_seed(2)
    assert weights(resume(folder)) == whole


@pytest.mark.parametrize("mode", ["dp", "none"])
@pytest.mark.parametrize("kind", DRAW)
def test_central_training_draws_from_the_runs_secret(kind, mode, table, tmp_path):
    study = of(kind, make_study(table, privacy={"mode": mode}))
    study = msgspec.structs.replace(study, federated=None)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        found.append(weights(train(study, out=tmp_path / str(seed))))
    assert found[0] == found[1]
