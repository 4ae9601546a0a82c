"""Very skewed clients with uneven work: what each algorithm gains on FedAvg.

    python -m benchmarks.federated.skew [--rounds 60] [--seeds 3]

100 clients of 16 to 128 windows of the common job, labels by Dirichlet(0.1); every round asks 10
of them (partial participation), and each takes E passes, E uniform on 2..5, drawn anew (the set-up
of Wang et al. 2020, section 6). Weights by windows, GRU(16), settings equal for all algorithms.
Goal G14: FedNova gains ≥ 3 points; SCAFFOLD does not collapse.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

from benchmarks.federated.job import BATCH, TASK, make_data, make_model
from benchmarks.federated.ours import accuracy
from sequester.federated import algorithms as alg
from sequester.federated.clients import Devices
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.simulate import Simulation

CLIENTS, COHORT, HIDDEN, RATE = 100, 10, 16, 0.1


class Uneven(Devices):
    """Devices whose passes differ from client to client and from round to round."""

    def answer(self, instructions, state, clip):
        for instruction in instructions:
            chance = np.random.default_rng((self.seed, instruction.round, instruction.client))
            self.work = replace(self.work, epochs=int(chance.integers(2, 6)))
            yield from super().answer([instruction], state, clip)


def run(make, data, seed, rounds, momentum):
    """Accuracy on the balanced test set at the end."""
    lot, test = data
    model = make_model(HIDDEN)
    algorithm = make()
    work = alg.LocalWork(RATE, 1, BATCH, momentum=momentum)
    engine = choose_engine(model, TASK, lot)
    chance = np.random.default_rng((seed, 7))
    cohorts = [np.sort(chance.choice(CLIENTS, COHORT, replace=False)) for _ in range(rounds)]
    simulation = Simulation(
        run=f"skew {seed}",
        state=alg.ServerState(model_vector(model).astype(np.float64)),
        crowd=Uneven(engine, work, algorithm, seed),
        algorithm=algorithm,
        work=algorithm.local(work),
        cohort=cohorts.__getitem__,
        weighting=alg.ByWindows(),
    )
    last = []
    for r in range(rounds):
        simulation.run_round()
        if r >= rounds - 10:
            last.append(accuracy(model, simulation.state.model, test))
    return float(np.mean(last))


ROWS = {
    "FedAvg": (alg.FedAvg, 0.0),
    "FedProx mu 0.1": (lambda: alg.FedProx(mu=0.1), 0.0),
    "FedNova": (alg.FedNova, 0.0),
    "SCAFFOLD": (lambda: alg.Scaffold(CLIENTS), 0.0),
    "SCAFFOLD, no guard": (lambda: alg.Scaffold(CLIENTS, guard=float("inf")), 0.0),
    "FedAdam": (lambda: alg.FedAdam(learning_rate=0.03, tau=1e-2), 0.0),
    "FedAvg, momentum": (alg.FedAvg, 0.9),
    "FedNova, momentum": (alg.FedNova, 0.9),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':20} {'accuracy, mean of the last ten rounds':>38} {'points':>7}   by seed")
    base = {}
    for name, (make, momentum) in ROWS.items():
        found = []
        for seed in range(given.seeds):
            counts = np.random.default_rng((seed, 1)).integers(16, 129, CLIENTS)
            data = make_data(clients=CLIENTS, counts=counts, seed=seed, alpha=0.1)
            found.append(run(make, data, seed, given.rounds, momentum))
        mean = float(np.mean(found))
        base.setdefault(momentum, mean)
        print(
            f"{name:20} {mean:38.4f} {100 * (mean - base[momentum]):+7.2f}   "
            + " ".join(f"{value:.3f}" for value in found),
            flush=True,
        )


if __name__ == "__main__":
    main()
