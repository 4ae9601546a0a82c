"""`private/rounds.jsonl` across machines: one line a round, whenever the server was killed."""

from __future__ import annotations

import json

import pytest

from sequester.core.errors import LedgerRefusal
from sequester.federated.checkpoint import FileStore
from sequester.federated.network import run as server
from sequester.federated.network.node import Node
from tests.federated.network.world import Wire, make_nodes, make_study, run, write_sites

EVERY = {"training": {"sampling_rate": 1.0}}
RUNS = {
    "sites": ({}, {}),
    "people": ({"placement": "cross-device"}, {}),
    "people, their own noise": ({"placement": "local"}, EVERY),
    "masked": ({"secagg": {"dropout": 0.34}}, {}),
}
POINTS = {
    "before sealing": (FileStore, "seal", "before", 2),
    "after sealing": (FileStore, "seal", "after", 2),
    "before the note": (server, "append_round", "before", 2),
    "after the note": (server, "append_round", "after", 2),
    "before saving": (FileStore, "save", "before", 2),
    "after saving": (FileStore, "save", "after", 2),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"))


def lines(path):
    return [
        json.loads(line) for line in (path / "private" / "rounds.jsonl").read_text().splitlines()
    ]


class Refusing(Node):
    """From the second round on; of a secure sum, once it has joined."""

    def _ready(self, ask):
        if ask.round >= 1 and ask.ticket.split("-")[2] not in ("1", "3"):
            raise LedgerRefusal(340, "no")
        return super()._ready(ask)


def misheard(data, state, silent):
    """A wire on which one site refuses, and no site hears the round `silent`."""
    nodes = make_nodes(data, state)
    nodes[102] = Refusing(nodes[102].site, nodes[102].data, nodes[102].folder)
    number = str(silent)
    return Wire(nodes, deliver=lambda asked: None if asked.ticket[:1] == number else asked)


CASES = [
    (name, abandoned, point)
    for name in RUNS
    for abandoned in (None, 1)
    for point in POINTS
    # Noise of clients' own, and rounds without a model, seal nothing; a sum of masks that is begun
    # anew is another one.
    if "sealing" not in point
    or not (abandoned or "noise" in name or (name == "masked" and point == "before sealing"))
]


@pytest.mark.parametrize(("name", "abandoned", "point"), CASES)
def test_every_round_has_one_line_that_says_what_happened(
    name, abandoned, point, data, tmp_path, monkeypatch
):
    federated, changes = RUNS[name]
    study = make_study(data, federated, **changes)
    owner, attribute, when, nth = POINTS[point]
    real, calls = getattr(owner, attribute), []

    def killed(*args, **more):
        calls.append(attribute)
        if len(calls) != nth:
            return real(*args, **more)
        if when == "after":
            real(*args, **more)
        raise KeyboardInterrupt

    def again(place):
        wire = misheard(data, tmp_path / place / "nodes", abandoned)
        return run(data, tmp_path / place / "run", study, wire=wire)

    again("whole")
    whole = lines(tmp_path / "whole" / "run")
    assert [line["round"] for line in whole] == [0, 1, 2, 3]
    assert [line["done"] for line in whole] == [number != abandoned for number in range(4)]
    assert whole[2]["refusals"] == {"SQ-340": 1}
    assert whole[2]["sites"] == ["a", "c"]
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, killed)
        with pytest.raises(KeyboardInterrupt):
            again("killed")
    again("killed")
    assert lines(tmp_path / "killed" / "run") == whole
