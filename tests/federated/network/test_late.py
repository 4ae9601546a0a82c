"""Sites that were charged for a run in which they took no part, and come back when it is over."""

from __future__ import annotations

import dataclasses

import pytest

from sequester.core.errors import UsageError
from sequester.federated.network.node import Node
from sequester.federated.network.opening import Opening
from sequester.federated.network.roster import Roster
from sequester.training.folder import RunFolder
from tests.federated.network.asking import at_sites
from tests.federated.network.world import TERMS, Wire, make_nodes, make_study, run, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


def replaced(data, tmp_path, study, nodes):
    """Its answer is lost, and another site takes its place."""
    nodes[104] = Node("d", data / "a" / "people.csv", tmp_path / "nodes" / "d")
    lost = {}

    def carry(parcel, reply):
        if parcel.ticket == "hold-102" and not lost:
            lost[102] = nodes.pop(102)
            return []
        return [(0, reply)]

    run(data, tmp_path / "run", study, wire=Wire(nodes, carry=carry))
    return lost


def fewer(data, tmp_path, study, nodes):
    """The server dies before it has its list, and is to begin with fewer sites."""

    def die(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Roster, "save", die)
        with pytest.raises(KeyboardInterrupt):
            run(data, tmp_path / "run", study, nodes=nodes)
    lost = {102: nodes.pop(102)}
    terms = dataclasses.replace(TERMS, sites=2)
    run(data, tmp_path / "run", study, nodes=nodes, terms=terms)
    return lost


@pytest.mark.parametrize("how", [replaced, fewer])
def test_who_is_back_after_the_end_is_told_at_the_next_start(how, data, tmp_path):
    study = make_study(data, training={"steps": 1, "sampling_rate": 0.5})
    nodes = make_nodes(data, tmp_path / "nodes")
    lost = how(data, tmp_path, study, nodes)
    before = at_sites(tmp_path / "nodes")
    assert all(before)
    with pytest.raises(UsageError, match="SQ-505"):
        run(data, tmp_path / "run", study, nodes={**nodes, **lost})
    # Who trained keeps its charge.
    assert at_sites(tmp_path / "nodes") == [before[0], 0, before[2]]


@pytest.mark.parametrize("file", ["opening.json", "roster.json"])
def test_a_damaged_folder_is_left_and_its_price_is_told(file, tmp_path):
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    (folder.checkpoints / file).write_text("{")
    with pytest.raises(UsageError, match=r"SQ-645 .*new run folder.* stays charged"):
        Opening.load(folder) if file.startswith("o") else Roster.load(folder.checkpoints)
