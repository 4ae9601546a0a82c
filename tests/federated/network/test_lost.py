"""A node whose ledger, memory or name is not that of before answers no round for free, or twice."""

from __future__ import annotations

import logging
import shutil

import msgspec
import pytest

from sequester.federated.network import endings, frames
from sequester.federated.network import node as office
from sequester.federated.network.frames import (
    Answers,
    Enrolled,
    Finish,
    Finished,
    Refused,
    Release,
    Released,
    Willing,
)
from sequester.federated.network.node import Node
from tests.federated.network.asking import (
    RELEASE,
    ask_node,
    ask_of,
    enrol_of,
    enrolled,
    node_at,
    spent,
)
from tests.federated.network.world import make_study, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


def without_ledger(folder, _):
    for file in folder.glob("ledger.db*"):
        file.unlink()


def older_ledger(folder, old):
    without_ledger(folder, old)
    for file in old.glob("ledger.db*"):
        shutil.copy(file, folder)


def without_rounds(folder, _):
    (folder / "runs" / "run-1" / "round.json").unlink()


def emptied(folder, _):
    for file in (folder / "runs" / "run-1").iterdir():
        file.unlink()


def without_runs(folder, _):
    shutil.rmtree(folder / "runs")


LOSSES = {
    "the ledger": without_ledger,
    "an older ledger": older_ledger,
    "the last round": without_rounds,
    "the run's files": emptied,
    "all runs": without_runs,
}
KINDS = {
    "sites": ({}, {}),
    "people": ({"placement": "cross-device"}, {}),
    "their own noise": ({"placement": "local"}, {"training": {"sampling_rate": 1.0}}),
}


@pytest.mark.parametrize("hold", [False, True])
def test_a_lost_ledger_is_not_begun_anew(hold, data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    enrolled(node, study)
    older = tmp_path / "older"
    shutil.copytree(node.folder, older)
    without_ledger(node.folder, None)
    begun = msgspec.json.encode(msgspec.json.decode(enrol_of(study).begun) | {"run": "next"})
    question = msgspec.structs.replace(enrol_of(study, run="next", begun=begun.decode()), hold=hold)
    refused, _ = ask_node(node_at(data, tmp_path), question)
    assert (type(refused), refused.code) == (Refused, 640)
    assert not list(node.folder.glob("ledger.db*"))
    older_ledger(node.folder, older)  # the holder puts it back
    assert isinstance(ask_node(node_at(data, tmp_path), question)[0], Enrolled if hold else Willing)


@pytest.mark.parametrize("what", ["the ledger", "an older ledger"])
def test_nobody_is_read_for_a_round_that_is_not_charged(what, data, tmp_path, monkeypatch):
    study, node, old = make_study(data), node_at(data, tmp_path), tmp_path / "old"
    old.mkdir()
    badge = enrolled(node, study).badge
    LOSSES[what](node.folder, old)
    monkeypatch.setattr(office, "read_people", lambda _: pytest.fail("people were read"))
    refused, _ = ask_node(node_at(data, tmp_path), *ask_of(study), badge=badge)
    assert (type(refused), refused.code) == (Refused, 640)


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_lost_part_of_what_it_keeps_goes_on_with_no_round(
    kind, what, rounds, data, tmp_path
):
    federated, changes = KINDS[kind]
    study, old = make_study(data, federated, **changes), tmp_path / "old"
    node = node_at(data, tmp_path)
    begun = msgspec.json.encode(msgspec.json.decode(enrol_of(study).begun) | {"run": "earlier"})
    earlier = enrol_of(study, run="earlier", begun=begun.decode())
    assert isinstance(ask_node(node, earlier)[0], Enrolled)
    shutil.copytree(node.folder, old)
    badge = enrolled(node, study).badge
    for number in range(rounds):
        assert isinstance(ask_node(node, *ask_of(study, round_=number), badge=badge)[0], Answers)
    LOSSES[what](node.folder, old)
    held = spent(node.folder)
    again, _ = ask_node(node_at(data, tmp_path), enrol_of(study))
    if isinstance(again, Enrolled):
        # Nothing of it was answered: all of it was charged, once, and begins.
        assert (kind, what, rounds) == ("sites", "the run's files", 0) or held == 0
        badge = again.badge
    else:
        assert again.code == 640
    ask, tensors = ask_of(study, round_=max(rounds - 1, 0))
    other, others = ask_of(study, round_=max(rounds - 1, 0), model=tensors["model"] + 1)
    for question, arrays in ((ask, tensors), (other, others), ask_of(study, round_=rounds)):
        header, _ = ask_node(node_at(data, tmp_path), question, arrays, badge=badge)
        if isinstance(again, Refused):
            assert (type(header), header.code) == (Refused, 640)
    ask_node(node_at(data, tmp_path), Finish("run-1", 0, "f"), badge=badge)
    ask_node(node_at(data, tmp_path), RELEASE)
    assert spent(node.folder) == held or isinstance(again, Enrolled)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_is_answered_under_the_name_that_enrolled(rounds, kind, data, tmp_path):
    """Coins are drawn under it: a second node in the folder would draw others for one charge."""
    federated, changes = KINDS[kind]
    study, node = make_study(data, federated, **changes), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    for number in range(rounds):
        ask_node(node, *ask_of(study, round_=number), badge=badge)
    for file in (node.data, data / "b" / "people.csv"):
        renamed = Node("b", file, node.folder)
        for question, keyed in (
            ((enrol_of(study),), ""),
            (ask_of(study), badge),
            (ask_of(study, round_=1), badge),
            ((Finish("run-1", 0, "f"),), badge),
        ):
            header, _ = ask_node(renamed, *question, badge=keyed)
            assert (type(header), header.code) == (Refused, 640)
            assert "'a'" in header.message
    assert isinstance(ask_node(node, *ask_of(study, round_=rounds), badge=badge)[0], Answers)


# ---- ends -------------------------------------------------------------------------------


def names(count, start=0):
    return tuple(f"{number:032x}" for number in range(start, start + count))


def test_ends_of_runs_that_nobody_knows_leave_little_behind(data, tmp_path):
    node, most = node_at(data, tmp_path), frames.MOST_ENDED
    for batch in range(endings.KEPT // most + 2):
        header, _ = ask_node(node, Release("x", names(most, batch * most), "r"))
        assert isinstance(header, Released)
    assert {file.name for file in node.folder.iterdir()} == {endings.ENDED, "node.lock"}
    assert len(msgspec.json.decode((node.folder / endings.ENDED).read_bytes())) == endings.KEPT
    header, _ = ask_node(node, RELEASE)
    assert isinstance(header, Released)
    assert ask_node(node, enrol_of(make_study(data)))[0].code == 636


@pytest.mark.parametrize("count", [frames.MOST_ENDED + 1, 5000])
def test_too_many_ends_in_one_message_end_nothing(count, data, tmp_path):
    node = node_at(data, tmp_path)
    enrolled(node, make_study(data))
    held = spent(node.folder)
    header, _ = ask_node(node, Release("x", ("run-1", *names(count - 1)), "r"))
    assert (type(header), header.code) == (Refused, 631)
    assert spent(node.folder) == held


@pytest.mark.parametrize("bad", ["../x", "", "a/b", "x" * 101, "a\nb"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_name_that_is_none_ends_nothing(place, bad, data, tmp_path):
    node = node_at(data, tmp_path)
    enrolled(node, make_study(data))
    held, ended = spent(node.folder), ["run-1", "unknown"]
    ended.insert(place, bad)
    header, _ = ask_node(node, Release("x", tuple(ended), "r"))
    assert (type(header), header.code) == (Refused, 901)
    assert spent(node.folder) == held
    assert not (node.folder / endings.ENDED).exists()


def test_the_nodes_log_has_each_question_and_its_run(data, tmp_path, caplog):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = ""
    for question, words in (
        (enrol_of(study, hold=False), ["speaks against"]),
        (enrol_of(study), ["charging and reading", "enrolled in"]),
        (msgspec.structs.replace(enrol_of(study), study="x = 1\n"), ["SQ-635"]),
        (Release("x", ("run-1", "gone"), "r"), ["over before its first round", "gone"]),
        (RELEASE, ["over before its first round"]),
        (Finish("run-1", 0, "f"), ["over here"]),
        (enrol_of(study), ["SQ-636"]),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO, "sequester.node"):
            header, _ = ask_node(
                node, question, badge=badge if isinstance(question, Finish) else ""
            )
        badge = getattr(header, "badge", badge)
        assert not isinstance(question, Finish) or isinstance(header, Finished)
        lines = [record.getMessage() for record in caplog.records]
        assert any("run-1" in line for line in lines), question
        for word in words:
            assert any(word in line for line in lines), (word, lines)
