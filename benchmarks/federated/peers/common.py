"""What every system of the speed table shares: the data, the network, clocks and memory.

Imported by scripts that run in a peer's own environment, so only numpy and torch are needed here.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

BATCH, RATE, COHORT = 8, 0.1, 100
TICK = os.sysconf("SC_CLK_TCK")


class Net(nn.Module):
    """The network of the job, as anybody would write it."""

    def __init__(self, hidden):
        super().__init__()
        self.gru = nn.GRU(6, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 6)

    def forward(self, x):
        _, h = self.gru(x)
        return self.fc(h[-1])


def make_net(hidden):
    """The same first weights in every system."""
    torch.manual_seed(0)
    return Net(hidden)


def read(path, *, lazily=False):
    """x (clients, windows, steps, 6), y (clients, windows), and the balanced test set."""
    mode = "r" if lazily else None
    return tuple(
        np.load(Path(path) / f"{name}.npy", mmap_mode=mode) for name in ("x", "y", "tx", "ty")
    )


def cohort(r, clients):
    """The clients of round `r`."""
    return np.sort(np.random.default_rng(10_000 + r).choice(clients, COHORT, replace=False))


def local_train(net, x, y):
    """One local epoch of plain SGD."""
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    order = torch.randperm(len(y))
    for at in range(0, len(y), BATCH):
        rows = order[at : at + BATCH]
        optimiser.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


@torch.no_grad()
def accuracy(net, tx, ty):
    """Share of the test set that is right."""
    return float((net(torch.from_numpy(np.array(tx))).argmax(1).numpy() == ty).mean())


def tree():
    """This process and all its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
        except (OSError, ValueError, IndexError):
            continue
    found, ahead = [], [os.getpid()]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu():
    """CPU seconds of the tree so far, of children that ended too."""
    total = 0.0
    for pid in tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15])) / TICK
        except (OSError, IndexError):
            continue
    return total


def memory():
    """Proportional set size of the tree now, in MB."""
    total = 0
    for pid in tree():
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(rollup.split("\nPss:")[1].split()[0])
        except (OSError, IndexError):
            continue
    return total / 1024


def peak():
    """Largest resident set of this process, MB (what getrusage says is its parent's at first)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("\nVmHWM:")[1].split()[0]) / 1024


class Clock:
    """CPU seconds of each round, and the peak of memory at their ends."""

    def __init__(self, *, whole_tree=False):
        self.whole_tree = whole_tree
        self.started = time.perf_counter()
        self.first = 0.0
        self.rounds = []
        self.peak = 0.0
        self._at = self._now()

    def _now(self):
        return cpu() if self.whole_tree else time.process_time()

    def lap(self):
        """A round ended."""
        now = self._now()
        self.rounds.append(now - self._at)
        if len(self.rounds) == 1:
            self.first = time.perf_counter() - self.started
        if self.whole_tree:
            self.peak = max(self.peak, memory())
        else:
            self.peak = peak()
        self._at = self._now()

    def report(self, **more):
        """One JSON line on standard output."""
        steady = self.rounds[1:] or self.rounds
        fields = {
            "seconds": float(np.median(steady)),
            "first": self.first,
            "memory": self.peak,
            "rounds": len(self.rounds),
        }
        print(json.dumps(fields | more), flush=True)
