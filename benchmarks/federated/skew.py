"""Very skewed clients with uneven work: what each algorithm gains on FedAvg.

    python -m benchmarks.federated.skew [--seeds 3] [--rate 0.1]

Clients of the common job, labels by Dirichlet(0.1), and each takes E passes, E uniform on 2..5,
drawn anew every round (Wang et al. 2020, section 6). Two set-ups: 16 clients of 64 to 512 windows,
all in every round, as in that paper; and 100 clients of 16 to 128 windows, of whom 10 are asked
(partial participation). Weights by windows, GRU(16), one setting for all algorithms.
Goal G14: FedNova gains ≥ 3 points over FedAvg; SCAFFOLD does not collapse.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.federated.job import BATCH, RATE, TASK, make_data, make_model
from benchmarks.federated.ours import accuracy
from sequester.federated import algorithms as alg
from sequester.federated.clients import Devices
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.simulate import Simulation

HIDDEN, ALPHA = 16, 0.1


@dataclass(frozen=True)
class Setup:
    """Who there is, who is asked, and for how long; accuracy is the mean of the last ten rounds."""

    clients: int
    cohort: int
    windows: tuple[int, int]
    rounds: int


SETUPS = {
    "16 clients, all in every round": Setup(16, 16, (64, 512), 30),
    "10 of 100 clients a round": Setup(100, 10, (16, 128), 60),
}


class Uneven(Devices):
    """Devices whose passes differ from client to client and from round to round."""

    def answer(self, instructions, state, clip):
        for instruction in instructions:
            chance = np.random.default_rng((self.seed, instruction.round, instruction.client))
            self.work = replace(self.work, epochs=int(chance.integers(2, 6)))
            yield from super().answer([instruction], state, clip)


def run(make, data, seed, setup, rate, momentum):
    """Accuracy on the balanced test set at the end."""
    lot, test = data
    model = make_model(HIDDEN)
    algorithm = make(setup.clients)
    work = alg.LocalWork(rate, 1, BATCH, momentum=momentum)
    engine = choose_engine(model, TASK, lot)
    chance = np.random.default_rng((seed, 7))
    cohorts = [
        np.sort(chance.choice(setup.clients, setup.cohort, replace=False))
        for _ in range(setup.rounds)
    ]
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
    for r in range(setup.rounds):
        simulation.run_round()
        if r >= setup.rounds - 10:
            last.append(accuracy(model, simulation.state.model, test))
    return float(np.mean(last))


ROWS = {
    "FedAvg": (lambda n: alg.FedAvg(), 0.0),
    "FedProx mu 0.1": (lambda n: alg.FedProx(mu=0.1), 0.0),
    "FedNova": (lambda n: alg.FedNova(), 0.0),
    "SCAFFOLD": (alg.Scaffold, 0.0),
    "SCAFFOLD, no guard": (lambda n: alg.Scaffold(n, guard=float("inf")), 0.0),
    "FedAdam": (lambda n: alg.FedAdam(learning_rate=0.03, tau=1e-2), 0.0),
    "FedAvg, momentum": (lambda n: alg.FedAvg(), 0.5),
    "FedNova, momentum": (lambda n: alg.FedNova(), 0.5),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=RATE, help="the clients' learning rate")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for title, setup in SETUPS.items():
        print(f"{title}, {setup.rounds} rounds: accuracy, points over FedAvg, by seed")
        base = {}
        for name, (make, momentum) in ROWS.items():
            found = []
            for seed in range(given.seeds):
                chance = np.random.default_rng((seed, 1))
                counts = chance.integers(*setup.windows, setup.clients, endpoint=True)
                data = make_data(clients=setup.clients, counts=counts, seed=seed, alpha=ALPHA)
                found.append(run(make, data, seed, setup, given.rate, momentum))
            mean = float(np.mean(found))
            base.setdefault(momentum, mean)
            print(
                f"  {name:20} {mean:7.4f} {100 * (mean - base[momentum]):+7.2f}   "
                + " ".join(f"{value:.3f}" for value in found),
                flush=True,
            )


if __name__ == "__main__":
    main()
