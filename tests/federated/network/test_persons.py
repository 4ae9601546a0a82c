"""Where people are clients the server hears how many train: only where the holder lets it, and
for the charge of a whole run each time."""

from __future__ import annotations

import msgspec
import pytest

from sequester.federated.network.frames import (
    Answers,
    Enrolled,
    Finish,
    Finished,
    Refused,
    Released,
    Willing,
)
from sequester.federated.network.permit import status_of
from tests.federated.network.asking import (
    RELEASE,
    ask_node,
    ask_of,
    enrol_of,
    enrolled,
    node_at,
    spent,
)
from tests.federated.network.world import POLICY, make_study, write_sites

PERSONS = ["cross-device", "local"]
SILENT = "\n".join(line for line in POLICY.splitlines() if not line.startswith("placements"))
"""A policy that says nothing of placements."""


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


def study_of(folder, placement, **changes):
    """Everybody trains in each round, which 'local' asks for."""
    changes = {"training": {"steps": 2, "sampling_rate": 1.0}, **changes}
    return make_study(folder, {"placement": placement}, **changes)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("placement", ["cross-silo", *PERSONS])
def test_a_policy_that_names_no_placement_lets_no_people_be_clients(
    placement, hold, data, tmp_path
):
    (data / "a" / "policy.toml").write_text(SILENT)
    node, study = node_at(data, tmp_path), study_of(data, placement)
    header, _ = ask_node(node, enrol_of(study, hold=hold))
    if placement == "cross-silo":
        assert isinstance(header, Enrolled if hold else Willing)
        return
    assert header.code == 340
    assert "placements" in header.message
    assert placement in header.message
    assert not (node.folder / "ledger.db").exists()
    (data / "a" / "policy.toml").write_text(f'placements = ["{placement}"]\n{SILENT}')
    header, _ = ask_node(node, enrol_of(study, hold=hold))
    assert isinstance(header, Enrolled if hold else Willing)


@pytest.mark.parametrize("placement", PERSONS)
def test_a_placement_that_the_holder_takes_back_is_refused_from_the_next_message(
    placement, data, tmp_path
):
    node, study = node_at(data, tmp_path), study_of(data, placement)
    badge = enrolled(node, study).badge
    assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)
    (data / "a" / "policy.toml").write_text(SILENT)
    header, _ = ask_node(node, *ask_of(study, round_=1), badge=badge)
    assert (header.code, header.enrolled) == (340, True)


ENDS = {
    "release": lambda node, badge: ask_node(node, RELEASE),
    "finish": lambda node, badge: ask_node(node, Finish("run-1", 0, "f"), badge=badge),
    "both": lambda node, badge: [ENDS[how](node, badge) for how in ("release", "finish")][-1],
    "nothing": lambda node, badge: (None, {}),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("placement", PERSONS)
def test_a_number_of_people_that_was_told_is_never_given_back(placement, how, data, tmp_path):
    node, study = node_at(data, tmp_path), study_of(data, placement)
    badge = enrolled(node, study).badge
    held = spent(node.folder)
    assert status_of(node.folder, "run-1") == "begun"  # before the answer left
    header, _ = ENDS[how](node_at(data, tmp_path), badge)
    assert header is None or isinstance(header, Released | Finished)
    assert spent(node.folder) == held > 0
    again, _ = ask_node(node_at(data, tmp_path), enrol_of(study))
    if how == "nothing":  # once is enough for a run that goes on
        assert isinstance(again, Enrolled)
        assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)
    else:
        assert again.code == 636
    assert spent(node.folder) == held


@pytest.mark.parametrize("placement", PERSONS)
def test_each_question_who_is_in_the_file_costs_a_run(placement, data, tmp_path):
    """A share just below and just above somebody's hash tells by one whether they are there."""
    amounts, node = [], node_at(data, tmp_path)
    for number, share in enumerate((0.2, 0.3, 0.4)):
        name, study = f"r{number}", study_of(data, placement, data={"holdout": {"share": share}})
        begun = msgspec.json.decode(enrol_of(study).begun) | {"run": name}
        asked = enrol_of(study, run=name, begun=msgspec.json.encode(begun).decode())
        header, _ = ask_node(node, asked)
        if isinstance(header, Refused):
            assert header.code == 312  # what the holder allows is used up
            break
        ask_node(node, msgspec.structs.replace(RELEASE, ended=(name,)))
        amounts.append(spent(node.folder))
    assert amounts[0] > 0
    assert amounts == sorted(set(amounts))
