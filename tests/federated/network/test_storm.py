"""Federated faults, seeded: whatever the network, the nodes and the server do, the sums hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from safetensors.numpy import load_file

from sequester.core.errors import SequesterError
from sequester.federated.checkpoint import FileStore
from sequester.federated.network.frames import Answers
from sequester.federated.network.transport import Reply
from sequester.ledger import Ledger
from tests.federated.network.storm import LIES, Storm
from tests.federated.network.weather import check, survive
from tests.federated.network.world import Wire, make_nodes, make_study, run, write_sites

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
    # A site that trained in no round, or whose folder is older, may be charged nothing.
    for site in {site for site, _, _ in storm.honest} - storm.aged:
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


def train(data, folder, becomes):
    """Weights, and what was rejected, where the second site's answer in round 1 becomes another."""
    storm = Storm(0, folder / "unused", data)

    def carry(parcel, reply):
        header = storm.learn("b", reply.body) if parcel.node == 102 else None
        lies = isinstance(header, Answers) and header.round == 1
        return becomes(storm, reply) if lies else [(0, reply)]

    wire = Wire(make_nodes(data, folder / "nodes"), carry=carry)
    served = run(data, folder / "run", make_study(data, training={"steps": 2}), wire=wire)
    lines = (served.folder.private / "rounds.jsonl").read_text().splitlines()
    kept = load_file(served.folder.weights)
    return {k: v.tobytes() for k, v in kept.items()}, json.loads(lines[1])["rejected"]


CAUGHT = {
    "nan": {"not-finite": 1},
    "inf": {"not-finite": 1},
    "huge": {"too-large": 1},
    "zero": {"zero": 1},
    "denormal": {"zero": 1},
    "wrong-dtype": {"wrong-dtype": 1},
    "wrong-shape": {"wrong-shape": 1},
    "missing": {"missing-tensor": 1},
    "extra": {"extra-tensor": 1},
    "heavy": {"bad-weight": 1},
    "light": {"bad-weight": 1},
    "steps": {"bad-steps": 1},
    "another-round": {"wrong-round": 1, "lost": 1},
    "another-client": {"wrong-nonce": 1, "lost": 1},
    "another-nonce": {"wrong-nonce": 1, "lost": 1},
    "another-version": {"wrong-version": 1, "lost": 1},
    "silence-others": {"lost": 1},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_site_that_lies_is_as_one_that_is_silent(lie, data, tmp_path):
    def lies(storm, reply):
        return [(0, replace(reply, body=storm.lie(lie, "b", reply.body)))]

    def silent(storm, reply):
        return [(0, Reply(reply.ticket, None))]

    weights, rejected = train(data, tmp_path / "lies", lies)
    assert rejected == CAUGHT[lie]
    assert (weights, {"lost": 1}) == train(data, tmp_path / "silent", silent)
