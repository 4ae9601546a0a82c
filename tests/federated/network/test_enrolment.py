"""What a site tells a server that asks to enrol, and what that costs."""

from __future__ import annotations

import shutil

import msgspec
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from sequester.core.errors import UsageError
from sequester.federated.network import frames
from sequester.federated.network.frames import Ask, Enrolled, Finish, Refused, Step
from sequester.federated.network.memory import Memory
from sequester.federated.network.node import Node
from sequester.federated.network.site import check_networked
from sequester.ledger import Ledger
from tests.federated.network.asking import ask_node, ask_of, enrol_of, enrolled, node_at
from tests.federated.network.world import make_nodes, make_study, run, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


def spent(tmp_path):
    """What the node's ledger holds; 0 without one."""
    file = tmp_path / "node" / "ledger.db"
    if not file.exists():
        return 0
    with Ledger.open(f"sqlite:///{file}") as ledger:
        return ledger.budgets()[0].spent


BOUNDS = {"lower": -4.0, "upper": 4.0}
TYPOS = {
    "a feature": {"features": {"valeu": BOUNDS}},
    "one of two features": {"features": {"value": BOUNDS, "valeu": BOUNDS}},
    "a category": {"categories": {"sort": {"values": ["x", "y"]}}},
    "the label": {"label": "lable"},
    "the group": {"group": "sites"},
    "the holdout": {"holdout": {"column": "sits", "value": "x"}},
}


@pytest.mark.parametrize("typo", TYPOS)
def test_a_study_that_no_record_of_the_file_can_fit_costs_nothing(typo, data, tmp_path):
    node, study = node_at(data, tmp_path), make_study(data, data=TYPOS[typo])
    header, _ = ask_node(node, enrol_of(study))
    assert isinstance(header, Refused)
    assert header.code == 653
    assert spent(tmp_path) == 0
    assert isinstance(enrolled(node_at(data, tmp_path), make_study(data)), Enrolled)
    assert spent(tmp_path) > 0


def test_a_column_that_cannot_hold_numbers_costs_nothing(data, tmp_path):
    """A type, not a record, says so."""
    table = pyarrow.csv.read_csv(data / "a" / "people.csv")
    lists = pyarrow.array([[1.0]] * table.num_rows)
    table = table.set_column(table.column_names.index("value"), "value", lists)
    file = data / "a" / "people.parquet"
    pyarrow.parquet.write_table(table, file)
    node = Node("a", file, tmp_path / "node")
    assert ask_node(node, enrol_of(make_study(data)))[0].code == 653
    assert spent(tmp_path) == 0


@pytest.mark.parametrize("person", ["person", "persno"])
def test_a_file_that_is_not_there_or_names_no_person_costs_nothing(person, data, tmp_path):
    file = data / "a" / "people.csv"
    if person == "person":
        file.unlink()
    node = Node("a", file, tmp_path / "node", person=person)
    header, _ = ask_node(node, enrol_of(make_study(data)))
    assert header.code == 653
    assert "setting" in header.message
    assert str(tmp_path) not in header.message
    assert spent(tmp_path) == 0


RECORDS = {
    "a short row": lambda lines: [*lines[:-1], lines[-1].rpartition(",")[0]],
    "a time that is none": lambda lines: [*lines[:-1], lines[-1].replace(",5,", ",never,")],
    "nobody": lambda lines: lines[:1],
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_refusal_that_records_decide_is_charged_first(kind, data, tmp_path):
    file = data / "a" / "people.csv"
    file.write_text("\n".join(RECORDS[kind](file.read_text().splitlines())) + "\n")
    assert ask_node(node_at(data, tmp_path), enrol_of(make_study(data)))[0].code == 639
    assert spent(tmp_path) > 0


@pytest.mark.parametrize("guess", ["0.1", "b", "value"])
def test_no_record_is_a_header_that_can_be_asked_for(guess, data, tmp_path):
    """A study whose columns are guesses at a row's values hears the same of every row, or pays."""
    file = data / "a" / "people.csv"
    features = {"features": {guess: BOUNDS}, "label": "label"}
    lines = file.read_text().splitlines()
    for row in (f"a000,0,a,{guess},1", "a000,0,a,7.5,1"):
        file.write_text("\n".join([row, *lines[2:]]) + "\n")
        header, _ = ask_node(node_at(data, tmp_path), enrol_of(make_study(data, data=features)))
        assert header.code == 653
        assert header.message.startswith("this node's file has no column 'person', which")
        file.write_text("\n".join([lines[0], row, *lines[2:]]) + "\n")
        node = Node("a", file, tmp_path / row.replace(",", "") / "node")
        # Whoever skips the header is the holder, who then names the columns.
        said = 'skip_lines = 1\nheader = false\nnames = ["person", "time", "site", "v", "label"]'
        reading = file.parent / "reading.toml"
        reading.write_text(f"[layout]\n{said}\n")
        header, _ = ask_node(node, enrol_of(make_study(data, data=features)))
        reading.unlink()
        assert header.code in (639, 653)
        assert (spent(node.folder.parent) > 0) == (header.code == 639)
        assert spent(node.folder.parent) > 0


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
@pytest.mark.parametrize(("people", "enough"), [(4, False), (5, True)])
def test_whether_there_are_enough_people_is_not_the_studys_to_ask(share, people, enough, tmp_path):
    """The policy asks for 5, in the file; whom the study holds out changes no answer."""
    data = write_sites(tmp_path / "data", people=people)
    study = make_study(data, data={"holdout": {"share": share}})
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(study))
    assert isinstance(header, Enrolled) if enough else header.code == 633


def test_no_two_runs_tell_whether_a_sites_data_are_the_same(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    first = enrolled(node, study).fingerprint
    assert enrolled(node_at(data, tmp_path), study).fingerprint == first  # the same run
    begun = msgspec.json.decode(enrol_of(study).begun)
    other = msgspec.json.encode(begun | {"run": "run-2"}).decode()
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(study, run="run-2", begun=other))
    assert isinstance(header, Enrolled)
    assert header.fingerprint != first


@pytest.mark.parametrize("placement", ["cross-device", "local", "cross-silo"])
def test_where_sites_say_how_many_train_no_column_decides_who(placement, data):
    rate = {"training": {"sampling_rate": 1.0}}
    held = {"holdout": {"column": "site", "value": "a"}}
    study = make_study(data, {"placement": placement}, data=held, **rate)
    if placement == "cross-silo":
        check_networked(study)
        return
    with pytest.raises(UsageError, match="SQ-638"):
        check_networked(study)


@pytest.mark.parametrize(("ours", "fits"), [(1 << 20, False), (1 << 24, True)])
def test_a_node_that_takes_less_than_the_app_sends_says_both_sizes(ours, fits, data, tmp_path):
    node = Node("a", data / "a" / "people.csv", tmp_path / "node", limit=ours)
    header, _ = ask_node(node, enrol_of(make_study(data), limit=1 << 22))
    if fits:
        assert isinstance(header, Enrolled)
        return
    assert header.code == 630
    assert str(1 << 22) in header.message
    assert str(1 << 20) in header.message
    assert "limit-mb = 4" in header.message
    assert spent(tmp_path) == 0


def questions(study):
    ask, model = ask_of(study)
    step = {name: getattr(ask, name) for name in ("run", "round", "version", "layout", "clip")}
    return {
        "ask": (ask, model),
        "step": (Step(**step, member=0, members=("00",), ticket="s"), model),
        "finish": (Finish("run-1", 1, "f"), {}),
    }


@pytest.mark.parametrize("lost", ["folder", "memory"])
@pytest.mark.parametrize("kind", ["ask", "step", "finish"])
def test_a_node_that_lost_its_memory_says_so(kind, lost, data, tmp_path):
    study = make_study(data)
    badge = enrolled(node_at(data, tmp_path), study).badge
    shutil.rmtree(
        tmp_path / "node" if lost == "folder" else Memory(tmp_path / "node", "run-1").folder
    )
    question, tensors = questions(study)[kind]
    raw = node_at(data, tmp_path).answer(frames.seal(question, tensors, badge=badge))
    header, _ = frames.unseal(raw, lambda _: "")
    assert isinstance(header, Refused)
    assert (header.code, header.ticket, header.run) == (640, question.ticket, "run-1")
    assert "lost its folder" in header.message


def test_the_server_hears_why_a_site_without_its_folder_drops_out(data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")

    def watch(number, _):
        if number == 0:
            shutil.rmtree(nodes[102].folder)

    served = run(data, tmp_path / "run", make_study(data), nodes=nodes, watch=watch)
    lines = (served.folder.private / "rounds.jsonl").read_text().splitlines()
    assert ["SQ-640" in line for line in lines] == [False, True, True, True]


def test_an_altered_question_is_still_unreadable_where_the_run_is_known(data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    ask, model = ask_of(study)
    raw = bytearray(frames.seal(ask, model, badge=badge))
    raw[-1] ^= 1
    header, _ = frames.unseal(node.answer(bytes(raw)), lambda _: "")
    assert header.code == 631


@pytest.mark.parametrize("changed", ["a value", "a person more"])
def test_data_that_changed_during_a_run_are_seen(changed, data, tmp_path):
    study = make_study(data)
    badge = enrolled(node_at(data, tmp_path), study).badge
    file = data / "a" / "people.csv"
    lines = file.read_text().splitlines()
    more = lines[-1].replace("a009", "a010") if changed == "a person more" else ""
    last = ",".join([*lines[-1].split(",")[:3], "0.123", "1"])
    file.write_text("\n".join([*lines, more] if more else [*lines[:-1], last]) + "\n")
    assert ask_node(node_at(data, tmp_path), *ask_of(study), badge=badge)[0].code == 642


def test_a_site_with_nobody_drawn_answers_with_nothing(data, tmp_path):
    """It is asked all the same, so that nobody sees from who is asked who was drawn."""
    for codec in ({}, {"compression": "top-k", "share": 0.3}):
        study = make_study(data, {"placement": "cross-device", **codec})
        node = Node("a", data / "a" / "people.csv", tmp_path / f"node{len(codec)}")
        badge = enrolled(node, study).badge
        ask, model = ask_of(study, clients=(), nonces=(), last=())
        assert isinstance(ask, Ask)
        header, tensors = ask_node(node, ask, model, badge=badge)
        assert header.clients == ()
        assert all(np.size(value) == 0 for value in tensors.values())
