"""Federated faults, seeded: whatever the network, the nodes and the server do, the sums hold."""

from __future__ import annotations

import json

import pytest

from sequester.core.errors import SequesterError
from sequester.federated.checkpoint import FileStore
from sequester.ledger import Ledger
from tests.federated.network.storm import Storm
from tests.federated.network.weather import check, survive
from tests.federated.network.world import make_study, write_sites

ROUNDS = 3
SEEDS = range(60)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"), people=10)


def weathered(seed, data, folder, patch):
    study = make_study(data, training={"steps": ROUNDS})
    storm = Storm(seed, folder / "nodes", data)
    book = survive(storm, study, folder / "run", patch)
    check(storm, book, ROUNDS)
    return storm


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_changes_a_sum_or_draws_noise_twice(seed, data, tmp_path, monkeypatch):
    storm = weathered(seed, data, tmp_path, monkeypatch)
    if storm.over:
        assert not (tmp_path / "run" / "claim.json").exists()
        return
    claim = json.loads((tmp_path / "run" / "claim.json").read_text())
    assert claim["epsilon"] < 20
    for site in storm.badges:
        url = f"sqlite:///{tmp_path / 'nodes' / site / 'ledger.db'}"
        with Ledger.open(url) as ledger:
            assert ledger.verify().entries >= 3
            assert ledger.budgets()[0].spent > 0


def test_noise_on_a_second_sum_would_be_seen(data, tmp_path_factory):
    """The planted fault: a server that forgets the sealed sum and collects again."""

    def forgetful(self, simulation):
        real_load(self, simulation)
        simulation.sealed = None

    real_load = FileStore.load
    for seed in SEEDS:
        folder = tmp_path_factory.mktemp("storm")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileStore, "load", forgetful)
            try:
                weathered(seed, data, folder, patch)
            except AssertionError:
                return
            except SequesterError as ended:
                if ended.code != 629:  # no round had an answer: nothing could be seen
                    raise
                continue
    raise AssertionError("no seed caught it")
