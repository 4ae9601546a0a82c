"""Nodes and servers that are killed before the first round leave no charge, and get none back."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace

import pytest

from sequester.core.errors import UsageError
from sequester.federated.network import frames, opening
from sequester.federated.network import node as office
from sequester.federated.network.enrol import Finder
from sequester.federated.network.frames import (
    Answers,
    Enrolled,
    Finish,
    Finished,
    Refused,
    Released,
)
from sequester.federated.network.memory import Memory
from sequester.federated.network.opening import Opening
from sequester.federated.network.permit import Permit, status_of
from sequester.federated.network.transport import Reply
from sequester.ledger import Ledger, Reservation
from tests.federated.network.asking import (
    RELEASE,
    ask_node,
    ask_of,
    at_sites,
    break_file,
    enrol_of,
    enrolled,
    node_at,
    spent,
)
from tests.federated.network.world import (
    SITES,
    TERMS,
    Wire,
    make_nodes,
    make_study,
    run,
    write_sites,
)

OLD = "insecure-test-5"
"""What a test seed names a first run."""


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


def killing(patch, owner, name, when):
    real = getattr(owner, name)

    def killed(*args, **more):
        if when == "after":
            real(*args, **more)
        raise KeyboardInterrupt

    patch.setattr(owner, name, killed)


AT_NODE = {
    "before the memory": (Memory, "open", "before", True),
    "before the charge": (Permit, "charge", "before", True),
    "after the charge": (Permit, "charge", "after", False),
    "while it reads": (office, "read_people", "before", False),
    "when it has read": (office, "read_people", "after", False),
    "before it agreed": (Memory, "agree", "before", False),
    "before its answer": (Memory, "agree", "after", True),
}
"""Where it is killed, and whether it can have been by nothing that it read."""
AT_END = {
    "before it is over": (Memory, "close", "before"),
    "before it is given back": (Memory, "close", "after"),
    "after it was given back": (Reservation, "void", "after"),
}


@pytest.mark.parametrize("then", ["release", "hold and finish"])
@pytest.mark.parametrize("point", AT_NODE)
def test_a_node_that_is_killed_while_it_enrols_gives_back_what_no_record_can_have_decided(
    point, then, data, tmp_path, monkeypatch
):
    study = make_study(data)
    *where, free = AT_NODE[point]
    with monkeypatch.context() as patch:
        killing(patch, *where)
        with pytest.raises(KeyboardInterrupt):
            ask_node(node_at(data, tmp_path), enrol_of(study))
    node = node_at(data, tmp_path)
    if then == "release":
        assert isinstance(ask_node(node, RELEASE)[0], Released)
    else:
        badge = enrolled(node, study).badge
        assert spent(node.folder) > 0
        assert isinstance(ask_node(node, Finish("run-1", 0, "f"), badge=badge)[0], Finished)
    assert (spent(node.folder) == 0) == free
    assert ask_node(node, enrol_of(study))[0].code == 636
    assert isinstance(ask_node(node, RELEASE)[0], Released)
    assert (spent(node.folder) == 0) == free


@pytest.mark.parametrize("then", ["the same", "release", "enrol"])
@pytest.mark.parametrize("how", ["finish", "release"])
@pytest.mark.parametrize("point", AT_END)
def test_a_node_that_is_killed_while_it_gives_back_goes_on_with_it(
    point, how, then, data, tmp_path, monkeypatch
):
    study = make_study(data)
    badge = enrolled(node_at(data, tmp_path), study).badge
    end = (Finish("run-1", 0, "f"), badge) if how == "finish" else (RELEASE, "")
    with monkeypatch.context() as patch:
        killing(patch, *AT_END[point])
        with pytest.raises(KeyboardInterrupt):
            ask_node(node_at(data, tmp_path), end[0], badge=end[1])
    node = node_at(data, tmp_path)
    if then == "enrol":
        header, _ = ask_node(node, enrol_of(study))
        if point == "before it is over":
            assert isinstance(header, Enrolled)  # nothing had happened
            assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)
            return
        assert header.code == 636
    else:
        again, keyed = (RELEASE, "") if then == "release" else end
        assert not isinstance(ask_node(node, again, badge=keyed)[0], Refused)
    assert spent(node.folder) == 0
    assert ask_node(node, *ask_of(study), badge=badge)[0].code == 636


AT_SERVER = {
    "before it may charge": (Opening, "save", "before", 0),
    "when it may charge": (Opening, "save", "after", 0),
    "when one site enrolled": (Finder, "keep", "after", 0),
    "when two sites enrolled": (Finder, "keep", "after", 1),
    "before the run is over": (Opening, "save", "before", 1),
    "when the run is over": (Opening, "save", "after", 1),
    "before its own budget": (opening, "_free", "before", 0),
    "before the sites hear": (Finder, "release", "before", 0),
    "when one site heard": (Finder, "_told", "after", 0),
    "when all heard": (Finder, "release", "after", 0),
}


@pytest.mark.parametrize("repaired", [True, False])
@pytest.mark.parametrize("point", AT_SERVER)
def test_a_server_that_is_killed_while_it_enrols_or_ends_leaves_no_charge(
    point, repaired, data, tmp_path, monkeypatch
):
    owner, name, when, nth = AT_SERVER[point]
    study, repair = make_study(data), break_file(data)
    path, calls, real = tmp_path / "run", [], getattr(owner, name)

    def killed(*args, **more):
        calls.append(name)
        if len(calls) <= nth:
            return real(*args, **more)
        if when == "after":
            real(*args, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            run(data, path, study)
    if repaired:
        repair()
        nodes = make_nodes(data, tmp_path / "nodes")
        served = run(data, path, study, nodes=nodes)
        assert served.settled == 3
        for site in SITES:
            with Ledger.open(f"sqlite:///{tmp_path / 'nodes' / site / 'ledger.db'}") as ledger:
                ledger.verify()
                kinds = [row.kind for row in ledger.rows()]
            # One run trained and was settled; every other hold is free again, or told an answer.
            assert kinds.count("commit") == 1
            held = kinds.count("reserve") - kinds.count("void") - kinds.count("commit")
            assert held == (site == "c" and status_of(tmp_path / "nodes" / site, OLD) == "begun")
        return
    for _ in range(2):  # it ends, or has ended and the next one does
        with pytest.raises(UsageError, match="SQ-644"):
            run(data, path, study, nodes=make_nodes(data, tmp_path / "nodes"))
    assert [spent(tmp_path / "nodes" / site) for site in "ab"] == [0, 0]


@pytest.mark.parametrize("late", [False, True])
def test_a_site_that_did_not_hear_of_the_end_hears_it_at_the_next_start(late, data, tmp_path):
    """Its answer is lost, and it is gone when the run ends."""
    study, repair = make_study(data), break_file(data)
    nodes = make_nodes(data, tmp_path / "nodes")
    wire, lost = Wire(nodes), {}

    def carry(parcel, reply):
        if parcel.ticket == "hold-101":
            lost[101] = nodes.pop(101)
            return []
        return [(0, reply)]

    wire.carry = carry
    with pytest.raises(UsageError, match="SQ-644"):
        run(data, tmp_path / "run", study, wire=wire)
    assert [amount > 0 for amount in at_sites(tmp_path / "nodes")] == [True, False, True]
    repair()
    back = {301: lost[101]}  # under another number
    again = Wire({**nodes, **({} if late else back)})
    again.meanwhile = lambda: again.nodes_.update(back)
    served = run(data, tmp_path / "run", study, wire=again)
    assert served.settled == 3
    assert status_of(tmp_path / "nodes" / "a", OLD) == "void"


def test_no_question_that_charges_travels_longer_than_the_server_waits(data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")

    class Timed(Wire):
        def send(self, parcels, seconds):
            sent.extend((parcel.ticket, self.clock + seconds) for parcel in parcels)
            super().send(parcels, seconds)

    sent = []
    wire = Timed(nodes, carry=lambda parcel, reply: [] if "103" in parcel.ticket else [(0, reply)])
    with pytest.raises(UsageError, match="SQ-644"):
        run(data, tmp_path / "run", make_study(data), wire=wire)
    assert len(sent) > 3
    assert max(until for _, until in sent) <= TERMS.wait_seconds + 1


def test_a_node_that_is_not_reached_is_not_asked_again_at_once(data, tmp_path):
    sent = []

    class Unreached(Wire):
        def send(self, parcels, seconds):
            sent.extend((parcel.node, self.clock) for parcel in parcels)
            self.inbox += [
                (self.clock, 0, Reply(parcel.ticket, None))
                for parcel in parcels
                if parcel.node == 103
            ]
            super().send([parcel for parcel in parcels if parcel.node != 103], seconds)

    wire = Unreached(make_nodes(data, tmp_path / "nodes"), tick=0.2)
    with pytest.raises(UsageError, match="SQ-644"):
        run(data, tmp_path / "run", make_study(data), wire=wire)
    times = [clock for node, clock in sent if node == 103]
    assert len(times) > 2
    assert all(late - early > 4 for early, late in itertools.pairwise(times))


def test_a_server_that_was_set_back_before_its_run_ended_begins_another(data, tmp_path):
    """It asks for a run that is over at the sites; that must not go on for ever."""
    study, repair, path = make_study(data), break_file(data), tmp_path / "run"
    nodes = make_nodes(data, tmp_path / "nodes")
    for there in (dict(list(nodes.items())[:2]), nodes):
        with pytest.raises(UsageError, match="SQ-644"):
            run(data, path, study, nodes=there)
        if there is not nodes:
            shutil.copytree(path, tmp_path / "old")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "old", path)
    repair()
    with pytest.raises(UsageError, match=r"SQ-644 .*SQ-636"):
        run(data, path, study, nodes=nodes)
    assert run(data, path, study, nodes=nodes).settled == 3


@pytest.mark.parametrize("kind", ["enrol", "hold"])
def test_an_answer_that_is_played_again_keeps_no_site_out(kind, data, tmp_path):
    """Another site's, its own to another question, or a refusal."""
    heard = {}
    refused = Reply("", frames.seal(Refused("", False, 340, "no", "enrol-9")))

    def carry(parcel, reply):
        old = list(heard.values())
        heard.setdefault(parcel.ticket, reply)
        if parcel.ticket != f"{kind}-103":
            return [(0, reply)]
        played = [(0, replace(each, ticket=parcel.ticket, final=False)) for each in (*old, refused)]
        return [played[wrong.pop()] if wrong else (0, reply)]

    for wrong in ([0], [-1], [1, -1]):
        heard.clear()
        place = tmp_path / f"{len(wrong)}{wrong[-1]}"
        wire = Wire(make_nodes(data, place / "nodes"), carry=carry)
        assert run(data, place / "run", make_study(data), wire=wire).settled == 3
        assert not wrong
