"""Across machines as in one process: the same weights, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from sequester.federated.engine.kernel import kernel_available
from sequester.federated.run import federate
from tests.federated.network.world import TERMS, Wire, make_nodes, make_study, run, write_sites

PLAIN = {"privacy": {"mode": "none", "noise_multiplier": None}}
KINDS = {
    "sites": ({}, {}),
    "sites, adaptive": ({"algorithm": "fedadam"}, {"privacy": {"adaptive": {"count_noise": 5.0}}}),
    "people": ({"placement": "cross-device"}, {}),
    "people, weighted": (
        {"placement": "cross-device", "weighting": "capped", "weight_cap": 1.5},
        {},
    ),
    "people, one by one": ({"placement": "cross-device", "engine": "loop"}, {}),
    "people, their own noise": ({"placement": "local"}, {"training": {"sampling_rate": 1.0}}),
    "scaffold": ({"placement": "cross-device", "algorithm": "scaffold"}, PLAIN),
    "compressed": ({"placement": "cross-device", "compression": "top-k", "share": 0.3}, PLAIN),
    "masked": ({"secagg": {"dropout": 0.34}}, {}),
    "masked, adaptive": (
        {"secagg": {"dropout": 0.34}, "algorithm": "fedadam"},
        {"privacy": {"adaptive": {"count_noise": 5.0}}},
    ),
    "masked, the sites' own noise": (
        {"secagg": {"noise": "discrete-gaussian", "dropout": 0.34, "corrupt": 0.0}},
        {},
    ),
    "personal": ({"placement": "cross-device", "personal": "head"}, PLAIN),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_and_the_simulator_give_the_same_weights(kind, data, tmp_path):
    federated, changes = KINDS[kind]
    study = make_study(data, federated, **changes)
    simulated = federate(study, out=tmp_path / "simulated")
    served = run(data, tmp_path / "run", study)
    ours, theirs = load_file(served.folder.weights), load_file(simulated.folder.weights)
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}
    assert served.epsilon == simulated.epsilon
    assert served.settled == 3
    claim = json.loads(served.folder.claim.read_text())
    assert any("nodes run the code" in words for words in claim["not_evidenced"])
    # Nothing secret stays behind: neither noise keys nor badges nor sums.
    kept = {path.name for path in served.folder.checkpoints.iterdir()}
    assert kept <= {"begun.json"}


def test_a_site_too_large_for_one_message_is_asked_in_parts(tmp_path):
    """No frame, either way, is larger than the limit; and nobody sees it in the weights."""
    data, limit = write_sites(tmp_path / "data", people=120, records=3), 1 << 16
    changes = {"training": {"steps": 2}, "model": {"options": {"hidden": 12}}}
    study = make_study(data, {"placement": "cross-device"}, **changes)
    made, sizes, asked = {}, {}, {}
    for name, terms in {"whole": TERMS, "parts": replace(TERMS, limit=limit)}.items():
        seen = sizes[name] = []

        def carry(parcel, reply, seen=seen):
            seen.append((parcel.ticket, len(parcel.body), len(reply.body)))
            return [(0, reply)]

        wire = Wire(make_nodes(data, tmp_path / name / "nodes"), carry=carry)
        served = run(data, tmp_path / name / "run", study, wire=wire, terms=terms)
        made[name] = load_file(served.folder.weights)
        asked[name] = [ticket for ticket, _, _ in seen if ticket[0].isdecimal()]
    assert asked["whole"] == [f"{number}-{place}-0" for number in (0, 1) for place in range(3)]
    assert len(asked["parts"]) >= 2 * len(asked["whole"])
    assert max(max(size[1:]) for size in sizes["parts"]) <= limit
    assert max(max(size[1:]) for size in sizes["whole"]) > limit
    for name, value in made["whole"].items():
        assert value.tobytes() == made["parts"][name].tobytes()


def test_every_engine_behind_the_network_gives_the_same_weights_up_to_rounding(data, tmp_path):
    made = {}
    for engine in ("loop", "batched", *(("kernel",) if kernel_available() else ())):
        study = make_study(data, {"placement": "cross-device", "engine": engine})
        made[engine] = load_file(run(data, tmp_path / engine / "run", study).folder.weights)
    for engine, weights in made.items():
        for name, value in weights.items():
            np.testing.assert_allclose(value, made["loop"][name], atol=1e-5, err_msg=engine)
