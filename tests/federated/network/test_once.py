"""What is charged once is told once: repeated, varied and simultaneous questions to a node."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from threading import Thread

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load

from sequester.accounting import Gaussian, to_json
from sequester.core.errors import SequesterError, UsageError
from sequester.federated.network import frames
from sequester.federated.network import run as server_run
from sequester.federated.network.frames import Answers, Finish, Refused
from sequester.federated.network.holding import DYING_S
from sequester.federated.network.memory import alone
from sequester.federated.network.permit import Permit
from sequester.federated.network.server import SET_BACK
from sequester.federated.network.transport import Reply
from sequester.training import resumption
from sequester.training.folder import RunFolder
from tests.federated.network.asking import ask_node, ask_of, enrol_of, enrolled, node_at
from tests.federated.network.world import Wire, make_nodes, make_study, run, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


LOCAL = {"placement": "local", "personal": "head", "local_names": ["head"]}


def test_a_clients_noise_meets_one_update_whatever_else_the_server_varies(data, tmp_path):
    study = make_study(data, LOCAL, training={"sampling_rate": 1.0})
    node = node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask_node(node, *ask_of(study), badge=badge)
    ask, tensors = ask_of(study, round_=1, last=(0,))
    header, first = ask_node(node, ask, tensors, badge=badge)
    assert isinstance(header, Answers)
    size = len(tensors["model"])
    corrected = tensors | {"correction": np.ones((1, size), np.float32)}
    forgetful = msgspec.structs.replace(ask, last=(-1,))
    pair = {"clients": (0, 1), "nonces": ("n", "m"), "last": (0, -1)}
    together = msgspec.structs.replace(ask, **pair)
    for question, arrays in ((ask, corrected), (forgetful, tensors), (together, tensors)):
        header, _ = ask_node(node_at(data, tmp_path), question, arrays, badge=badge)
        assert isinstance(header, Refused)
        assert header.code == 636
    # Another part of the same round is another's noise; the same part again is the same bytes.
    other = msgspec.structs.replace(ask, clients=(1,), last=(-1,))
    assert isinstance(ask_node(node, other, tensors, badge=badge)[0], Answers)
    _, again = ask_node(node_at(data, tmp_path), ask, tensors, badge=badge)
    assert again["deltas"].tobytes() == first["deltas"].tobytes()


def test_decisions_under_which_less_would_be_charged_are_refused_before_the_charge(data, tmp_path):
    study = make_study(data, {"placement": "local"}, training={"sampling_rate": 1.0})
    begun = msgspec.json.decode(enrol_of(study).begun.encode(), type=resumption.Begun)
    for changes in (
        {"mechanism": to_json(Gaussian(1e6))},  # what is charged, while 1.0 is drawn
        {"setup": (to_json(Gaussian(1e6)),)},
        {"kind": "central"},
        {"steps": 0},
    ):
        lied = msgspec.json.encode(msgspec.structs.replace(begun, **changes)).decode()
        header, _ = ask_node(node_at(data, tmp_path), enrol_of(study, begun=lied))
        assert isinstance(header, Refused), changes
        assert header.code == 641
    assert not (tmp_path / "node" / "ledger.db").exists()


def test_no_round_is_answered_after_a_settlement_that_a_crash_cut_short(
    data, tmp_path, monkeypatch
):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask_node(node, *ask_of(study), badge=badge)
    real = Permit.settle

    def dying(self, plan, run, rounds):
        real(self, plan, run, rounds)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Permit, "settle", dying)
        with pytest.raises(KeyboardInterrupt):
            ask_node(node, Finish("run-1", 0, "f"), badge=badge)
    again = node_at(data, tmp_path)
    assert ask_node(again, *ask_of(study, round_=1), badge=badge)[0].code == 636
    # Another number of rounds changes nothing: what was to be charged is on disk.
    header, _ = ask_node(again, Finish("run-1", 3, "f"), badge=badge)
    assert isinstance(header, frames.Finished)


def test_a_site_that_could_not_settle_is_not_said_to_have(data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")
    wire = Wire(nodes)

    def deliver(parcel):
        if parcel.ticket.startswith("finish") and parcel.node == 102:
            (nodes[102].folder / "ledger.db").unlink()
        return parcel

    wire.deliver = deliver
    served = run(data, tmp_path / "run", make_study(data, training={"steps": 1}), wire=wire)
    assert served.settled == 2


def test_a_site_tells_nobody_how_many_took_part_where_nothing_counts_them(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    _, tensors = ask_node(node, *ask_of(study), badge=badge)
    assert np.abs(tensors["deltas"][0, :-2]).max() > 0
    assert not tensors["deltas"][0, -2:].any()


@pytest.mark.parametrize(
    ("changes", "steps", "weight"),
    [({}, 1, 1.0), ({"weighting": "capped", "weight_cap": 1.5}, 1, 1.5), (None, 2, 2.0)],
)
def test_how_many_windows_a_person_has_leaves_only_up_to_a_public_cap(
    changes, steps, weight, data, tmp_path
):
    plain = {"privacy": {"mode": "none", "noise_multiplier": None}} if changes is None else {}
    local = {"placement": "cross-device", "epochs": 2, "batch": 2}
    study = make_study(data, local | (changes or {}), **plain)
    node = node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    header, _ = ask_node(node, *ask_of(study), badge=badge)
    assert (header.steps, header.weights) == ((steps,), (weight,))


def test_two_questions_at_once_wait_for_each_other(tmp_path):
    seen = []

    def second():
        with alone(tmp_path):
            seen.append("second")

    with alone(tmp_path):
        thread = Thread(target=second)
        thread.start()
        thread.join(0.05)
        seen.append("first")
    thread.join()
    assert seen == ["first", "second"]


def test_only_the_holder_hears_that_a_sites_labels_are_all_alike(data, tmp_path, caplog):
    file = data / "a" / "people.csv"
    head, *lines = file.read_text().splitlines()
    file.write_text("\n".join([head, *(line.rpartition(",")[0] + ",1" for line in lines)]) + "\n")
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    assert "SQ-277: this site's labels cannot be learnt" in caplog.text
    assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)


def test_a_server_waits_for_the_one_that_is_still_dying_and_for_no_living_one(data, tmp_path):
    study, path = make_study(data, training={"steps": 1}), tmp_path / "run"
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True)
    wire, dying = Wire(make_nodes(data, tmp_path / "nodes")), ExitStack()
    dying.enter_context(folder.held())
    wire.meanwhile = lambda: dying.close() if wire.clock > DYING_S / 2 else None
    assert run(data, path, study, wire=wire).rounds == 1
    living = tmp_path / "living"
    RunFolder(living).checkpoints.mkdir(parents=True)
    with RunFolder(living).held(), pytest.raises(UsageError, match="SQ-508"):
        run(data, living, study, wire=Wire(make_nodes(data, tmp_path / "others")))


def test_a_finished_run_keeps_no_secret_even_if_the_server_died_beside_its_claim(
    data, tmp_path, monkeypatch
):
    def dying(folder):
        raise KeyboardInterrupt

    study, path = make_study(data, training={"steps": 1}), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(server_run, "destroy", dying)
        with pytest.raises(KeyboardInterrupt):
            run(data, path, study)
    checkpoints = RunFolder(path).checkpoints
    assert (checkpoints / "roster.json").exists()
    with pytest.raises(UsageError, match="SQ-505"):
        run(data, path, study, wire=Wire(make_nodes(data, tmp_path / "nodes")))
    assert {file.name for file in checkpoints.iterdir()} == {"begun.json"}


@pytest.mark.parametrize(("summed", "saw"), [({}, 3), ({}, 1), ({"secagg": {"dropout": 0.34}}, 3)])
def test_a_server_that_was_set_back_releases_no_round_twice(summed, saw, data, tmp_path):
    """Its rounds are abandoned until it is where the sites are: they were released before."""
    study, nodes, path = make_study(data, summed), make_nodes(data, tmp_path / "n"), tmp_path / "r"
    models, outcomes = {}, []

    def deliver(parcel):
        if parcel.ticket[0].isdecimal() and b'"model"' in parcel.body[:4000]:
            at = 24 + int.from_bytes(parcel.body[20:24], "little")
            models[int(parcel.ticket.split("-")[0])] = load(parcel.body[at:])["model"].tobytes()
        return parcel

    def crash(number, outcome):
        assert outcome.done
        if number == 0:
            shutil.copytree(path, tmp_path / "old")
            for node in (101, 102, 103)[saw:]:  # they would answer what others answered before
                del first.nodes_[node]
        if number == 2:
            raise KeyboardInterrupt

    first = Wire(dict(nodes))
    with pytest.raises(KeyboardInterrupt):
        run(data, path, study, wire=first, watch=crash)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "old", path)
    wire = Wire(nodes, deliver=deliver)
    served = run(data, path, study, wire=wire, watch=lambda n, o: outcomes.append((n, o.done)))
    assert served.rounds == 4  # all of them stay charged
    assert outcomes == [(1, False), (2, False), (3, True)]
    assert models[1] == models[2] == models[3]
    lines = map(json.loads, (path / "private" / "rounds.jsonl").read_text().splitlines())
    assert ["SQ-636" in line["refusals"] for line in lines] == [False, True, True, False]


@pytest.mark.parametrize("when", ["in its own round", "rounds later"])
def test_a_refusal_counts_only_for_the_question_that_is_out(when, data, tmp_path):
    """A question of an earlier round reaches the site late; its refusal says nothing of ours."""
    study, nodes = make_study(data), make_nodes(data, tmp_path / "nodes")
    kept, outcomes = {}, []

    def carry(parcel, reply):
        asked, _, _ = parcel.ticket.partition("-")
        kept.setdefault(parcel.ticket, parcel.body)
        if asked != "2" or parcel.node != 101:
            return [(0, reply)]
        late = nodes[101].answer(kept["1-0-0"])
        ticket = parcel.ticket if when == "in its own round" else "1-0-0"
        return [(0, Reply(ticket, late, final=False)), (1, reply)]

    run(
        data,
        tmp_path / "run",
        study,
        wire=Wire(nodes, carry=carry),
        watch=lambda _, outcome: outcomes.append((outcome.done, outcome.accepted)),
    )
    assert outcomes == [(True, 3)] * 4


@pytest.mark.parametrize("code", sorted(SET_BACK))
@pytest.mark.parametrize("keyed", [False, True])
def test_only_a_refusal_under_the_sites_badge_says_that_a_server_was_set_back(
    keyed, code, data, tmp_path
):
    """Whoever stands between could end a run by a word that needs no badge."""
    badges, outcomes = {}, []

    def carry(parcel, reply):
        if parcel.ticket.startswith("hold"):
            badges[parcel.node] = frames.unseal(reply.body, lambda _: "")[0].badge
        if parcel.ticket != "1-0-0":
            return [(0, reply)]
        refused = Refused("", keyed, code, "no", parcel.ticket)
        body = frames.seal(refused, badge=badges[parcel.node] if keyed else "")
        return [(0, Reply(parcel.ticket, body))]

    run(
        data,
        tmp_path / "run",
        make_study(data),
        wire=Wire(make_nodes(data, tmp_path / "nodes"), carry=carry),
        watch=lambda _, outcome: outcomes.append((outcome.done, outcome.accepted)),
    )
    assert outcomes[0] == outcomes[2] == (True, 3)
    assert outcomes[1][0] is not keyed
    assert keyed or outcomes[1] == (True, 2)


@pytest.mark.parametrize("summed", [{}, {"secagg": {"dropout": 0.34}}], ids=["clear", "masked"])
def test_bytes_go_on_counting_after_a_restart(summed, data, tmp_path):
    study = make_study(data, summed)

    def total(name, watch=None):
        nodes = make_nodes(data, tmp_path / f"{name}-nodes")
        if watch is not None:
            with pytest.raises(KeyboardInterrupt):
                run(data, tmp_path / name, study, nodes=nodes, watch=watch)
        folder = run(data, tmp_path / name, study, nodes=nodes).folder
        return json.loads((folder.private / "rounds.jsonl").read_text().splitlines()[-1])["bytes"]

    def crash(number, _):
        if number == 1:
            raise KeyboardInterrupt

    assert total("broken", crash) == total("whole") > 0


MUTE = {
    "sites": ({}, 0.5),
    "people": ({"placement": "cross-device"}, 0.5),
    "people, nobody drawn": ({"placement": "cross-device"}, 1e-6),
    "people, their own noise": ({"placement": "local"}, 1.0),
}


@pytest.mark.parametrize("silent", [{1}, {0, 1, 2}], ids=["one round", "all rounds"])
@pytest.mark.parametrize("who", MUTE)
def test_a_round_that_no_site_answered_moves_no_model(who, silent, data, tmp_path):
    """Whoever was drawn: that a round is abandoned must not tell it."""
    federated, rate = MUTE[who]
    study = make_study(data, federated, training={"steps": 3, "sampling_rate": rate})
    models = {}

    def carry(parcel, reply):
        return [] if parcel.ticket.split("-")[0] in {str(n) for n in silent} else [(0, reply)]

    def deliver(parcel):
        if parcel.ticket[0].isdecimal():
            at = 24 + int.from_bytes(parcel.body[20:24], "little")
            models[int(parcel.ticket.split("-")[0])] = load(parcel.body[at:])["model"].tobytes()
        return parcel

    nodes, outcomes = make_nodes(data, tmp_path / "nodes"), []

    def watch(_, outcome):
        outcomes.append(outcome.done)

    def again():
        wire = Wire(nodes, deliver=deliver, carry=carry)
        return run(data, tmp_path / "run", study, wire=wire, watch=watch)

    if silent == {0, 1, 2}:
        for _ in range(2):  # nor is there one when the server is started again
            with pytest.raises(SequesterError, match="SQ-629"):
                again()
        assert not (tmp_path / "run" / "model.safetensors").exists()
    else:
        assert again().rounds == 3  # the abandoned one stays charged
    assert outcomes == [number not in silent for number in range(3)]
    for number in silent - {2}:
        assert models[number] == models[number + 1]


def test_the_server_says_whom_it_waits_for(data, tmp_path, caplog):
    nodes = make_nodes(data, tmp_path / "nodes")
    del nodes[103]
    with (
        caplog.at_level("INFO", "sequester.server"),
        pytest.raises(UsageError, match="SQ-644"),
    ):
        run(data, tmp_path / "run", make_study(data), nodes=nodes)
    assert [r.message for r in caplog.records if r.levelname == "INFO"][-1] == (
        "waiting for 1 of 3 sites"
    )
