"""What a round between machines costs, and that memory stays flat.

    python -m benchmarks.federated.network.cost                  # our part, in one process
    python -m benchmarks.federated.network.cost --processes      # a process for each site
    python -m benchmarks.federated.network.cost --flower 10      # ten rounds on real Flower
    python -m benchmarks.federated.network.cost --flower 2 --secure

All of them train three sites of 200 simulated people each, who are all asked in every round. The
first runs 200 rounds and prints seconds a round beside the simulator's on the same people in the
same run, and resident memory after 20 and after 200 rounds. The second does so with the server and
each node in a process of its own, over sockets. The third starts a SuperLink and three SuperNodes;
with `--secure` the sites' sums are masked, and people drawn by coins.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import tempfile
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from tests.federated.flower.deployment import Deployment
from tests.federated.network.proxy import SocketNode, Sockets
from tests.federated.network.world import SITES, make_study, run, write_sites

from sequester.federated.flower.new import write_app
from sequester.federated.network.node import Node
from sequester.federated.network.run import Terms, serve
from sequester.federated.run import federate
from sequester.training.study import Study

ROUNDS, PEOPLE = 200, 200


def resident(process: int | None = None) -> float:
    """MiB of a process, of this one by default."""
    pages = Path(f"/proc/{process or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


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


def serving(folder: Path) -> float:
    """MiB of the process that runs our rounds, which holds the run folder open; NaN without one."""
    for entry in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for handle in entry.iterdir():
                with contextlib.suppress(OSError):
                    if Path(os.readlink(handle)).is_relative_to(folder / "run"):
                        return resident(int(entry.parent.name))
    return float("nan")


def flower(rounds: int, *, secure: bool) -> None:
    """Real processes: seconds a round, and what the long-lived ones hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = study_of(sites(folder), rounds, secure=secure)
        write_app(study, folder / "app", run=folder / "run", sites=3)
        notes = folder / "run" / "private" / "rounds.jsonl"
        with Deployment(folder) as deployed:
            deployed.link()
            for site in SITES:
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
                        | {"our server": serving(folder)}
                    )
                if time.monotonic() - began > 300 + 60 * rounds:
                    raise SystemExit(f"not within {300 + 60 * rounds} s")
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
                f"{what:10} {held[0][what]:.1f} MiB after round 1, {held[-1][what]:.1f} after all; "
                f"{slope([one[what] for one in held[len(held) // 3 :]]):+.1f} KiB a round over the "
                "last two thirds"
            )


def slope(held: list[float]) -> float:
    """KiB a round, by least squares through what was held after each one."""
    at = np.arange(len(held))[np.isfinite(held)]
    return 1024 * float(np.polyfit(at, np.array(held)[at], 1)[0]) if len(at) > 1 else 0.0


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
