"""Three sites in one process: real nodes with real folders, a server, a network that misbehaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sequester.federated.network.node import Node
from sequester.federated.network.run import Terms, serve
from sequester.federated.network.transport import Parcel, Reply
from sequester.training.study_file import decode

SITES = ("a", "b", "c")
POLICY = """
holder = "a clinic"
units = ["person", "none"]
min_population = 5
placements = ["cross-silo", "cross-device", "local"]
[ceiling]
epsilon = 50.0
delta = 1e-4
"""


def write_sites(folder: Path, *, people: int = 10, records: int = 6) -> Path:
    """One file a site, and one of all together; people sort by site, so positions agree."""
    generator = np.random.default_rng(3)
    head = "person,time,site,value,label\n"
    everybody = [head]
    for site in SITES:
        lines = []
        for person in range(people):
            level = generator.normal()
            for time in range(records):
                value = level + generator.normal()
                label = int(value + generator.normal() > 0)
                lines.append(f"{site}{person:03d},{time},{site},{value:.3f},{label}\n")
        place = folder / site
        place.mkdir(parents=True)
        (place / "people.csv").write_text("".join([head, *lines]))
        (place / "policy.toml").write_text(POLICY)
        everybody += lines
    (folder / "all.csv").write_text("".join(everybody))
    return folder


def make_study(folder: Path, federated=None, **changes):
    raw = {
        "name": "clinics",
        "data": {
            "source": str(folder / "all.csv"),
            "population": 24,
            "features": {"value": {"lower": -4.0, "upper": 4.0}},
            "window": 3,
            "stride": 3,
            "group": "site",
        },
        "model": {"kind": "gru", "options": {"hidden": 3}},
        "privacy": {"noise_multiplier": 1.0, "clip": 0.2, "insecure_test_seed": 5},
        "training": {"steps": 4, "sampling_rate": 0.5},
        "federated": {"placement": "cross-silo", **(federated or {})},
    }
    for section, fields in changes.items():
        raw[section] = {**raw.get(section, {}), **fields}
    return decode(raw)


def make_nodes(folder: Path, state: Path) -> dict[int, Node]:
    return {
        number: Node(site, folder / site / "people.csv", state / site)
        for number, site in enumerate(SITES, start=101)
    }


class Killed(BaseException):
    """The process of a node, or of the server, was."""


@dataclass
class Wire:
    """A transport whose clock is virtual and whose faults are chosen.

    Attributes:
        nodes_: Nodes by number; a number can be taken away and given back.
        deliver: What becomes of a question: the question itself, or none.
        carry: What becomes of an answer: (delay in ticks, reply) for each copy.
        meanwhile: Happens while the server waits.
        tick: Virtual seconds a wait lasts.
    """

    nodes_: dict[int, Node]
    deliver: object = staticmethod(lambda parcel: parcel)
    carry: object = staticmethod(lambda parcel, reply: [(0, reply)])
    meanwhile: object = staticmethod(lambda: None)
    tick: float = 1.0
    clock: float = 0.0
    inbox: list = field(default_factory=list)
    sent: int = 0
    persistent: bool = False

    def nodes(self):
        return sorted(self.nodes_)

    def send(self, parcels, seconds):
        for parcel in parcels:
            self.sent += 1
            arrived: Parcel | None = self.deliver(parcel)
            if arrived is None or parcel.node not in self.nodes_:
                continue
            try:
                body = self.nodes_[arrived.node].answer(arrived.body)
            except Killed:
                continue
            for delay, reply in self.carry(arrived, Reply(parcel.ticket, body)):
                self.inbox.append((self.clock + delay, self.sent, reply))

    def receive(self):
        due = [item for item in self.inbox if item[0] <= self.clock]
        due.sort(key=lambda item: item[:2])
        self.inbox = [item for item in self.inbox if item[0] > self.clock]
        return [reply for _, _, reply in due]

    def forget(self):
        if not self.persistent:
            self.inbox.clear()

    def wait(self):
        self.clock += self.tick
        self.meanwhile()

    def now(self):
        return self.clock


TERMS = Terms(sites=3, least=1, round_seconds=10.0, wait_seconds=20.0)


def run(folder, path, study, *, wire=None, nodes=None, terms=TERMS, watch=None):
    wire = wire or Wire(nodes or make_nodes(folder, path.parent / "nodes"))
    return serve(study, path, wire, terms, watch=watch)
