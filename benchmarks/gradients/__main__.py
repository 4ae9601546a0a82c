"""`python -m benchmarks.gradients`: one table of private steps, beside their peers and limits.

Each row is a process of its own; all rows of a workload are alive together and take their steps
in turn, so that the ratio of two rows is a median over pairs of neighbours in time. Times are
CPU time of one thread and wall time of two. Every row's gradient is compared with a float64
loop over people.

    --workloads W1 W4    some of the workloads
    --rows native pure   some of the rows
    --rounds 5           steps of each row
    --threads 1          1, 2 or both
    --people 64          people in the lot

Peers run in their own environments: SEQUESTER_PEER_OPACUS and SEQUESTER_PEER_JAX name their
interpreters. A peer without one is printed as not run.
"""

import argparse
import contextlib
import os
import platform
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.gradients.lots import lot, reference
from benchmarks.gradients.networks import network
from benchmarks.gradients.process import ROWS, Process
from benchmarks.gradients.workloads import CLIP

GOALS = {  # (threads, row, workload): ratio to native
    (1, "pure"): {"W1": 0.70, "W2": 0.80, "W3": 0.72, "W4": 0.75},
    (1, "compiled"): {"W1": 0.58, "W2": 0.80, "W3": 0.72, "W4": 0.75},
    (2, "pure"): {"W1": 0.75, "W2": 0.72, "W3": 0.70, "W4": 0.75},
    (2, "compiled"): {"W1": 0.52, "W2": 0.72, "W3": 0.70, "W4": 0.75},
}
MEMORY = {"W1": 150, "W2": 250, "W3": 200, "W4": 150}
SLOW = {"opacus"}  # one step in three rounds is enough


def save_weights(workload, folder):
    """The first weights, for other libraries."""
    weights = {k: v.numpy() for k, v in network(workload).state_dict().items()}
    np.savez(folder / f"{workload}-weights.npz", **weights)


def truths(workload, people):
    """The float64 loop's gradients."""
    chosen = lot(workload, people)
    return {
        "clipped": reference(network(workload), chosen, CLIP[workload]),
        "plain": reference(network(workload), chosen, None),
    }


def error(file, truth):
    """Error of the whole gradient relative to its norm."""
    found = np.load(file)
    if set(found) != set(truth):
        return float("nan")
    square = sum(float(np.square(found[k] - truth[k]).sum()) for k in truth)
    return (square / sum(float(np.square(v).sum()) for v in truth.values())) ** 0.5


def measure(workload, threads, options, folder):
    """Steps of all rows in turn; returns their processes, with times in them."""
    with contextlib.ExitStack() as stack:
        rows = [Process(name, workload, threads, options.people, folder) for name in options.rows]
        for row in rows:
            stack.enter_context(row)
        alive = [row for row in rows if row.alive]
        for row in alive:
            row.first = row.ask("step")["wall"]
        for number in range(options.rounds + 1):
            for row in alive:
                if number == 0 or row.name not in SLOW or number % 3 == 1:
                    row.times.append(row.ask("step"))
        for row in alive:
            del row.times[0]
            row.extra = row.ask("memory")["extra_mb"]
            if threads == 1:
                row.file = folder / f"{workload}-{row.name}.npz"
                row.ask(f"check {row.file}")
    return rows


def ratio(row, base, key):
    """Median over rounds of this row's time over the native row's in the same round."""
    every = 3 if row.name in SLOW else 1
    native = base.times[::every] if every > 1 else base.times
    return statistics.median(a[key] / b[key] for a, b in zip(row.times, native, strict=False))


def show(workload, threads, rows, truth):
    key = "cpu" if threads == 1 else "wall"
    base = next((row for row in rows if row.name == "native" and row.alive), None)
    for row in rows:
        if not row.alive:
            print(f"| {workload} | {threads} | {row.title} | not run: {row.note} | | | | | |")
            continue
        took = statistics.median(t[key] for t in row.times)
        share = ratio(row, base, key) if base and row.times else float("nan")
        goal = GOALS.get((threads, row.name), {}).get(workload)
        met = "" if goal is None else f"≤ {goal:.2f} {'met' if share <= goal else 'MISSED'}"
        extra = f"{row.extra}"
        if goal is not None:
            extra += (
                f" (≤ {MEMORY[workload]} {'met' if row.extra <= MEMORY[workload] else 'MISSED'})"
            )
        wrong = ""
        if threads == 1 and row.name != "floor":
            plain = row.name in ("native", "tricks")
            wrong = f"{error(row.file, truth['plain' if plain else 'clipped']):.1e}"
        print(
            f"| {workload} | {threads} | {row.title} | {took:.0f} | {share:.2f} | {met} | {extra} "
            f"| {row.first:.0f} | {wrong} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2", "W3", "W4"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--people", type=int, default=64)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"torch {torch.__version__}; {options.people} people in a lot")  # fmt: skip
    print("| | threads | row | ms a step (1: CPU, 2: wall) | × native | goal | extra MB "
          "| first step, ms | error |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for workload in options.workloads:
            save_weights(workload, folder)
            truth = truths(workload, options.people) if 1 in options.threads else {}
            for threads in options.threads:
                show(workload, threads, measure(workload, threads, options, folder), truth)


if __name__ == "__main__":
    main()
