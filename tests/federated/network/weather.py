"""What a server does in a storm, across its deaths, and what must be true of it afterwards."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sequester import accounting
from sequester.core.errors import SequesterError, UsageError
from sequester.federated import simulate
from sequester.federated.checkpoint import FileStore
from sequester.federated.network.run import Terms, serve
from sequester.federated.network.server import Network
from sequester.federated.noise import SiteSum
from tests.federated.network.storm import Storm
from tests.federated.network.world import SITES

TERMS = Terms(sites=3, least=1, round_seconds=10.0, wait_seconds=60.0)
POINTS = ("reserve", "answers", "aggregate", "seal", "release", "commit", "save", "finish")


class Died(BaseException):
    """The server was killed."""


@dataclass
class Book:
    """What the server did, across its deaths.

    Attributes:
        noised: Sums that met the noise of a round, by round.
        members: Sites in the sum of a round, by the sum.
        abandoned: Rounds whose sum would have been empty.
    """

    noised: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    members: dict[tuple[int, bytes], tuple[int, ...]] = field(default_factory=dict)
    abandoned: set[int] = field(default_factory=set)


def weather(storm: Storm, book: Book, patch) -> None:
    """Record every draw of noise, and let the server die where the seed says."""
    deaths = {
        (POINTS[int(storm.draw.integers(0, len(POINTS)))], int(storm.draw.integers(0, 3)))
        for _ in range(int(storm.draw.integers(0, 8 if storm.server_set_back else 4)))
    }

    def dies(point: str, number: int) -> None:
        if (point, number) in deaths:
            deaths.discard((point, number))
            storm.seen.append(f"server died at {point}")
            raise Died

    real_release = simulate.release_sum

    def release_sum(sealed, *, plan, stream, step, clip):
        digest = hashlib.sha256(sealed.total.tobytes()).digest()
        book.noised[step].add(digest)
        return real_release(sealed, plan=plan, stream=stream, step=step, clip=clip)

    patch.setattr(simulate, "release_sum", release_sum)
    real_save = FileStore.save

    def save(self, simulation):
        if simulation.abandoned > len(book.abandoned):
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
        book.members[simulation.next_round, digest] = storm.members[1]
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
    cached = functools.lru_cache(maxsize=64)(accounting.epsilon)
    patch.setattr(accounting, "epsilon", cached)


def survive(storm: Storm, study, path: Path, patch) -> Book:
    """Run the study through the storm, starting the server again whenever it died."""
    book = Book()
    weather(storm, book, patch)
    for _ in range(100):
        storm.restore(path)
        try:
            serve(study, path, storm.wire, TERMS)
        except Died:
            continue
        except UsageError as refusal:
            if refusal.code != 644:  # too few came back in time: the operator tries again
                raise
            storm.seen.append("too few sites")
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
            members = book.members[number, digest]
            uses.update(members)
            # It is the exact sum of the members' true answers, each of them once, in grid steps.
            total = np.zeros(len(storm.totals[digest]), dtype=np.int64)
            for place in members:
                answers = storm.honest[SITES[place], number]
                assert len(answers) == 1, "a site gave two answers to one round"
                answer = np.frombuffer(next(iter(answers)), dtype=np.float64)[: len(total)]
                total += np.rint(answer / storm.grid).astype(np.int64)
            assert np.array_equal(total * storm.grid, storm.totals[digest])
        again.update({place: count - 1 for place, count in uses.items()})
    # Whose round is released once more than is charged: at most one round each time.
    assert all(count <= storm.set_back for count in again.values())
