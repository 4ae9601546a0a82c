"""Accuracy against measured bytes on the wire, for every codec with error feedback.

    python -m benchmarks.federated.wire [--rounds 300] [--seeds 3]

The common job with 100 clients, all in every round, GRU(16). Bytes are those of the encoded
messages. Goal: top-k of one per cent within one point of dense at ≥ 50 times fewer bytes.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks.federated.job import BATCH, RATE, TASK, make_data, make_model
from benchmarks.federated.ours import accuracy
from sequester.federated.algorithms import FedAvg, LocalWork, ServerState
from sequester.federated.clients import Devices
from sequester.federated.compression import Feedback, LowRank, Quantise, RandomK, TopK
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.simulate import Simulation

CLIENTS, HIDDEN = 100, 16
CODECS = {
    "dense": None,
    "top-k 1 %": TopK(0.01),
    "random-k 1 %": RandomK(0.01),
    "random-k 5 %": RandomK(0.05),
    "4 bits": Quantise(4),
    "2 bits": Quantise(2),
    "rank 2": LowRank(2),
}


def run(codec, data, seed, rounds):
    """Accuracy and bytes of a whole run."""
    lot, test = data
    model = make_model(HIDDEN)
    engine = choose_engine(model, TASK, lot)
    work, algorithm = LocalWork(RATE, 1, BATCH), FedAvg()
    feedback = None if codec is None else Feedback(codec, engine.layout)
    simulation = Simulation(
        run=f"wire {seed}",
        state=ServerState(model_vector(model).astype(np.float64)),
        crowd=Devices(engine, work, algorithm, seed, feedback=feedback),
        algorithm=algorithm,
        work=work,
        cohort=lambda _: np.arange(CLIENTS),
    )
    for _ in range(rounds):
        simulation.run_round()
    return accuracy(model, simulation.state.model, test), simulation.crowd.bytes_sent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'codec':14} {'accuracy':>9} {'± sd':>7} {'points':>7} {'MB':>9} {'fewer':>7}")
    dense = None
    for name, codec in CODECS.items():
        found = [
            run(codec, make_data(clients=CLIENTS, seed=seed), seed, given.rounds)
            for seed in range(given.seeds)
        ]
        values, sent = np.array([f[0] for f in found]), float(np.mean([f[1] for f in found]))
        dense = dense or (values.mean(), sent)
        points, fewer = 100 * (values.mean() - dense[0]), dense[1] / sent
        met = ""
        if name == "top-k 1 %":
            met = "  goal −1 point, 50x: " + ("met" if points >= -1 and fewer >= 50 else "MISSED")
        print(
            f"{name:14} {values.mean():9.4f} {values.std():7.4f} {points:+7.2f} {sent / 1e6:9.2f} "
            f"{fewer:6.1f}x{met}",
            flush=True,
        )


if __name__ == "__main__":
    main()
