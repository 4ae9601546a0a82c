"""Before the first round: what no site pays for, whoever is killed, and what stays paid."""

from __future__ import annotations

import json

import msgspec
import pytest

from sequester.core.errors import UsageError
from sequester.federated.network import enrol, permit
from sequester.federated.network import node as office
from sequester.federated.network.enrol import Finder
from sequester.federated.network.frames import (
    Answers,
    Enrolled,
    Finish,
    Finished,
    Refused,
    Released,
    Willing,
)
from sequester.federated.network.memory import Memory
from sequester.federated.network.node import Node
from sequester.federated.network.permit import status_of
from sequester.federated.network.roster import Roster, Site
from sequester.ledger import Ledger
from tests.federated.network.asking import (
    BROKEN,
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
from tests.federated.network.test_node import POLICIES
from tests.federated.network.world import (
    POLICY,
    SITES,
    TERMS,
    Wire,
    make_nodes,
    make_study,
    run,
    write_sites,
)


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


# ---- what is asked first ----------------------------------------------------------------

CANNOT = {
    "a column is missing": ("people.csv", "value", "valeu", "SQ-653"),
    "its budget is too small": ("policy.toml", "50.0", "0.1357", "SQ-312"),
    "its policy refuses": ("policy.toml", '"none"', '"window"', "SQ-340"),
    "it reads otherwise": ("reading.toml", "", "holder = 1", "SQ-656"),
}


@pytest.mark.parametrize("kind", CANNOT)
def test_one_site_that_cannot_enrol_costs_no_other_anything(kind, data, tmp_path):
    name, old, new, why = CANNOT[kind]
    file = data / "c" / name
    file.write_text(file.read_text().replace(old, new) if file.exists() else new)
    with pytest.raises(UsageError, match="SQ-644") as refusal:
        run(data, tmp_path / "run", make_study(data))
    assert why in str(refusal.value)
    assert at_sites(tmp_path / "nodes") == [0, 0, 0]


@pytest.mark.parametrize("kind", POLICIES)
def test_what_speaks_against_a_run_is_said_at_the_first_question(kind, data, tmp_path):
    """All but what people decide, and in the same words."""
    text, _ = POLICIES[kind]
    file = data / "a" / "policy.toml"
    file.unlink() if text is None else file.write_text(text)
    asked, held = (
        ask_node(node_at(data, tmp_path / str(hold)), enrol_of(make_study(data), hold=hold))[0]
        for hold in (False, True)
    )
    assert isinstance(held, Refused)
    if held.code == 633:
        assert isinstance(asked, Willing)
    else:
        assert asked == held


def founded(data, tmp_path):
    """A node whose budget was founded by an earlier run."""
    node = node_at(data, tmp_path)
    begun = msgspec.json.decode(enrol_of(make_study(data)).begun)
    earlier = msgspec.json.encode(begun | {"run": "earlier"}).decode()
    header, _ = ask_node(node, enrol_of(make_study(data), run="earlier", begun=earlier))
    assert isinstance(header, Enrolled)
    return node


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        (POLICY.replace("epsilon = 50.0", "epsilon = 49.0"), 340),
        (POLICY.replace("delta = 1e-4", "delta = 1e-6"), 340),
        (POLICY, 0),
    ],
)
def test_a_policy_that_became_stricter_holds_for_the_budget_as_well(
    hold, text, code, data, tmp_path
):
    node = founded(data, tmp_path)
    (data / "a" / "policy.toml").write_text(text)
    before = spent(node.folder)
    header, _ = ask_node(node, enrol_of(make_study(data), hold=hold))
    assert getattr(header, "code", 0) == code
    assert spent(node.folder) == before or (hold and not code)


def test_the_first_question_leaves_nothing_behind(data, tmp_path, monkeypatch):
    def nobody(*_):
        raise AssertionError("somebody was read")

    monkeypatch.setattr(office, "read_people", nobody)
    answers = []
    for change in (str, lambda text: text + BROKEN, lambda text: text.splitlines()[0] + "\n"):
        file = data / "a" / "people.csv"
        file.write_text(change(file.read_text()))
        node = node_at(data, tmp_path)
        answers.append(ask_node(node, enrol_of(make_study(data), hold=False))[0])
        # Neither a charge, nor a budget's terms, nor a memory of the run: its own key at most.
        assert {each.name for each in node.folder.iterdir()} == {"node.key", "node.lock"}
    assert isinstance(answers[0], Willing)
    assert answers == [answers[0]] * 3  # whatever the records are


def test_a_rehearsal_that_was_killed_leaves_no_copy_for_long(data, tmp_path, monkeypatch):
    node = founded(data, tmp_path)
    before = spent(node.folder)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve", die)
        with pytest.raises(KeyboardInterrupt):
            ask_node(node, enrol_of(make_study(data), hold=False))
    (node.folder / "trial").mkdir(exist_ok=True)
    assert isinstance(ask_node(node, enrol_of(make_study(data), hold=False))[0], Willing)
    assert not (node.folder / "trial").exists()
    assert spent(node.folder) == before


@pytest.mark.parametrize("when", ["before", "later"])
def test_a_site_too_many_is_never_charged(when, data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")
    fourth = Node("d", data / "a" / "people.csv", tmp_path / "nodes" / "d")

    def watch(number, _):
        if number == 1:
            nodes[104] = fourth

    if when == "before":
        nodes[104] = fourth
    served = run(data, tmp_path / "run", make_study(data), nodes=nodes, watch=watch)
    assert served.settled == 3
    assert (fourth.folder / "node.key").exists()  # it was asked
    assert spent(fourth.folder) == 0
    assert all(at_sites(tmp_path / "nodes"))


def test_a_site_that_is_lost_between_both_questions_is_replaced_and_pays_nothing(data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")
    nodes[104] = Node("d", data / "a" / "people.csv", tmp_path / "nodes" / "d")
    wire, lost = Wire(nodes), {}

    def carry(parcel, reply):
        if parcel.ticket == "hold-102" and not lost:
            lost[102] = nodes.pop(102)  # charged, and nobody heard it
            return []
        if parcel.ticket == "hold-104":
            nodes.update(lost)
        return [(0, reply)]

    wire.carry = carry
    served = run(data, tmp_path / "run", make_study(data), wire=wire)
    last = json.loads((served.folder.private / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["sites"] == ["a", "c", "d"]
    assert [amount > 0 for amount in at_sites(tmp_path / "nodes")] == [True, False, True]


# ---- a run that ends before its first round ---------------------------------------------


@pytest.mark.parametrize("epsilon", [50.0, "tight"])
def test_where_one_site_cannot_be_read_the_others_get_everything_back(epsilon, data, tmp_path):
    if epsilon == "tight":
        # Just enough for one run: such a charge is admitted as fixed, and no settlement lowers it.
        epsilon = tight(data, tmp_path, make_study(data))
    for site in SITES:
        (data / site / "policy.toml").write_text(POLICY.replace("50.0", repr(epsilon)))
    url = f"sqlite:///{tmp_path / 'server.db'}"
    Ledger.create(url).create_budget("network", "network", 20.0, 1e-5)
    study = make_study(data, ledger={"url": url, "budget": "network"})
    repair = break_file(data)
    with pytest.raises(UsageError, match=r"SQ-644 .*SQ-639"):
        run(data, tmp_path / "run", study)
    # What its records decided it has told; that stays charged.
    assert [amount > 0 for amount in at_sites(tmp_path / "nodes")] == [False, False, True]
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent == 0
    repair()
    if epsilon != 50.0:
        return  # the third has no budget left
    served = run(data, tmp_path / "run", study, nodes=make_nodes(data, tmp_path / "nodes"))
    assert served.rounds == 4
    assert served.settled == 3
    assert all(at_sites(tmp_path / "nodes"))


def tight(data, tmp_path, study):
    """A ceiling below what the filter admits, and above what one fixed run costs."""
    for epsilon in (2.0 + 0.25 * step for step in range(40)):
        (data / "a" / "policy.toml").write_text(POLICY.replace("50.0", repr(epsilon)))
        node = node_at(data, tmp_path / f"tight-{epsilon}")
        if isinstance(ask_node(node, enrol_of(study))[0], Enrolled):
            with Ledger.open(f"sqlite:///{node.folder / 'ledger.db'}") as ledger:
                assert ledger.reservation("run-1").rule == "fixed"
            return epsilon
    raise AssertionError("no ceiling fits")


def as_another(study):
    asked = enrol_of(study)
    return msgspec.structs.replace(asked, study=asked.study + "\n")


QUESTIONS = {
    "a round": (ask_of, 636),
    "a later round": (lambda study: ask_of(study, round_=2), 636),
    "enrolling again": (lambda study: (enrol_of(study),), 636),
    "whether it would": (lambda study: (enrol_of(study, hold=False),), 636),
    "as another study": (lambda study: (as_another(study),), 635),
}


@pytest.mark.parametrize("how", ["finish", "release"])
@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_run_that_was_given_back_is_never_answered_again(kind, how, data, tmp_path):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    assert spent(node.folder) > 0
    if how == "finish":
        assert isinstance(ask_node(node, Finish("run-1", 0, "f"), badge=badge)[0], Finished)
    else:
        assert isinstance(ask_node(node, RELEASE)[0], Released)
    assert spent(node.folder) == 0
    question, code = QUESTIONS[kind]
    keyed = badge if kind.endswith("round") else ""
    header, _ = ask_node(node_at(data, tmp_path), *question(study), badge=keyed)
    assert isinstance(header, Refused)
    assert header.code == code
    # Nor does an end that comes again, or says more, change anything.
    for rounds in (0, 3):
        end = ask_node(node_at(data, tmp_path), Finish("run-1", rounds, "f"), badge=badge)[0]
        assert isinstance(end, Finished)
    assert spent(node.folder) == 0


def test_a_run_that_ended_before_its_question_came_is_not_charged_for_it(data, tmp_path):
    node = node_at(data, tmp_path)
    assert isinstance(ask_node(node, RELEASE)[0], Released)
    assert ask_node(node_at(data, tmp_path), enrol_of(make_study(data)))[0].code == 636
    assert spent(node.folder) == 0


def die(*_, **__):
    raise KeyboardInterrupt


TRAINED = ["answered", "killed in training", "finished"]


@pytest.mark.parametrize("how", ["finish", "release", "both"])
@pytest.mark.parametrize("when", TRAINED)
def test_what_a_round_was_begun_for_is_never_given_back(when, how, data, tmp_path, monkeypatch):
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    with monkeypatch.context() as patch:
        if when == "killed in training":
            patch.setattr(Node, "_crowd", die)
            with pytest.raises(KeyboardInterrupt):
                ask_node(node, *ask_of(study), badge=badge)
        else:
            assert isinstance(ask_node(node, *ask_of(study), badge=badge)[0], Answers)
    if when == "finished":
        ask_node(node, Finish("run-1", 4, "f"), badge=badge)
    node = node_at(data, tmp_path)
    if how in ("release", "both"):
        header, _ = ask_node(node, release_of("other", "run-1"))
        assert (header.code, header.enrolled) == (636, False)
        assert ask_node(node, enrol_of(study, run="other"))[0].code in (636, 641)  # the others are
    if how in ("finish", "both"):
        assert isinstance(ask_node(node, Finish("run-1", 0, "f"), badge=badge)[0], Finished)
    assert spent(node.folder) > 0
    assert status_of(node.folder, "run-1") in ("begun", "commit")


def release_of(*runs):
    return msgspec.structs.replace(RELEASE, ended=runs)


@pytest.mark.parametrize("end", [Finish("run-1", 0, "f"), RELEASE], ids=["finish", "release"])
def test_a_kill_between_the_ledgers_note_and_ours_gives_nothing_back(
    end, data, tmp_path, monkeypatch
):
    """That a round was about to be answered is on the ledger first."""
    study, node = make_study(data), node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "open_round", die)
        with pytest.raises(KeyboardInterrupt):
            ask_node(node, *ask_of(study), badge=badge)
    ask_node(node_at(data, tmp_path), end, badge=badge if isinstance(end, Finish) else "")
    assert status_of(node.folder, "run-1") == "begun"
    assert ask_node(node_at(data, tmp_path), *ask_of(study), badge=badge)[0].code == 636


# ---- whose node it is -------------------------------------------------------------------


def test_a_node_with_another_badge_is_not_the_site_of_that_name(data, tmp_path):
    """Nor does it stay charged for a run that is not its own."""
    study = make_study(data)
    nodes = make_nodes(data, tmp_path / "nodes")
    sites = []
    for node in nodes.values():
        header = enrolled(node, study)
        sites.append(Site(header.site, 1, "f", header.badge, header.member))
    double = Node("a", data / "a" / "people.csv", tmp_path / "nodes" / "double")
    enrolled(double, study)
    assert spent(double.folder) > 0
    del nodes[101]
    nodes[201] = double
    finder = Finder(Wire(nodes), enrol_of(study), tmp_path / "nodes.json")
    roster = Roster.of(sites)
    assert finder.gather(roster, 3, 20.0) == 2
    assert sorted(finder.present(roster)) == [1, 2]
    assert "not on this run's list" in finder.refusals[201]
    assert spent(double.folder) == 0
    assert all(at_sites(tmp_path / "nodes")[1:])


def test_a_server_waits_for_no_mute_once_it_has_enough(data, tmp_path):
    assert enrol.GRACE_S > TERMS.wait_seconds
    nodes = make_nodes(data, tmp_path / "nodes")
    nodes[104] = Node("d", data / "a" / "people.csv", tmp_path / "nodes" / "d")
    wire = Wire(nodes, carry=lambda parcel, reply: [(0, reply)] if parcel.node != 104 else [])
    finder = Finder(wire, enrol_of(make_study(data)), tmp_path / "nodes.json")
    assert len(finder.enrol(3, 3600.0, lambda: None).sites) == 3
    assert wire.clock < 10
    assert permit.status_of(tmp_path / "nodes" / "d", "run-1") == ""
