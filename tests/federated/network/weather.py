"""What a server does in a storm, across its deaths, and what must be true of it afterwards."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from sequester import accounting
from sequester.core.errors import SequesterError, UsageError
from sequester.federated import checkpoint, simulate
from sequester.federated.checkpoint import FileStore
from sequester.federated.network import frames
from sequester.federated.network.enrol import Finder
from sequester.federated.network.frames import Refused, Release
from sequester.federated.network.memory import Memory
from sequester.federated.network.node import Node
from sequester.federated.network.opening import Opening
from sequester.federated.network.permit import Permit, status_of
from sequester.federated.network.run import Terms, serve
from sequester.federated.network.server import Network
from sequester.federated.noise import SiteSum
from sequester.ledger import Ledger, Reservation
from sequester.training.folder import RunFolder
from tests.federated.network.storm import Storm
from tests.federated.network.world import SITES, Killed

TERMS = Terms(sites=3, least=1, round_seconds=10.0, wait_seconds=60.0)
AT_NODE = (
    (Permit, "charge"),
    (Reservation, "begin"),
    (Memory, "agree"),
    (Memory, "close"),
    (Reservation, "void"),
)
POINTS = ("reserve", "answers", "aggregate", "seal", "release", "commit", "save", "finish")
OPENING = ("may hold", "holds", "ends", "frees")


@dataclass
class Book:
    """What the server did, across its deaths.

    Attributes:
        noised: Sums that met the noise of a round, by round.
        members: Run, and sites in the sum of a round, by the sum.
        abandoned: Rounds whose sum would have been empty.
    """

    noised: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    members: dict[tuple[int, bytes], tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    abandoned: set[int] = field(default_factory=set)


def weather(storm: Storm, book: Book, patch) -> None:
    """Record every draw of noise, and let the server die where the seed says."""
    deaths = {
        (POINTS[int(storm.draw.integers(0, len(POINTS)))], int(storm.draw.integers(0, 3)))
        for _ in range(int(storm.draw.integers(0, 8 if storm.server_set_back else 4)))
    }

    for point in OPENING:
        if storm.chance(0.1):
            deaths.add((point, int(storm.draw.integers(0, 2))))

    def dies(point: str, number: int) -> None:
        if (point, number) in deaths:
            deaths.discard((point, number))
            storm.seen.append(f"server died at {point}")
            raise Killed

    real_release = simulate.release_sum

    def release_sum(sealed, *, plan, stream, step, clip):
        digest = hashlib.sha256(sealed.total.tobytes()).digest()
        book.noised[step].add(digest)
        return real_release(sealed, plan=plan, stream=stream, step=step, clip=clip)

    patch.setattr(simulate, "release_sum", release_sum)
    real_save = FileStore.save

    def save(self, simulation):
        kept = (self.folder / checkpoint._STATE).exists()
        before = self._read(checkpoint._STATE)[1].abandoned if kept else 0
        if simulation.abandoned > before:  # than where the server is now, set back or not
            book.abandoned.add(simulation.next_round - 1)
        return real_save(self, simulation)

    patch.setattr(FileStore, "save", save)
    simulation = simulate.Simulation

    def wrap(owner, name: str, before: str | None, after: str | None) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def wrapped(self, *args, **more):
            number = self.next_round if isinstance(self, simulation) else args[0].next_round
            if before:
                dies(before, number)
            result = real(self, *args, **more)
            if after:
                dies(after, number)
            return result

        patch.setattr(owner, name, wrapped)

    wrap(simulation, "aggregate", None, "aggregate")
    wrap(FileStore, "seal", None, "seal")
    wrap(simulation, "release", None, "release")
    wrap(simulation, "commit", None, "commit")
    wrap(FileStore, "save", "save", None)
    real_answer = Network.answer

    def answer(self, instructions, state, clip):
        number = self.round
        dies("reserve", number)
        for event in real_answer(self, instructions, state, clip):
            yield event
            dies("answers", number)

    patch.setattr(Network, "answer", answer)
    real_settle = Network.settle

    def settle(self, number, clients):
        if self.set_back:
            assert storm.set_back, "an honest server was taken for one that was set back"
            storm.seen.append("set back, and told so")
        real_settle(self, number, clients)
        storm.members = (number, tuple(clients))

    patch.setattr(Network, "settle", settle)
    real_sum = SiteSum.__init__

    def begin_sum(self, size, grid):
        storm.grid = grid
        real_sum(self, size, grid)

    patch.setattr(SiteSum, "__init__", begin_sum)
    real_seal = FileStore.seal

    def seal(self, simulation, sealed):
        digest = hashlib.sha256(sealed.total.tobytes()).digest()
        book.members[simulation.next_round, digest] = (simulation.run, storm.members[1])
        storm.totals = getattr(storm, "totals", {})
        storm.totals[digest] = sealed.total.copy()
        return real_seal(self, simulation, sealed)

    patch.setattr(FileStore, "seal", seal)
    real_finish = Network.finish

    def finish(self, rounds, seconds):
        settled = real_finish(self, rounds, seconds)
        dies("finish", 0)
        return settled

    patch.setattr(Network, "finish", finish)
    opens(dies, patch)
    for owner, name in AT_NODE:
        storm.kill(owner, name, patch)
    cached = functools.lru_cache(maxsize=64)(accounting.epsilon)
    patch.setattr(accounting, "epsilon", cached)


def opens(dies, patch) -> None:
    """Let the server die around its notes that sites may be charged, and that a run ended."""
    real_save, real_release = Opening.save, Finder.release

    def save(self, folder):
        point = "may hold" if self.holding else "ends"
        dies(point, 0)
        real_save(self, folder)
        dies(point, 1)

    def release(self, runs, seconds, nodes=None):
        dies("frees", 0)
        real_release(self, runs, seconds, nodes)
        dies("frees", 1)

    patch.setattr(Opening, "save", save)
    patch.setattr(Finder, "release", release)
    real_keep, kept = Finder.keep, []

    def keep(self, site, node):
        real_keep(self, site, node)
        kept.append(site)
        dies("holds", len(kept) % 2)

    patch.setattr(Finder, "keep", keep)


def survive(storm: Storm, study, path: Path, patch) -> Book:
    """Run the study through the storm, starting the server again whenever it died."""
    book = Book()
    weather(storm, book, patch)
    for _ in range(100):
        storm.restore(path)
        storm.silent.clear()
        try:
            serve(study, path, storm.wire, TERMS)
        except Killed:
            continue
        except UsageError as refusal:
            if refusal.code != 644:  # too few came back in time: the operator tries again
                raise
            ended = Opening.load(RunFolder(path)).ended
            storm.seen.append("a run ended" if ended else "too few sites")
            continue
        except SequesterError as ended:
            if ended.code != 629:
                raise
            storm.over = True  # no round had an answer that could be used
        return book
    raise AssertionError("the server died too often")


def check(storm: Storm, book: Book, rounds: int) -> None:
    """What must be true, whatever happened."""
    done = set(book.noised) | book.abandoned
    assert done == set(range(rounds))
    again: Counter[int] = Counter()
    for number, sums in book.noised.items():
        # Each round's noise met one sum and no other; of a server that was set back, another draw.
        assert len(sums) <= 1 + storm.set_back, f"round {number}: noise on {len(sums)} sums"
        uses: Counter[int] = Counter()
        for digest in sums:
            run, members = book.members[number, digest]
            uses.update(members)
            # It is the exact sum of the members' true answers, each of them once, in grid steps.
            total = np.zeros(len(storm.totals[digest]), dtype=np.int64)
            for place in members:
                answers = storm.honest[SITES[place], run, number]
                assert len(answers) == 1, "a site gave two answers to one round"
                answer = np.frombuffer(next(iter(answers)), dtype=np.float64)[: len(total)]
                total += np.rint(answer / storm.grid).astype(np.int64)
            assert np.array_equal(total * storm.grid, storm.totals[digest])
        again.update({place: count - 1 for place, count in uses.items()})
    # Whose round is released once more than is charged: at most one round each time.
    assert all(count <= storm.set_back for count in again.values())
    for site in SITES:
        charged(storm, site, rounds)


def charged(storm: Storm, site: str, rounds: int) -> None:
    """A run that trained here is charged for all its rounds, and one that did not for none."""
    folder = storm.state / site
    if not (folder / "ledger.db").exists():
        return
    node = Node(site, storm.data / site / "people.csv", folder)
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        ledger.verify()
        runs = [row.key.removeprefix("run:") for row in ledger.rows() if row.kind == "reserve"]
    for run in runs:
        trained = {number for name, of, number in storm.honest if (name, of) == (site, run)}
        # Whoever is out of reach when a run ends hears of it later.
        asked = frames.seal(Release(run, (run,), "r"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Storm, "chance", lambda *_: False)
            header, _ = frames.unseal(node.answer(asked), lambda _: "")
        status, last = status_of(folder, run), Memory(folder, run).answered()
        if not trained:
            # Unless an end came that named rounds; or a kill, when its first round was on its way.
            assert status in ("void", "begun") or last.ran, (site, run, status)
        elif site not in storm.aged:
            assert isinstance(header, Refused)
            assert status in ("begun", "commit"), (site, run, status)
            if status == "commit":
                assert last.ran > max(trained)
