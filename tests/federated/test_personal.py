"""Personal models: kept for their owners alone, judged on their owners' people, never released."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from sequester.core.errors import UsageError
from sequester.federated.algorithms import FedAdam
from sequester.federated.algorithms.personal import LocalHead
from sequester.federated.engine.base import model_vector
from sequester.federated.hostile import ATTACKS
from sequester.federated.keepsakes import personal_model
from sequester.federated.run import federate
from sequester.models import Binary, Routed, build, predict
from sequester.training.dataset import group_of, prepare, split
from sequester.training.sources import read_people
from tests.federated.clients import make_lot, make_model
from tests.federated.test_run import make_study, table
from tests.federated.world import make_engine, make_simulation

__all__ = ["table"]  # a fixture

SITES = {"placement": "cross-silo", "local_learning_rate": 0.5}
PLAIN = {
    "privacy": {"mode": "none"},
    "training": {"steps": 5, "sampling_rate": 1.0},
    "data": {"holdout": {"share": 0.4}},
}
KINDS = {"head": {}, "adapter": {"rank": 1}, "fine-tune": {"mu": 0.1}}


def loaded(study, prepared, tensors):
    model = build(study.model.kind, prepared.shape, study.model.options, seed=9)
    model.load_state_dict(tensors)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_every_site_keeps_a_model_that_is_judged_on_its_own_people(kind, table, tmp_path):
    study = make_study(table, SITES | {"personal": kind} | KINDS[kind], **PLAIN)
    done = federate(study, out=tmp_path)
    place = done.folder.private / "personal"
    files = sorted(place.iterdir())
    assert len(files) == 3
    assert place.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)

    # the figure, by torch and scikit-learn from what lies in the folder
    people = read_people(study.data)
    prepared = prepare(study, people, key=b"k" * 32)
    held = prepared.held_out
    groups = group_of(split(people, study.data)[1], "site")
    released = load_file(done.folder.weights)
    scores, plain, truth = [], [], []
    for site in ("s0", "s1", "s2"):
        own = personal_model(done.folder.path, site)
        assert own.keys() == released.keys()
        assert any(not torch.equal(own[name], released[name]) for name in own)
        rows = torch.from_numpy(groups[held.owner.numpy()] == site)
        with torch.no_grad():
            for found, tensors in ((scores, own), (plain, released)):
                model = loaded(study, prepared, tensors)
                found.append(model(held.x[rows], held.mask[rows])[..., 0][held.mask[rows]])
        truth.append(held.target[rows][held.mask[rows]])
    truth = torch.cat(truth).numpy()
    assert done.utility.value == pytest.approx(roc_auc_score(truth, torch.cat(scores)), abs=1e-6)
    assert done.utility.value != roc_auc_score(truth, torch.cat(plain))
    assert "personal models" in " ".join(json.loads(done.folder.claim.read_text())["assumptions"])
    with pytest.raises(UsageError, match="SQ-618"):
        personal_model(done.folder.path, "s9")


@pytest.mark.parametrize("kind", KINDS)
def test_a_persons_own_part_is_kept_under_a_guarantee_too(kind, table, tmp_path):
    study = make_study(table, {"personal": kind} | KINDS[kind])
    done = federate(study, out=tmp_path)
    parts = list((done.folder.private / "personal").iterdir())
    assert parts
    name = str(int(parts[0].stem.split("-")[1]))
    assert personal_model(done.folder.path, name).keys() == load_file(done.folder.weights).keys()
    # held-out people are nobody's clients: a whole shared model can be judged, a headless one not
    assert (done.utility is None) == (kind == "head")
    outside = [path for path in done.folder.path.iterdir() if path.is_file()]
    own = {bytes(v) for p in parts for v in map(_raw, load_file(p).values()) if len(_raw(v)) > 8}
    assert own
    for path in outside:
        content = path.read_bytes()
        assert not any(value in content for value in own)


def _raw(value):
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("placement", ["cross-device", "local"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedadam", "fedavgm"])
def test_no_noise_falls_on_a_head_that_nobody_shares(placement, algorithm, table, tmp_path):
    rate = 1.0 if placement == "local" else 0.5
    study = make_study(
        table,
        {"personal": "head", "placement": placement, "algorithm": algorithm},
        training={"steps": 3, "sampling_rate": rate},
    )
    done = federate(study, out=tmp_path)
    people = read_people(study.data)
    prepared = prepare(study, people, key=b"k" * 32)
    first = build(study.model.kind, prepared.shape, study.model.options, seed=study.training.seed)
    released = load_file(done.folder.weights)
    for name, value in first.state_dict().items():
        assert torch.equal(released[name], value.detach()) == name.startswith("head"), name


def test_a_hostile_client_cannot_move_a_head_that_nobody_shares():
    engine, model = make_engine()
    personal = LocalHead(engine.layout, ("head",))
    simulation = make_simulation(
        rate=1.0,
        personal=personal,
        shared=personal.shared(),
        tamper={3: ATTACKS["flip-and-scale"], 4: _heads},
        algorithm=FedAdam(0.1),
    )
    for _ in range(3):
        simulation.run_round()
    kept = ~personal.shared()
    start = model_vector(model)
    assert kept.any()
    np.testing.assert_array_equal(simulation.state.model[kept], start[kept])
    assert np.all(simulation.state.model[~kept] != start[~kept])


def _heads(update):
    from dataclasses import replace

    return replace(update, tensors={k: v + np.float32(1) for k, v in update.tensors.items()})


def test_each_person_is_judged_by_their_groups_model_in_the_lots_order():
    lot = make_lot(Binary(), counts=(3, 0, 4, 2, 5), ragged=False)
    models = {k: make_model(Binary()) for k in (-1, 0, 1)}
    for k, model in models.items():
        with torch.no_grad():
            next(iter(model.parameters())).add_(0.1 * k)
    of = np.array([1, 0, -1, 1, 0])
    found = predict(Routed(models, of), lot, people=2)
    for window, owner in enumerate(lot.owner.tolist()):
        expected = predict(models[int(of[owner])], lot)[window]
        torch.testing.assert_close(found[window], expected, rtol=1e-5, atol=1e-6)
