"""CPU seconds of a federated round: ours, a plain loop, pfl and Flower's simulation, in one run.

    python -m benchmarks.federated.speed [--pfl PYTHON] [--flower PYTHON] [--hidden 16 64 128]

The job is in `job.py`. Every line is a process of its own with one thread, started here one after
another on the same data. PYTHON is the interpreter of an environment with that peer; without it
the peer's lines are left out. Flower's CPU and memory are those of its whole process tree.
Flower is measured at 16 and 64, since its cost does not depend on the network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.federated.job import CLIENTS, STEPS, WINDOWS, make_data

PEERS = Path(__file__).parent / "peers"
ROUNDS = {"plain": 3, "kernel": 12, "batched": 4, "pfl": 4, "Flower": 4}
GOALS = {
    "kernel": {16: 40.0, 64: 10.0, 128: 4.5},
    "batched": {16: 8.0, 64: 2.4, 128: 1.5},
    "Flower": {16: 100.0, 64: 25.0},
}


def child(command):
    """The figures that one process prints last."""
    environment = os.environ | {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def ours(what, engine, hidden, folder, rounds):
    """One of our own processes."""
    module = "benchmarks.federated.ours"
    return child([sys.executable, "-m", module, what, engine, str(hidden), folder, str(rounds)])


def job(system, hidden, folder, given):
    """One line of the table, or None where its environment was not named."""
    count = ROUNDS[system]
    if system in ("kernel", "batched"):
        return ours("rounds", system, hidden, folder, count)
    python = {"plain": sys.executable, "pfl": given.pfl, "Flower": given.flower}[system]
    if not python or (system == "Flower" and hidden > 64):
        return None
    script = PEERS / f"{system.lower()}_job.py"
    return child([python, str(script), folder, str(hidden), str(count)])


def verdict(goal):
    """How a line of goals ends."""
    return "met" if goal else "MISSED"


def compare(hidden, folder, given):
    """The lines of one width, and what was asked of them."""
    rows = {}
    for system in ROUNDS:
        row = job(system, hidden, folder, given)
        if row is None:
            continue
        rows[system] = row
        times = rows["plain"]["seconds"] / row["seconds"]
        print(
            f"{hidden:6} {system:8} {row['seconds']:9.3f} {times:8.1f}x {row['first']:9.2f} "
            f"{row['memory']:8.0f} {row['accuracy']:9.3f} {row['rounds']:7}",
            flush=True,
        )
    lines = []
    for engine in ("kernel", "batched"):
        found, goal = rows["plain"]["seconds"] / rows[engine]["seconds"], GOALS[engine][hidden]
        lines.append((f"{engine} over plain, {hidden}", f"{found:.1f}x", f"{goal}x", found >= goal))
    if "Flower" in rows:
        found = rows["Flower"]["seconds"] / rows["kernel"]["seconds"]
        goal = GOALS["Flower"][hidden]
        lines.append((f"kernel over Flower, {hidden}", f"{found:.0f}x", f"{goal}x", found >= goal))
    if "pfl" in rows:
        for engine in ("kernel", "batched"):
            found = rows["pfl"]["seconds"] / rows[engine]["seconds"]
            lines.append((f"{engine} over pfl, {hidden}", f"{found:.1f}x", "1x", found >= 1))
    if hidden == 16:
        first, memory = rows["kernel"]["first"], rows["kernel"]["memory"]
        lines.append(("start to first round, 16", f"{first:.2f} s", "2 s", first <= 2))
        lines.append(("peak memory, 16", f"{memory:.0f} MB", "500 MB", memory <= 500))
    return lines


def around(folder):
    """Ragged clients, the framework around the engine, memory over many rounds."""
    lines = []
    for engine in ("kernel", "batched"):
        row = ours("ragged", engine, 64, folder, 3)
        found, (least, middle, most) = row["uneven"] / row["even"], row["windows"]
        name = f"{engine}, clients of {least} to {most} windows (median {middle})"
        lines.append((name, f"{found:.2f}x", "1.5x", found <= 1.5))
    for hidden in (8, 64):
        row = ours("lstm", "batched", hidden, folder, 3)
        found = row["loop"] / row["batched"]
        met = row["auto"] == ("batched" if found >= 1 else "loop")
        name = f"batched LSTM over our own loop, {hidden}; auto takes {row['auto']}"
        lines.append((name, f"{found:.1f}x", "faster", met))
    row = ours("overhead", "kernel", 64, folder, 12)
    found = (row["whole"] + row["ledger"]) / row["engine"] - 1.0
    lines.append(("framework around the engine, 64", f"{found:.1%}", "15 %", found <= 0.15))
    for clients in (200, 1000, 5000):
        row = ours("cohort", "kernel", 128, folder, clients)
        name = f"one round of {clients}, 128: peak memory, deltas alone {row['deltas']:.0f} MB"
        lines.append((name, f"{row['growth']:.0f} MB", "128 MB", row["growth"] <= 128))
    row = ours("flat", "kernel", 16, folder, 200)
    found = row["late"] / row["early"] - 1.0
    lines.append(("memory, round 20 to 200", f"{found:+.2%}", "1 %", found <= 0.01))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfl", default=os.environ.get("SEQUESTER_PFL_PYTHON", ""))
    parser.add_argument("--flower", default=os.environ.get("SEQUESTER_FLOWER_PYTHON", ""))
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 64, 128])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lot, test = make_data()
        np.save(Path(folder, "x.npy"), lot.x.numpy().reshape(CLIENTS, WINDOWS, STEPS, -1))
        np.save(Path(folder, "y.npy"), lot.target.numpy().reshape(CLIENTS, WINDOWS))
        np.save(Path(folder, "tx.npy"), test[0])
        np.save(Path(folder, "ty.npy"), test[1])
        print("hidden system   CPU s/round  x plain   first s  peak MB  accuracy  rounds")
        lines = [line for hidden in given.hidden for line in compare(hidden, folder, given)]
        lines += around(folder)
    print(f"\n{'':58} {'found':>9} {'goal':>8}")
    for name, found, goal, met in lines:
        print(f"{name:58} {found:>9} {goal:>8}  {verdict(met)}")


if __name__ == "__main__":
    main()
