"""Faults on real sockets: what the proxy does to one site costs that site its part, no more."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file

from sequester.federated import clients
from sequester.federated import round as machine
from sequester.federated.network.run import Terms, serve
from sequester.federated.run import federate
from tests.federated.network.proxy import Proxy, SocketNode, Sockets
from tests.federated.network.world import SITES, make_nodes, make_study, write_sites

ROUNDS = 2
HARMLESS = {"none", "duplicate", "reorder", "trickle"}
SLOW = {"blackhole", "delay"}
FAULTS = (
    *sorted(HARMLESS),
    *sorted(SLOW),
    "drop",
    "truncate",
    "reset",
    "alter",
    "alter question",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def twin(data, tmp_path_factory):
    """The simulator's weights for who was missing when; computed once for each pattern."""
    known = {}

    def weights(missing):
        if missing not in known:
            real = clients.Silos.answer

            def answer(self, instructions, state, clip):
                for event in real(self, instructions, state, clip):
                    silent = (event.update.round, event.update.client) in missing
                    yield machine.Lost(event.update.client) if silent else event

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(clients.Silos, "answer", answer)
                study = make_study(data, training={"steps": ROUNDS})
                done = federate(study, out=tmp_path_factory.mktemp("twin"))
            known[missing] = load_file(done.folder.weights)
        return known[missing]

    return weights


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_sites_wire_costs_that_site_its_part(fault, data, twin, tmp_path):
    study = make_study(data, training={"steps": ROUNDS})
    nodes = {n: SocketNode(node) for n, node in make_nodes(data, tmp_path / "nodes").items()}
    proxies = {n: Proxy(node.listener.port) for n, node in nodes.items()}
    # Enrolment goes through; then every answer of site b meets the fault.
    proxies[102] = Proxy(nodes[102].listener.port, fault, spare=1)
    wire = Sockets({n: proxy.listener.port for n, proxy in proxies.items()})
    slow = fault in SLOW
    terms = Terms(3, round_seconds=2.0 if slow else 60.0, wait_seconds=8.0 if slow else 60.0)
    try:
        served = serve(study, tmp_path / "run", wire, terms)
    finally:
        for each in proxies.values():
            each.close()
        for each in nodes.values():
            each.listener.close()
    lines = (served.folder.private / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    assert [line["done"] for line in rounds] == [True] * ROUNDS
    missing = frozenset(
        (line["round"], place)
        for line in rounds
        for place, name in enumerate(SITES)
        if name not in line["sites"]
    )
    harmed = {(number, 1) for number in range(ROUNDS)}
    assert not missing & harmed if fault in HARMLESS else harmed <= missing
    ours, theirs = load_file(served.folder.weights), twin(missing)
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}
