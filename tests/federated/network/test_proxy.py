"""Faults on real sockets: what the proxy does to one site costs that site its part, no more."""

from __future__ import annotations

import json

import pytest
from safetensors.numpy import load_file

from sequester.federated.network.run import Terms, serve
from tests.federated.network.proxy import Proxy, SocketNode, Sockets
from tests.federated.network.silent import simulated
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


class Hasty(Sockets):
    """Its clock jumps to the deadline once the harmed site alone is waited for.

    So the others have all the time that a busy machine takes, and nobody sits a deadline out.
    """

    def __init__(self, ports, harmed):
        super().__init__(ports)
        self.harmed, self.out, self.ahead = harmed, {}, 0.0

    def send(self, parcels, seconds):
        self.seconds = seconds
        enrols = ("enrol", "hold")
        self.out |= {p.ticket: p.node for p in parcels if not p.ticket.startswith(enrols)}
        super().send(parcels, seconds)

    def receive(self):
        replies = super().receive()
        for reply in replies:
            self.out.pop(reply.ticket, None)
        return replies

    def forget(self):
        self.out.clear()

    def wait(self):
        if set(self.out.values()) == {self.harmed}:
            self.ahead += self.seconds
        super().wait()

    def now(self):
        return super().now() + self.ahead


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def twin(data, tmp_path_factory):
    """The simulator's weights for who was missing when; computed once for each pattern."""
    known = {}

    def weights(missing):
        if missing not in known:
            study = make_study(data, training={"steps": ROUNDS})
            done = simulated(study, tmp_path_factory.mktemp("twin"), missing)
            known[missing] = load_file(done.folder.weights)
        return known[missing]

    return weights


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_sites_wire_costs_that_site_its_part(fault, data, twin, tmp_path):
    study = make_study(data, training={"steps": ROUNDS})
    nodes = {n: SocketNode(node) for n, node in make_nodes(data, tmp_path / "nodes").items()}
    proxies = {n: Proxy(node.listener.port) for n, node in nodes.items()}
    # Enrolment, of two questions, goes through; then every answer of site b meets the fault.
    proxies[102] = Proxy(nodes[102].listener.port, fault, spare=2)
    ports = {n: proxy.listener.port for n, proxy in proxies.items()}
    wire = Hasty(ports, 102) if fault in SLOW else Sockets(ports)
    terms = Terms(3, round_seconds=600.0, wait_seconds=600.0)
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
