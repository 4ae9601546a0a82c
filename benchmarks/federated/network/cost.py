"""What a round between machines costs, and that memory stays flat.

    python -m benchmarks.federated.network.cost                  # our part, in one process
    python -m benchmarks.federated.network.cost --flower 10      # ten rounds on real Flower
    python -m benchmarks.federated.network.cost --flower 2 --secure

The first part runs 200 rounds of three sites with 200 people each, all of them clients, and prints
seconds a round beside the simulator's on the same people in the same run, bytes, and resident
memory after 20 and after 200 rounds. The second starts a SuperLink and three SuperNodes.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tests.federated.flower import randhie
from tests.federated.flower.deployment import Deployment
from tests.federated.network.world import make_study, run, write_sites

from sequester.federated.flower.new import write_app
from sequester.federated.run import federate

ROUNDS, PEOPLE = 200, 200


def resident(process: int | None = None) -> float:
    """MiB of a process, of this one by default."""
    pages = Path(f"/proc/{process or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def pure() -> None:
    """Our part alone: frames, nodes, policy, ledger, disk, gate, noise."""
    with tempfile.TemporaryDirectory() as name:
        data = write_sites(Path(name) / "data", people=PEOPLE, records=9)
        changes = {
            "data": {"population": 3 * PEOPLE, "holdout": {"share": 0.001}},
            "training": {"steps": ROUNDS, "sampling_rate": 1.0},
            "privacy": {"noise_multiplier": 8.0},
            "model": {"options": {"hidden": 16}},
        }
        study = make_study(
            data, {"placement": "cross-device", "local_learning_rate": 0.01}, **changes
        )
        at: dict[int, tuple[float, float]] = {}

        def watch(number: int, outcome: object) -> None:
            at[number] = (resident(), time.process_time())

        served = run(data, Path(name) / "run", study, watch=watch)
        sent = served.folder.private / "rounds.jsonl"
        print(sent.read_text().splitlines()[-1])
        ours = (at[ROUNDS - 1][1] - at[19][1]) / (ROUNDS - 20)
        began: list[float] = []
        federate(study, out=Path(name) / "twin", watch=lambda *_: began.append(time.process_time()))
        theirs = (began[-1] - began[19]) / (ROUNDS - 20)
        print(
            f"{3 * PEOPLE} clients at 3 sites: {1000 * ours:.1f} CPU ms a round, simulator "
            f"{1000 * theirs:.1f}, ratio {ours / theirs:.2f}"
        )
        first, last = at[19][0], at[ROUNDS - 1][0]
        print(
            f"resident after 20 rounds {first:.1f} MiB, after {ROUNDS} {last:.1f} MiB: "
            f"{100 * (last / first - 1):+.2f} %"
        )


def flower(rounds: int, *, secure: bool) -> None:
    """Real processes: seconds a round, and what the long-lived ones hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = randhie.write_sites(folder / "data")
        extra = {"secagg": {"dropout": 0.34}} if secure else {}
        study = randhie.make_study(folder / "data", rounds=rounds, **extra)
        write_app(study, folder / "app", run=folder / "run", sites=3)
        notes = folder / "run" / "private" / "rounds.jsonl"
        with Deployment(folder) as deployed:
            deployed.link()
            for site in names:
                deployed.node(site, folder / "data" / site / "people.csv")
            began = time.monotonic()
            deployed.flwr("run", str(folder / "app"))
            ends: list[float] = []
            held: list[dict[str, float]] = []
            while not (folder / "run" / "claim.json").exists():
                done = len(notes.read_text().splitlines()) if notes.exists() else 0
                if done > len(ends):
                    ends.append(time.monotonic() - began)
                    held.append(
                        {
                            what: resident(process.pid)
                            for what, process in deployed.processes.items()
                        }
                    )
                if time.monotonic() - began > 900:
                    raise SystemExit("not within 900 s")
                time.sleep(0.1)
            over = time.monotonic() - began
        steps = sorted(b - a for a, b in pairwise(ends))
        print(
            f"submit, enrol and round 1: {ends[0]:.1f} s; a round: median "
            f"{steps[len(steps) // 2]:.1f} s ({steps[0]:.1f} to {steps[-1]:.1f}); all of "
            f"{rounds}: {over:.1f} s"
        )
        for what in held[0]:
            print(
                f"{what:10} {held[0][what]:.0f} MiB after round 1, {held[-1][what]:.0f} at the end"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--secure", action="store_true", help="with secure sums")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.flower:
        flower(given.flower, secure=given.secure)
    else:
        pure()
