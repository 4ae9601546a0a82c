"""CPU seconds for a round of the common job: kernel, batched, our loop, a plain nn.GRU loop.

python -m benchmarks.federated.speed [16 64 128]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.federated.job import (
    BATCH,
    COHORT,
    RATE,
    STEPS,
    TASK,
    WINDOWS,
    cohort,
    make_data,
    make_model,
)
from sequester.federated.algorithms import LocalWork
from sequester.federated.engine import Job, choose_engine
from sequester.federated.engine.base import model_vector


class Plain(nn.Module):
    """What anybody would write."""

    def __init__(self, hidden):
        super().__init__()
        self.gru = nn.GRU(6, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 6)

    def forward(self, x):
        _, h = self.gru(x)
        return self.fc(h[-1])


def plain_round(hidden, clients=10):
    """CPU seconds of a plain loop over `clients` clients, scaled to a cohort."""
    net = Plain(hidden)
    x, y = torch.randn(WINDOWS, STEPS, 6), torch.randint(0, 6, (WINDOWS,))
    start = time.process_time()
    for _ in range(clients):
        optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
        for at in range(0, WINDOWS, BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(net(x[at : at + BATCH]), y[at : at + BATCH]).backward()
            optimiser.step()
    return (time.process_time() - start) * COHORT / clients


def engine_round(name, lot, hidden, rounds=3):
    """Median CPU seconds of a round."""
    model = make_model(hidden)
    engine = choose_engine(model, TASK, lot, engine=name)
    start, seconds = model_vector(model), []
    for r in range(rounds):
        begin = time.process_time()
        engine.train(Job(cohort(r), start, start, LocalWork(RATE, 1, BATCH), 0, r))
        seconds.append(time.process_time() - begin)
    return float(np.median(seconds))


def main():
    torch.set_num_threads(1)
    lot, _ = make_data()
    print(f"{'hidden':>6} {'plain':>8} {'kernel':>8} {'ratio':>7} {'batched':>8} {'ratio':>7}")
    for hidden in map(int, sys.argv[1:] or ("16", "64", "128")):
        plain_round(hidden, 2)
        plain = plain_round(hidden)
        kernel, batched = (engine_round(name, lot, hidden) for name in ("kernel", "batched"))
        print(
            f"{hidden:6} {plain:8.2f} {kernel:8.3f} {plain / kernel:6.1f}x {batched:8.3f} "
            f"{plain / batched:6.1f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
