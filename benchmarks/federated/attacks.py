"""The same attacks on Flower, pfl and ours, bare and under each one's guarantee.

    python -m benchmarks.federated.attacks [--pfl PYTHON] [--flower PYTHON]

One of a hundred clients is hostile (`peers/attack_kinds.py`). The figure is how far it moves the
new model, times clients, over the bound C: under a guarantee anything above 1 breaks the claim.
Defaults of each framework; Flower weights by example counts by default, the other two uniformly.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.federated.speed import PEERS, child
from sequester.federated import algorithms as alg
from sequester.federated import round as machine
from sequester.federated.messages import Layout, answer
from sequester.federated.simulate import Guarantee, Simulation
from sequester.mechanism import NoiseStream, Plan

sys.path.insert(0, str(PEERS))  # the attacks are defined where the peers' environments find them
import attack_kinds

LAYOUT = Layout(("w",), ((attack_kinds.SIZE,),))


@dataclass
class Crowd:
    """Clients that send what the table says."""

    kind: str
    layout: Layout = LAYOUT
    bytes_sent: int = 0
    kept: dict = field(default_factory=dict)

    def answer(self, instructions, state, clip):
        updates = {}
        for instruction in instructions:
            vector, examples = attack_kinds.sent(instruction.client, self.kind)
            updates[instruction.client] = answer(instruction, {"w": vector}, weight=float(examples))
        if self.kind == "replay":  # the bytes of another client, and the same under its own name
            other = updates[attack_kinds.HOSTILE - 1]
            del updates[attack_kinds.HOSTILE]
            yield machine.Arrived(other, 0.0)
            yield machine.Arrived(replace(other, client=attack_kinds.HOSTILE), 0.0)
        for update in updates.values():
            yield machine.Arrived(update, 0.0)

    def settle(self, number, clients):
        """Nothing is kept."""

    def arrays(self):
        """Nothing is kept."""
        return {}

    def restore(self, arrays):
        """Nothing is kept."""


def release(kind, *, private):
    """The new model after one round, starting from zeros, and why updates were left out."""
    guarantee = None
    clients, size = attack_kinds.CLIENTS, attack_kinds.SIZE
    if private:  # noise of a billionth: only the influence is looked at
        plan = Plan("person", clients, 1.0, 1, 1e-9, 1.0, size, 1e-5)
        guarantee = Guarantee(plan, NoiseStream.from_test_seed(0, "attacks"))
    simulation = Simulation(
        run="attacks",
        state=alg.ServerState(np.zeros(size)),
        crowd=Crowd(kind),
        algorithm=alg.FedAvg(),
        work=alg.LocalWork(),
        cohort=lambda _: np.arange(clients),
        guarantee=guarantee,
        clip=1.0,
    )
    outcome = simulation.run_round()
    return simulation.state.model if outcome.done else None, outcome.rejected


def ours():
    """Our part of the table, with the reasons of rejection."""
    rows, reasons = {}, {}
    for name, private in (("bare", False), ("private", True)):
        rows[name] = attack_kinds.table(lambda kind, p=private: release(kind, private=p)[0])
    for kind in attack_kinds.KINDS[1:]:
        rejected = release(kind, private=True)[1]
        reasons[kind] = ", ".join(sorted(str(reason) for reason in rejected)) or "–"
    return rows, reasons


def shown(value):
    """A cell."""
    return value if isinstance(value, str) else f"{value:.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfl", default=os.environ.get("SEQUESTER_PFL_PYTHON", ""))
    parser.add_argument("--flower", default=os.environ.get("SEQUESTER_FLOWER_PYTHON", ""))
    given = parser.parse_args()
    columns, reasons = {}, {}
    for name, python in (("flower", given.flower), ("pfl", given.pfl)):
        if python:
            columns[name] = child([python, str(Path(PEERS, f"{name}_attacks.py"))])
    columns["ours"], reasons = ours()
    heads = [f"{name}, {kind}" for kind in ("bare", "private") for name in columns]
    print(f"{'attack':12}" + " ".join(f"{head:>16}" for head in heads) + "   ours says")
    for attack in attack_kinds.KINDS[1:]:
        cells = [
            shown(columns[name][kind][attack]) for kind in ("bare", "private") for name in columns
        ]
        print(f"{attack:12}" + " ".join(f"{cell:>16}" for cell in cells) + f"   {reasons[attack]}")


if __name__ == "__main__":
    main()
