"""A server that SIGKILL ends at one point of a round after the other: nothing is unwound."""

from __future__ import annotations

import functools
import hashlib
import os
import signal
from collections import Counter
from pathlib import Path

from sequester.federated import simulate
from sequester.federated.network.run import Terms, serve
from sequester.federated.network.server import Network
from sequester.federated.simulate import Simulation
from tests.federated.network.proxy import Sockets
from tests.federated.network.world import make_study

POINTS = {
    "reserved, nobody was asked": (Network, "answer", "before"),
    "asked, no answer is in the sum": (Simulation, "add", "before"),
    "one answer is in the sum": (Simulation, "add", "after"),
    "summed, not sealed": (Simulation, "aggregate", "after"),
    "sealed, no noise was drawn": (Simulation, "seal", "after"),
    "released, not committed": (Simulation, "release", "after"),
    "committed, not saved": (Simulation, "commit", "after"),
    "saved": (Simulation, "save", "after"),
}
"""Where a server dies: in round 0 at the first, in round 1 at the second, and so on."""
SEALED = 4
"""From this point on the successor finishes the dead server's sum; before, it collects anew."""
TWICE = {"released, not committed", "committed, not saved"}
"""Deaths after which the successor draws the noise once more, for the same sum."""


def live(data: Path, run: Path, ports: dict[int, int]) -> None:
    """Serve until the next death, or to the end."""
    haunt(run.parent)
    study = make_study(data, training={"steps": len(POINTS)})
    terms = Terms(3, least=len(ports), round_seconds=120.0, wait_seconds=120.0)
    serve(study, run, Sockets(ports), terms)


def haunt(folder: Path) -> None:
    """Let this process die at the point after those that `folder` says others died at."""
    record(folder / "noise")
    number = len(deaths(folder))
    if number == len(POINTS):
        return
    point, (owner, method, when) = list(POINTS.items())[number]
    real = getattr(owner, method)

    def die() -> None:
        with (folder / "deaths").open("a") as handle:
            handle.write(point + "\n")
        os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(real)
    def mortal(self, *args):
        due = number == (self.round if isinstance(self, Network) else self.next_round)
        if due and when == "before":
            die()
        result = real(self, *args)
        if due:
            die()
        return result

    setattr(owner, method, mortal)


def deaths(folder: Path) -> list[str]:
    """Points at which a server died."""
    file = folder / "deaths"
    return file.read_text().splitlines() if file.exists() else []


def record(file: Path) -> None:
    """Write down every sum that meets noise, before it does."""
    real = simulate.release_sum

    def release_sum(sealed, *, plan, stream, step, clip):
        with file.open("a") as handle:
            handle.write(f"{step} {hashlib.sha256(sealed.total.tobytes()).hexdigest()}\n")
        return real(sealed, plan=plan, stream=stream, step=step, clip=clip)

    simulate.release_sum = release_sum


def check_noise(folder: Path) -> None:
    """A round's noise met one sum, however often the servers that drew it died."""
    lines = (folder / "noise").read_text().splitlines()
    sums = {tuple(line.split()) for line in lines}
    assert sorted(int(number) for number, _ in sums) == list(range(len(POINTS)))
    draws = Counter(int(line.split()[0]) for line in lines)
    assert {point for number, point in enumerate(POINTS) if draws[number] > 1} == TWICE
