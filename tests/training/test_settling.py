"""What a user's module fills at first use is filled before people come, if it depends on nobody."""

from __future__ import annotations

import importlib
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sequester.audit.run import Settings, audit_run
from sequester.core.errors import UsageError
from sequester.federated.network.site import Place, crowd_of
from sequester.federated.run import federate
from sequester.federated.run import resume as go_on
from sequester.models import build
from sequester.training import Model, resume, train
from sequester.training.dataset import prepare, shape_of
from sequester.training.monitor import Measure
from sequester.training.network import network_of
from sequester.training.sources import read_people
from tests.federated.killed import killed
from tests.federated.test_run import make_study, table
from tests.training.firsts import CONSTANT, DEPENDING
from tests.training.population import people, study

__all__ = ["table"]  # a fixture

FILE = "tests.training.firsts"
NAMES = [kind.__name__ for kind in CONSTANT]


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A way to forget what the file filled, as another process would not know it."""

    def forget() -> None:
        monkeypatch.delitem(sys.modules, FILE, raising=False)
        importlib.import_module(FILE)

    forget()
    return forget


def of(name: str, **changes: Any) -> Any:
    return study(model__module=f"{FILE}:{name}", model__options={}, **changes)


def weights(folder: Any) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in load_file(folder.weights).items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_made_at_first_use_is_trained_with(name: str, tmp_path: Path, anew: Any):
    asked = of(name, training__steps=4)
    whole = weights(train(asked, out=tmp_path / "whole", people=people()).folder)
    anew()

    def stop(measured: Measure) -> None:
        if measured.step == 2:
            signal.raise_signal(signal.SIGINT)

    cut = train(asked, out=tmp_path / "cut", people=people(), watch=stop)
    assert cut.stopped == "interrupted"
    anew()
    assert weights(resume(cut.folder.path, people=people()).folder) == whole


@pytest.mark.parametrize("name", [kind.__name__ for kind in DEPENDING])
@pytest.mark.parametrize("way", ["central", "cross-device"])
def test_what_depends_on_what_was_seen_is_refused_before_anything_is_written(
    name: str, way: str, tmp_path: Path, table: Path
):
    asked = of(name)
    if way != "central":
        asked = msgspec.structs.replace(
            make_study(table, {"placement": way}), model=Model(module=f"{FILE}:{name}")
        )
    run = federate if way != "central" else partial(train, people=people())
    with pytest.raises(UsageError, match=r"^SQ-406 "):
        run(asked, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_what_moves_with_each_pass_is_refused_by_name(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^SQ-401 .*weight_norm"):
        train(of("Spectral"), out=tmp_path, people=people())


@pytest.mark.parametrize("name", NAMES)
def test_settling_leaves_weights_buffers_and_random_numbers_as_they_were(name: str, anew: Any):
    asked = of(name)
    shape = shape_of(asked)
    plain = build(asked.model.kind, shape, {}, seed=0)
    anew()
    drawn = []
    for settled in (False, True):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        if settled:
            model = network_of(asked, shape)
        drawn.append((float(torch.rand(())), np.random.rand(), random.random()))
    assert drawn[0] == drawn[1]
    assert model.state_dict().keys() == plain.state_dict().keys()
    for one, other in zip(plain.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("placement", ["cross-device", "cross-silo"])
def test_rounds_end_with_the_same_weights_wherever_caches_were_filled(
    name: str, placement: str, tmp_path: Path, table: Path, anew: Any
):
    asked = msgspec.structs.replace(
        make_study(table, {"placement": placement}), model=Model(module=f"{FILE}:{name}")
    )
    whole = weights(federate(asked, out=tmp_path / "whole").folder)
    anew()
    folder = killed(asked, tmp_path / "killed", "before saving")
    anew()
    assert weights(go_on(folder).folder) == whole


@pytest.mark.parametrize("name", ["Rotary", "GlobalName", "Inside"])
def test_a_site_s_network_is_settled_before_its_people_come(name: str, table: Path):
    asked = msgspec.structs.replace(
        make_study(table, {"placement": "cross-device"}), model=Model(module=f"{FILE}:{name}")
    )
    prepared = prepare(asked, read_people(asked.data), key=bytes(32))
    crowd = crowd_of(asked, prepared, Place("run", "site", 0, bytes(32), None))
    module, model = sys.modules[FILE], crowd.engine._model
    filled = {"Rotary": lambda: model.cos, "GlobalName": lambda: module.TABLE}
    assert (filled.get(name) or (lambda: model.tables["by steps"]))() is not None


def test_an_audit_settles_what_it_rebuilds(tmp_path: Path, table: Path, anew: Any):
    asked = msgspec.structs.replace(
        make_study(table), model=Model(module=f"{FILE}:Rotary"), federated=None
    )
    done = train(asked, out=tmp_path)
    anew()
    assert audit_run(done.folder.path, Settings(canaries=8, references=2, people=20)).mechanism
