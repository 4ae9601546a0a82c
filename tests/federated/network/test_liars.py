"""A site that says what no site can be: it is not listed, and costs nobody else anything."""

from __future__ import annotations

import msgspec
import pytest

from sequester.core.errors import UsageError
from sequester.federated.network import frames
from sequester.federated.network.frames import Enrolled, Willing
from sequester.federated.network.node import Node
from sequester.federated.network.transport import Reply
from tests.federated.network.asking import at_sites
from tests.federated.network.world import Wire, make_nodes, make_study, run, write_sites

LIAR = 102
BIG = "x" * 100_000
LIES = {
    "no clients": {"clients": 0},
    "fewer than none": {"clients": -(10**9)},
    "more than one, where it is one": {"clients": 7},
    "more than memory holds": {"clients": 10**13},
    "more than a number holds": {"clients": 2**63 - 1},
    "no name": {"site": ""},
    "a long name": {"site": BIG},
    "a name that is none": {"site": "b\n"},
    "no key": {"member": ""},
    "a key that is no number": {"member": "no key"},
    "a key too short": {"member": "00" * 31},
    "a key of low order": {"member": "00" * 32},
    "a key otherwise written": {"member": "A" * 64},
    "no badge": {"badge": ""},
    "a long badge": {"badge": BIG},
    "a long fingerprint": {"fingerprint": BIG},
}
FEDERATED = {
    "cross-silo": {},
    "in secret": {"secagg": {"dropout": 0.34}},
    "cross-device": {"placement": "cross-device"},
    "local": {"placement": "local"},
}


def lying(lie, when):
    """A wire at whose one end somebody lies."""

    def carry(parcel, reply):
        first = ("enrol", "hold") if when == "from the first word" else ("hold",)
        if parcel.node != LIAR or not parcel.ticket.startswith(first):
            return [(0, reply)]
        header, _ = frames.unseal(reply.body, lambda _: "")
        assert isinstance(header, Willing | Enrolled)
        fitting = {name: value for name, value in lie.items() if hasattr(header, name)}
        body = frames.seal(msgspec.structs.replace(header, **fitting))
        return [(0, Reply(reply.ticket, body))]

    return carry


def studied(data, placement):
    rate = 1.0 if placement == "local" else 0.5
    training = {"steps": 1, "sampling_rate": rate}
    return make_study(data, FEDERATED[placement], training=training)


@pytest.mark.parametrize(
    ("placement", "when"),
    [
        ("cross-silo", "from the first word"),
        ("in secret", "enrolled"),
        ("cross-device", "enrolled"),
        ("local", "from the first word"),
    ],
)
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_sites_refusal_and_no_runs_end(placement, lie, when, tmp_path):
    silo = placement in ("cross-silo", "in secret")
    if lie == "more than one, where it is one" and not silo:
        pytest.skip("seven people are a site")
    data = write_sites(tmp_path / "data", people=10)
    study, path = studied(data, placement), tmp_path / "run"
    nodes = make_nodes(data, tmp_path / "nodes")

    def wire():
        return Wire(nodes, carry=lying(LIES[lie], when))

    with pytest.raises(UsageError, match="SQ-644"):
        run(data, path, study, wire=wire())
    assert not (path / "checkpoints" / "roster.json").exists()
    if silo:  # elsewhere it told how many people it has
        assert at_sites(tmp_path / "nodes")[::2] == [0, 0]
    nodes[104] = Node("d", data / "b" / "people.csv", tmp_path / "nodes" / "d")
    served = run(data, path, study, wire=wire())  # three honest ones are enough
    assert (served.rounds, served.settled) == (1, 3)
    if silo:
        assert at_sites(tmp_path / "nodes")[1] == 0


def test_a_site_of_as_many_people_as_the_study_declares_is_taken(tmp_path):
    data = write_sites(tmp_path / "data", people=30)
    study = make_study(data, {"placement": "cross-device"}, training={"steps": 1})
    assert run(data, tmp_path / "run", study).rounds == 1
