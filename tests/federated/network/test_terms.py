"""What a holder asks of secure sums: weaker ones are refused before the node makes a key,
and so are members whom it does not know."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sequester import secagg
from sequester.cli.flower import command
from sequester.core.errors import UsageError
from sequester.federated.clients import COUNTS
from sequester.federated.masking import Ticket
from sequester.federated.network.frames import Enrolled, Refused, Step, Stepped
from sequester.federated.network.keys import public_key
from sequester.federated.network.member import masking_for, sums_for
from sequester.federated.network.memory import Memory
from sequester.federated.network.site import layout_for
from sequester.federated.settings import settings_of
from sequester.training import resumption
from tests.federated.network.asking import ask_node, ask_of, enrol_of, enrolled, node_at
from tests.federated.network.world import POLICY, make_nodes, make_study, run, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data")


# What a study asks that the defaults refuse, and what the holder must write to let it in.
WEAKER = {
    "a server that is trusted": ({"semi_honest": True}, "semi_honest = true"),
    "a cohort of two": ({"min_cohort": 2}, "min_cohort = 2"),
    "half may be missing": ({"dropout": 0.5}, "dropout = 0.5"),
}


def enrolment(data, tmp_path, policy, secagg):
    (data / "a" / "policy.toml").write_text(POLICY + policy)
    study = make_study(data, {"secagg": {"dropout": 0.34, **secagg}})
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(study))
    return header


@pytest.mark.parametrize("kind", WEAKER)
def test_only_the_holder_lets_weaker_sums_in(kind, data, tmp_path):
    asked, granted = WEAKER[kind]
    header = enrolment(data, tmp_path, "", asked)
    assert isinstance(header, Refused)
    assert header.code == 649
    assert not list((tmp_path / "node").glob("*.key"))
    assert not (tmp_path / "node" / "ledger.db").exists()
    assert isinstance(enrolment(data, tmp_path, f"[secure_sums]\n{granted}\n", asked), Enrolled)


@pytest.mark.parametrize("terms", ["min_cohort = 4", "dropout = 0.3", "corrupt = 0.2"])
def test_a_holder_may_ask_for_more(terms, data, tmp_path):
    assert enrolment(data, tmp_path, f"[secure_sums]\n{terms}\n", {}).code == 649
    assert isinstance(enrolment(data, tmp_path, "", {}), Enrolled)


def test_the_studys_own_cohort_is_the_rounds(data):
    # The policy is held against the study's number, so that number must bind every round.
    study = make_study(data, {"secagg": {"min_cohort": 5, "dropout": 0.2, "corrupt": 0.0}})
    sums = sums_for(settings_of(study), 6, 10, study.data.population)
    assert sums.round_plan(1.0, 0.0).policy().min_cohort >= 5
    fewer = msgspec.structs.replace(sums.chosen, min_cohort=7)
    with pytest.raises(UsageError, match="SQ-624"):
        type(sums)(fewer, 6, 10, sites=True, most=24)


def members_toml(folder, keys):
    file = folder / "members.toml"
    file.write_text("".join(f'{site} = "{key}"\n' for site, key in keys.items()))
    return str(file)


def lied_to(data, tmp_path, listed):
    """The first message of a sum whose other members a lying server made up; the node's answer."""
    study = make_study(data, {"secagg": {"dropout": 0.34}})
    node = node_at(data, tmp_path)
    own = public_key(node.folder)
    made_up = tuple(secagg.Identity(place).public.hex() for place in (1, 2))
    members = (own, *made_up)
    known = {"a": own, **dict(zip("bc", listed or made_up, strict=True))}
    node.members = members_toml(tmp_path, known)
    header = enrolled(node, study)
    ask, tensors = ask_of(study)
    settings = settings_of(study)
    size = layout_for(study, settings).size - len(COUNTS)
    sums = sums_for(settings, 3, size, study.data.population)
    begun = msgspec.structs.replace(resumption.begin(study, "", "flower"), run="run-1")
    masking = masking_for(sums, begun, bytes(32))
    ticket = Ticket(0, ask.version, study.privacy.clip, private=True)
    roster = secagg.Roster({i: bytes.fromhex(key) for i, key in enumerate(members)})
    session = sums.round_plan(ticket.clip, 0.0).session(
        "run-1", 0, model=masking.context(ticket).model, roster=roster.digest
    )
    offer = np.frombuffer(secagg.Server(session, roster).offer(), np.uint8)
    step = Step("run-1", 0, ask.version, ask.layout, ask.clip, 0, members, "0-0-1")
    answer, _ = ask_node(node, step, {**tensors, "message": offer}, badge=header.badge)
    return node, answer


def test_a_server_cannot_make_up_the_other_members(data, tmp_path):
    true = [secagg.Identity(place).public.hex() for place in (1, 2)]
    node, answer = lied_to(data, tmp_path, true)
    assert isinstance(answer, Refused)
    assert answer.code == 651
    # Nothing of the round was begun, no key of it was made.
    memory = Memory(node.folder, "run-1")
    assert {file.name for file in memory.folder.iterdir()} == {"enrolled.json", "round.json"}
    assert memory.answered().round == -1


def test_members_who_are_on_the_list_are_answered(data, tmp_path):
    assert isinstance(lied_to(data, tmp_path, None)[1], Stepped)


@pytest.mark.parametrize(
    "text", [None, "", "a = 5\n", 'a = "12"\n', "not toml", f'a = "{"0" * 64}"\nb = "{"0" * 64}"\n']
)
def test_a_list_that_is_none_stops_the_enrolment(text, data, tmp_path):
    file = tmp_path / "members.toml"
    if text is not None:
        file.write_text(text)
    node = node_at(data, tmp_path)
    node.members = str(file)
    header, _ = ask_node(node, enrol_of(make_study(data, {"secagg": {"dropout": 0.34}})))
    assert header.code == 650
    assert str(tmp_path) not in header.message


@pytest.mark.parametrize("listed", [3, 2, 0])
def test_the_claim_trusts_no_keys_that_came_from_the_server(listed, data, tmp_path):
    nodes = make_nodes(data, tmp_path / "nodes")
    keys = {node.site: public_key(node.folder) for node in nodes.values()}
    for node in list(nodes.values())[:listed]:
        node.members = members_toml(tmp_path, keys)
    noisy = {"noise": "discrete-gaussian", "dropout": 0.34, "corrupt": 0.0}
    study = make_study(data, {"secagg": noisy}, training={"steps": 1})
    served = run(data, tmp_path / "run", study, nodes=nodes)
    said = " ".join(served.claim.fields["assumptions"])
    assert ("even if it lies" in said) == (listed == 3)
    assert ("taken from the server" in said) == (listed < 3)
    assert ("the server too, if it follows the protocol" in said) == (listed < 3)


def test_a_holder_reads_the_key_before_the_first_run(data, tmp_path):
    node = node_at(data, tmp_path)
    done = CliRunner().invoke(command, ["key", str(node.folder), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["public_key"]
    assert enrolled(node, make_study(data)).member == told


def test_the_networks_claim_names_the_rows_that_a_bare_sum_shows(data, tmp_path):
    table = {"categories": {"site": {"values": ("a", "b", "c")}}}
    sums = {"secagg": {"dropout": 0.34, "bare_sums": True}}
    study = make_study(data, sums, data=table, training={"steps": 1})
    served = run(data, tmp_path / "run", study)
    assert "embedding rows change only" in " ".join(served.claim.fields["not_evidenced"])
