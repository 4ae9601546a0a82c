"""What a node refuses, whatever the server says, and what it remembers."""

from __future__ import annotations

import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sequester import __version__
from sequester.core.errors import UsageError
from sequester.federated.messages import Reason, Rejection
from sequester.federated.network import frames
from sequester.federated.network.frames import Answers, Finish, Refused
from sequester.federated.network.memory import Memory
from sequester.federated.network.node import Node
from sequester.ledger import Ledger
from sequester.sequences import erased
from sequester.training import resumption
from tests.federated.network.asking import ask_node, ask_of, enrol_of, enrolled, node_at
from tests.federated.network.world import POLICY, Wire, make_nodes, make_study, run, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


POLICIES = {
    "no policy": (None, 632),
    "not the unit": (POLICY.replace('"person", "none"', '"window", "none"'), 340),
    "no study without a guarantee": (POLICY.replace('"person", "none"', '"person"'), 340),
    "not the placement": (POLICY.replace('"cross-silo", ', ""), 340),
    "too few declared": (POLICY.replace("population = 5", "population = 25"), 340),
    "too few here": (POLICY.replace("population = 5", "population = 11"), 633),
    "too much asked": (POLICY.replace("epsilon = 50.0", "epsilon = 2.0"), 312),
    "no ceiling": (POLICY.partition("[ceiling]")[0], 634),
    "not a policy": ("holder = 5\n", 341),
    "secure sums are asked for": (POLICY + "[secure_sums]\nrequired = true\n", 649),
    "no cohort of one": (POLICY + "[secure_sums]\nmin_cohort = 1\n", 341),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_the_holders_word_comes_first_and_travels_back_by_number(kind, data, tmp_path):
    text, number = POLICIES[kind]
    policy = data / "a" / "policy.toml"
    policy.unlink() if text is None else policy.write_text(text)
    node = node_at(data, tmp_path)
    header, _ = ask_node(node, enrol_of(make_study(data)))
    assert isinstance(header, Refused)
    assert header.code == number
    assert Memory(tmp_path / "node", "run-1").agreed() is None
    # Nothing says how many people there are, and no path or column leaves.
    assert "10" not in header.message
    assert str(data) not in header.message


def test_a_policy_that_changes_holds_from_the_next_message(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)
    (data / "a" / "policy.toml").write_text(POLICY.replace('"person", "none"', '"person"'))
    header, _ = ask_node(node, *ask_of(study, round_=1), badge=badge)
    assert (header.code, header.enrolled) == (340, True)


def test_the_node_charges_before_it_reads_and_settles_at_no_less_than_it_answered(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    file = data / "a" / "people.csv"
    good = file.read_text()
    file.write_text(good + "a000,7\n")
    header, _ = ask_node(node, enrol_of(study))
    assert header.code == 639  # a record decides it
    with Ledger.open(f"sqlite:///{tmp_path / 'node' / 'ledger.db'}") as ledger:
        whole = ledger.budgets()[0].spent
    assert whole > 0
    file.write_text(good)
    badge = enrolled(node, study).badge
    for number in range(3):
        assert isinstance(ask_node(node, *ask_of(study, round_=number), badge=badge)[0], Answers)
    header, _ = ask_node(node, Finish("run-1", 1, "f"), badge=badge)
    assert isinstance(header, frames.Finished)
    with Ledger.open(f"sqlite:///{tmp_path / 'node' / 'ledger.db'}") as ledger:
        spent = ledger.budgets()[0].spent
        assert 0 < spent < whole
        ran = ledger.rows()[-1].fields()["event"]
    assert "3" in str(ran)  # rounds answered, not the one the server owned up to
    # After the end no round is answered, and saying so again changes nothing.
    assert isinstance(ask_node(node, Finish("run-1", 1, "f"), badge=badge)[0], frames.Finished)
    header, _ = ask_node(node, *ask_of(study, round_=3), badge=badge)
    assert header.code == 636


def test_a_round_is_answered_once_the_same_way_and_only_forward(data, tmp_path):
    study = make_study(data)
    node = node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask, model = ask_of(study, round_=1)
    _, first = ask_node(node, ask, model, badge=badge)
    # A new process, the same question: the very same answer.
    again = node_at(data, tmp_path)
    _, second = ask_node(again, ask, model, badge=badge)
    assert first["deltas"].tobytes() == second["deltas"].tobytes()
    other = {"model": model["model"] + 1}
    for changed, tensors in (
        (ask_of(study, round_=1, model=other["model"])[0], other),
        ask_of(study, round_=0),
    ):
        header, _ = ask_node(again, changed, tensors, badge=badge)
        assert header.code == 636
    assert Memory(tmp_path / "node", "run-1").answered().round == 1


def test_what_was_not_agreed_is_refused_by_number(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask, model = ask_of(study)
    changes = {
        "another layout": ({"layout": "0" * 16}, model, 635),
        "another model": ({"version": "0" * 32}, model, 635),
        "a short model": ({}, {"model": model["model"][:-1]}, 635),
        "no model": ({}, {}, 641),
        "a wide model": ({}, {"model": model["model"].astype(np.float64)}, 641),
        "a round too many": ({"round": 4}, model, 641),
        "a round below nought": ({"round": -1}, model, 641),
        "another's client": ({"clients": (1,)}, model, 641),
        "a client twice": ({"clients": (0, 0), "nonces": ("a", "b"), "last": (0, 0)}, model, 641),
        "lists that disagree": ({"nonces": ()}, model, 641),
        "a bound of its own": ({"clip": 9.0}, model, 641),
        "an infinite bound": ({"clip": 1e999}, model, 631),
    }
    for kind, (fields, tensors, number) in changes.items():
        header, _ = ask_node(node, msgspec.structs.replace(ask, **fields), tensors, badge=badge)
        assert isinstance(header, Refused), kind
        assert header.code == number, (kind, header.message)
    assert Memory(tmp_path / "node", "run-1").answered().round == -1
    skew = ask_node(node, msgspec.structs.replace(ask, version="0" * 32), model, badge=badge)[0]
    assert "0" * 32 in skew.message  # both versions are named
    assert ask.version in skew.message
    header, _ = ask_node(node, enrol_of(study, version="9.9.9"))
    assert header.code == 635
    assert "9.9.9" in header.message
    assert __version__ in header.message


def test_only_whoever_enrolled_the_node_can_ask_it(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask, model = ask_of(study)
    good = frames.seal(ask, model, badge=badge)
    middle = len(good) // 2
    for raw in (
        frames.seal(ask, model, badge="another"),
        frames.seal(ask, model),
        good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        good[:-1],
        good + b"\0",
        b"",
        b"SQF1" + bytes(100),
    ):
        header, _ = frames.unseal(node.answer(raw), lambda _: "")
        assert header.code == 631
    header, _ = ask_node(node, msgspec.structs.replace(ask, run="run-2"), model)
    assert header.code == 640
    assert Memory(tmp_path / "node", "run-1").answered().round == -1
    hostile = msgspec.structs.replace(ask, run="../../etc")
    header, _ = frames.unseal(node.answer(frames.seal(hostile, model)), lambda _: "")
    assert header.code == 901


def test_data_that_change_during_a_run_are_refused(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    file = data / "a" / "people.csv"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]) + "\n")
    header, _ = ask_node(node_at(data, tmp_path), *ask_of(study), badge=badge)
    assert header.code == 642


def test_what_a_client_keeps_moves_on_when_its_update_entered_a_sum(data, tmp_path):
    study = make_study(
        data,
        {"placement": "cross-device", "compression": "top-k", "share": 0.2},
        training={"sampling_rate": 1.0},
    )
    node = node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    path = tmp_path / "node" / "runs" / "run-1" / "clients.safetensors"

    def codes(number, last, fresh):
        ask, model = ask_of(study, round_=number, last=(last,))
        process = node_at(data, tmp_path) if fresh else node
        return ask_node(process, ask, model, badge=badge)[1]["codes"].tobytes()

    codes(0, -1, fresh=False)
    assert path.exists()
    kept = path.read_bytes()
    lost = codes(1, -1, fresh=False)  # round 0 never entered a sum: no residual from it
    again = codes(1, -1, fresh=True)  # the node restarted, and is asked once more
    assert lost == again
    assert path.read_bytes() != kept
    moved = codes(2, 1, fresh=True)
    undone = Node("a", data / "a" / "people.csv", tmp_path / "other")
    other = enrolled(undone, study).badge
    ask, model = ask_of(study, round_=2, last=(-1,))
    without = ask_node(undone, ask, model, badge=other)[1]["codes"].tobytes()
    assert moved != without  # the residual of round 1 is in it
    path.write_bytes(path.read_bytes()[:40])
    header, _ = ask_node(node_at(data, tmp_path), *ask_of(study, round_=3), badge=badge)
    assert header.code == 637


@pytest.mark.parametrize("last", [-1, 0, 1, 2])
def test_a_round_that_is_asked_again_begins_where_it_began(last, data, tmp_path):
    """Also if the server claims that this very round, or a later one, is in a sum already."""
    federated = {"placement": "cross-device", "compression": "top-k", "share": 0.2}
    study = make_study(data, federated, training={"sampling_rate": 1.0})
    badge = enrolled(node_at(data, tmp_path), study).badge
    ask_node(node_at(data, tmp_path), *ask_of(study), badge=badge)
    ask, model = ask_of(study, round_=1, last=(last,))
    first, *again = (
        ask_node(node_at(data, tmp_path), ask, model, badge=badge)[1]["codes"].tobytes()
        for _ in range(3)
    )
    assert again == [first, first]


def test_a_frame_over_the_limit_is_refused_before_it_is_read_and_with_its_size_when_made():
    ask = Finish("run", 1, "t")
    with pytest.raises(UsageError, match=r"SQ-630 .* 80\d{3} bytes"):
        frames.seal(ask, {"x": np.zeros(10_000)}, limit=70_000)
    with pytest.raises(Rejection) as caught:
        frames.unseal(bytes(200), lambda _: "", limit=100)
    assert caught.value.reason is Reason.TOO_LARGE


def test_random_bytes_and_mutations_are_never_anything_but_malformed():
    generator = np.random.default_rng(0)
    good = frames.seal(Finish("run", 1, "t"), {"x": np.arange(8.0)}, badge="b")
    for _ in range(1000):
        raw = bytearray(good)
        for place in generator.integers(0, len(raw), generator.integers(1, 4)):
            raw[place] ^= int(generator.integers(1, 256))
        cut = bytes(raw[: generator.integers(0, len(raw))]) if generator.random() < 0.3 else raw
        with pytest.raises(Rejection):
            frames.unseal(bytes(cut), lambda _: "b")


def test_a_million_tensors_or_a_huge_table_are_refused_before_they_are_parsed():
    table = (1 << 20).to_bytes(8, "little") + b" " * (1 << 20)
    header = msgspec.json.encode(Finish("run", 1, "t"))
    rest = len(header).to_bytes(4, "little") + header + table
    raw = frames.MAGIC + frames._digest(rest, "") + rest
    with pytest.raises(Rejection) as caught:
        frames.unseal(raw, lambda _: "")
    assert caught.value.reason is Reason.MALFORMED


def test_terms_that_cannot_be_met_are_refused():
    from sequester.federated.network.run import Terms

    for changes in ({"least": 4}, {"least": 0}, {"round_seconds": 0.0}, {"limit": 10}):
        with pytest.raises(UsageError, match="SQ-643"):
            replace(Terms(sites=3), **changes)


def test_the_servers_ledger_charges_and_stays_its_own(data, tmp_path):
    url = f"sqlite:///{tmp_path / 'server.db'}"
    ledger = Ledger.create(url)
    ledger.create_budget("network", "network", 20.0, 1e-5)
    study = make_study(data, ledger={"url": url, "budget": "network"}, training={"steps": 2})
    sent = []
    wire = Wire(make_nodes(data, tmp_path / "nodes"))
    wire.deliver = lambda parcel: sent.append(parcel.body) or parcel
    served = run(data, tmp_path / "run", study, wire=wire)
    assert served.claim.fields["ledger"]["budget"] == "network"
    assert ledger.budgets()[0].spent > 0
    assert len(sent) > 6
    assert not any(b"server.db" in body for body in sent)


def test_a_mute_node_holds_nobody_up_and_a_fourth_one_comes_too_late(data, tmp_path):
    from sequester.federated.network.run import Terms

    class Mute(Node):
        def answer(self, raw):
            return b""

    nodes = make_nodes(data, tmp_path / "nodes")
    nodes[104] = Mute("d", data / "a" / "people.csv", tmp_path / "nodes" / "d")
    wire = Wire(nodes)
    wire.carry = lambda parcel, reply: [(0, reply)] if parcel.node != 104 else []
    terms = Terms(sites=3, round_seconds=10.0, wait_seconds=3600.0)
    served = run(data, tmp_path / "run", make_study(data), wire=wire, terms=terms)
    assert served.rounds == 4
    assert wire.clock < 1000
    late = make_nodes(data, tmp_path / "others")
    late[105] = Node("d", data / "a" / "people.csv", tmp_path / "others" / "d")
    served = run(data, tmp_path / "again", make_study(data), wire=Wire(late), terms=terms)
    last = (served.folder.private / "rounds.jsonl").read_text().splitlines()[-1]
    assert '"sites":["a","b","c"]' in last


def test_a_second_node_under_a_sites_name_is_turned_away(data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")
    nodes[199] = Node("a", data / "b" / "people.csv", tmp_path / "nodes" / "double")
    wire = Wire(nodes)
    asked = []
    wire.deliver = lambda parcel: asked.append((parcel.node, parcel.ticket)) or parcel
    run(data, tmp_path / "run", make_study(data), wire=wire)
    assert [ticket for node, ticket in asked if node == 199] == ["enrol-199"]


def test_a_sites_place_among_all_clients_never_moves(data, tmp_path):
    study = make_study(data, {"placement": "local"}, training={"sampling_rate": 1.0})
    node = node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask, model = ask_of(study, first=3, clients=(3,))
    assert isinstance(ask_node(node, ask, model, badge=badge)[0], Answers)
    # In another place, a client would go on with what another one kept.
    for first in (2, 4, -1):
        moved, _ = ask_of(study, round_=1, first=first, clients=(max(first, 3),))
        header, _ = ask_node(node_at(data, tmp_path), moved, model, badge=badge)
        assert (header.code, header.enrolled) == (641, True)
    ask, model = ask_of(study, round_=1, first=3, clients=(4,))
    assert isinstance(ask_node(node, ask, model, badge=badge)[0], Answers)


def test_a_node_that_lost_its_memory_of_a_charged_run_answers_nothing_of_it(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)
    shutil.rmtree(tmp_path / "node" / "runs")
    again = node_at(data, tmp_path)
    header, _ = ask_node(again, enrol_of(study))
    assert (header.code, header.enrolled) == (640, False)
    header, _ = frames.unseal(
        again.answer(frames.seal(*ask_of(study, round_=1), badge=badge)), lambda _: ""
    )
    assert isinstance(header, Refused)
    other = msgspec.json.decode(enrol_of(study).begun.encode(), type=resumption.Begun)
    renamed = msgspec.json.encode(msgspec.structs.replace(other, run="run-2")).decode()
    fresh = enrol_of(study, run="run-2", begun=renamed)
    assert isinstance(ask_node(again, fresh)[0], frames.Enrolled)  # a new run is a new charge


def test_who_is_a_person_and_who_was_erased_is_the_holders_word(data, tmp_path):
    file = data / "a" / "people.csv"
    head, *lines = file.read_text().splitlines()
    visits = [f"{line},v{number}" for number, line in enumerate(lines)]
    file.write_text("\n".join([head + ",visit", *visits]) + "\n")
    key = tmp_path / "erased.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    study = make_study(
        data,
        {"placement": "cross-device"},
        data={"person": "visit"},
    )
    people = enrolled(node_at(data, tmp_path), study).clients
    assert 5 <= people <= 10  # ten people with six visits each
    erased.register(tmp_path / "erased", key.read_bytes(), ["a003"])
    node = replace(
        node_at(data, tmp_path / "other"), erased=str(tmp_path / "erased"), erased_key=str(key)
    )
    assert ask_node(node, enrol_of(study))[0].code == 639


RECORDS = {
    "a short row": lambda lines: [*lines[:-1], lines[-1].rpartition(",")[0]],
    "nobody": lambda lines: lines[:1],
    "a time that is none": lambda lines: [*lines[:-1], lines[-1].replace(",5,", ",never,")],
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_refusal_that_records_decide_tells_the_server_nothing_else(kind, data, tmp_path, caplog):
    file = data / "a" / "people.csv"
    lines = RECORDS[kind](file.read_text().splitlines())
    file.write_text("\n".join(lines) + "\n")
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(make_study(data)))
    assert header.code == 639
    assert header.message == "this node failed; its own log says why"
    assert "SQ-" in caplog.text.partition("refused: ")[2]  # the holder hears the number
