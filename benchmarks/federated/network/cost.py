"""What a round between machines costs, and that memory stays flat.

    python -m benchmarks.federated.network.cost                  # our part, in one process
    python -m benchmarks.federated.network.cost --processes      # a process for each site
    python -m benchmarks.federated.network.cost --flower 10      # ten rounds on real Flower
    python -m benchmarks.federated.network.cost --flower 2 --secure

All of them train three sites of 200 simulated people each, who are all asked in every round. The
first runs 200 rounds and prints seconds a round beside the simulator's on the same people in the
same run, and resident memory after 20 and after 200 rounds. The second does so with the server and
each node in a process of its own, over sockets. The third starts a SuperLink and three SuperNodes,
and says what each kind of process held, those included that Flower starts for a message; with
`--secure` the sites' sums are masked, and people drawn by coins.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

from tests.federated.flower.deployment import Deployment
from tests.federated.network.proxy import SocketNode, Sockets
from tests.federated.network.world import SITES, make_study, run, write_sites

from benchmarks.federated.network.watching import Watch, resident
from sequester.federated.flower.new import write_app
from sequester.federated.network.node import Node
from sequester.federated.network.run import Terms, serve
from sequester.federated.run import federate
from sequester.training.study import Study

ROUNDS, PEOPLE = 200, 200


def sites(folder: Path) -> Path:
    """Files of the three sites."""
    return write_sites(folder / "data", people=PEOPLE, records=9)


def study_of(data: Path, rounds: int, *, secure: bool = False) -> Study:
    """A study of them."""
    changes = {
        "data": {"population": 3 * PEOPLE, "holdout": {"share": 0.001}},
        "training": {"steps": rounds, "sampling_rate": 0.5 if secure else 1.0},
        "privacy": {"noise_multiplier": 8.0},
        "model": {"options": {"hidden": 16}},
    }
    people = {"placement": "cross-device", "local_learning_rate": 0.01}
    return make_study(data, {"secagg": {"dropout": 0.34}} if secure else people, **changes)


def growth(whose: str, first: float, last: float) -> None:
    print(
        f"{whose}: resident after 20 rounds {first:.1f} MiB, after {ROUNDS} {last:.1f} MiB: "
        f"{100 * (last / first - 1):+.2f} %"
    )


def pure() -> None:
    """Our part alone: frames, nodes, policy, ledger, disk, gate, noise."""
    with tempfile.TemporaryDirectory() as name:
        data = sites(Path(name))
        study = study_of(data, ROUNDS)
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
        growth("server and nodes in one process", at[19][0], at[ROUNDS - 1][0])


def node(site: str, data: Path, folder: Path, port: Connection) -> None:
    """A site's process: answers until it is killed."""
    made = SocketNode(Node(site, data / site / "people.csv", folder / site))
    port.send(made.listener.port)
    made.listener.main.join()


def processes() -> None:
    """The server in this process, each node in its own; frames over sockets."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        data, started, ports = sites(Path(name)), {}, {}
        for number, site in enumerate(SITES, start=101):
            ours, theirs = spawn.Pipe()
            started[site] = spawn.Process(
                target=node, args=(site, data, Path(name) / "nodes", theirs), daemon=True
            )
            started[site].start()
            ports[number] = ours.recv()
        held: dict[int, dict[str, float]] = {}

        def watch(number: int, outcome: object) -> None:
            if number in (19, ROUNDS - 1):
                each = {f"node {site}": resident(made.pid) for site, made in started.items()}
                held[number] = {"server": resident(), **each}

        try:
            terms = Terms(sites=len(SITES), round_seconds=60.0)
            serve(study_of(data, ROUNDS), Path(name) / "run", Sockets(ports), terms, watch=watch)
        finally:
            for made in started.values():
                made.terminate()
                made.join()
        for whose, first in held[19].items():
            growth(whose, first, held[ROUNDS - 1][whose])


def flower(rounds: int, *, secure: bool) -> None:
    """Real processes: seconds a round, and what each of them holds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = study_of(sites(folder), rounds, secure=secure)
        write_app(study, folder / "app", run=folder / "run", sites=3)
        notes = folder / "run" / "private" / "rounds.jsonl"
        with Deployment(folder) as deployed:
            deployed.link()
            for site in SITES:
                deployed.node(site, folder / "data" / site / "people.csv")
            watch = Watch({what: process.pid for what, process in deployed.processes.items()})
            began = time.monotonic()
            deployed.flwr("run", str(folder / "app"))
            ends: list[float] = []
            while not (folder / "run" / "claim.json").exists():
                watch.look()
                done = len(notes.read_text().splitlines()) if notes.exists() else 0
                if done > len(ends):
                    ends.append(time.monotonic() - began)
                    watch.over()
                    load = os.getloadavg()[0]
                    print(f"round {len(ends)}: {ends[-1]:.0f} s, load {load:.0f}", file=sys.stderr)
                if time.monotonic() - began > 300 + 60 * rounds:
                    raise SystemExit(f"not within {300 + 60 * rounds} s")
                time.sleep(0.2)
            over = time.monotonic() - began
        steps = sorted(b - a for a, b in pairwise(ends))
        print(
            f"submit, enrol and round 1: {ends[0]:.1f} s; a round: median "
            f"{steps[len(steps) // 2]:.1f} s ({steps[0]:.1f} to {steps[-1]:.1f}); all of "
            f"{rounds}: {over:.1f} s"
        )
        print(*watch.told(), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--processes", action="store_true", help="server and nodes on their own")
    parser.add_argument("--secure", action="store_true", help="with secure sums")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.flower:
        flower(given.flower, secure=given.secure)
    elif given.processes:
        processes()
    else:
        pure()
