"""A seeded storm over real nodes and a real server, and what must be true after it.

Everything is decided by the seed: which questions and answers are lost, doubled, delayed past the
deadline, cut, altered or replayed; which nodes lie, restart, lose touch, or come back from an
older copy of their folder; at which of six points of which round the server dies.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from sequester import accounting
from sequester.core.errors import SequesterError, UsageError
from sequester.federated import simulate
from sequester.federated.checkpoint import FileStore
from sequester.federated.network import frames
from sequester.federated.network.frames import Answers, Ask, Enrolled
from sequester.federated.network.node import Node
from sequester.federated.network.run import Terms, serve
from sequester.federated.network.server import Network
from sequester.federated.network.transport import Reply
from sequester.federated.noise import SiteSum
from tests.federated.network.world import SITES, Wire, make_nodes

TERMS = Terms(sites=3, least=1, round_seconds=10.0, wait_seconds=60.0)
POINTS = ("reserve", "answers", "aggregate", "seal", "release", "commit", "save", "finish")
LIES = (
    "nan",
    "inf",
    "huge",
    "zero",
    "wrong-dtype",
    "wrong-shape",
    "missing",
    "extra",
    "heavy",
    "light",
    "steps",
    "another-round",
    "another-client",
    "another-nonce",
    "another-version",
    "silence-others",
    "denormal",
)


class Died(BaseException):
    """The server was killed."""


@dataclass
class Storm:
    """One seed's weather.

    Attributes:
        seed: Decides everything.
        state: Folder of the nodes.
        data: Folder of the sites' files.
        badges: Each site's badge, as it flew past: only a site itself can use it to lie.
        honest: True answers: (site, round) to the deltas of every time it was asked.
        lied: Rounds in which a site's answer was replaced by a lie that the gate must catch.
        over: Whether it ended without a release: no answer at all, or a server taken for set back.
        old: Answers of before, for replays.
    """

    seed: int
    state: Path
    data: Path
    badges: dict[str, str] = field(default_factory=dict)
    honest: dict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    seen: list[str] = field(default_factory=list)
    over: bool = False
    old: list[Reply] = field(default_factory=list)
    draw: np.random.Generator = field(init=False)
    wire: Wire = field(init=False)
    gone: dict[int, Node] = field(default_factory=dict)
    copies: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)
        self.wire = Wire(
            make_nodes(self.data, self.state),
            deliver=self.deliver,
            carry=self.carry,
            meanwhile=self.reunite,
            clock=float(self.draw.integers(-86_400, 86_400)),  # nobody's clock is right
            persistent=True,
        )

    def chance(self, share: float) -> bool:
        return bool(self.draw.random() < share)

    # ---- the network --------------------------------------------------------------------

    def deliver(self, parcel):
        """A question on its way."""
        self.shake(parcel.node)
        if self.chance(0.05):
            self.seen.append("question lost")
            return None
        if self.chance(0.04):
            self.seen.append("question altered")
            return replace(parcel, body=self.damaged(parcel.body))
        return parcel

    def carry(self, parcel, reply):
        """An answer on its way: (delay, copy) for each copy that arrives."""
        site = self.wire.nodes_[parcel.node].site
        header = self.learn(site, reply.body)
        if isinstance(header, Enrolled):
            return [(0, reply)]
        self.old.append(reply)
        copies = [(int(self.draw.integers(0, 4)), replace(reply, final=False))]
        if self.chance(0.06):
            self.seen.append("answer lost")  # killed in mid-fit or in mid-upload
            return []
        if self.chance(0.08):
            self.seen.append("answer late")
            copies = [(int(self.draw.integers(11, 40)), reply)]
        if self.chance(0.08):
            self.seen.append("answer altered")
            copies.append((0, replace(reply, body=self.damaged(reply.body))))
        if self.chance(0.10):
            self.seen.append("answer doubled")
            copies.append((int(self.draw.integers(0, 30)), reply))
        if self.chance(0.08):
            self.seen.append("old answer replayed")
            past = self.old[int(self.draw.integers(0, len(self.old)))]
            copies.append((0, replace(past, ticket=parcel.ticket, final=False)))
        if self.chance(0.15) and isinstance(header, Answers):
            lie = LIES[int(self.draw.integers(0, len(LIES)))]
            self.seen.append(f"lie: {lie}")
            copies = [(0, replace(reply, body=self.lie(lie, site, reply.body)))]
        return copies

    def damaged(self, body: bytes) -> bytes:
        raw = bytearray(body)
        if self.chance(0.5):
            return bytes(raw[: int(self.draw.integers(0, len(raw)))])
        raw[int(self.draw.integers(0, len(raw)))] ^= int(self.draw.integers(1, 256))
        return bytes(raw)

    # ---- the nodes ----------------------------------------------------------------------

    def shake(self, number: int) -> None:
        """Restart, cut off or set back the nodes between two questions."""
        nodes = self.wire.nodes_
        if self.chance(0.15) and number in nodes:
            old = nodes[number]
            nodes[number] = Node(old.site, old.data, old.folder)
            self.seen.append("node restarted")
        if self.chance(0.06) and len(nodes) > 1 and number in nodes:
            self.gone[number] = nodes.pop(number)
            self.seen.append("node cut off")
        site = SITES[int(self.draw.integers(0, len(SITES)))]
        folder, copy = self.state / site, self.state / f"{site}.copy"
        if site in self.badges and self.chance(0.05):
            if site in self.copies:
                shutil.rmtree(folder)
                shutil.copytree(copy, folder)
                self.seen.append("node set back")
            else:
                shutil.copytree(folder, copy)
                self.copies[site] = copy

    def reunite(self) -> None:
        """Now and then a node that was cut off is there again, perhaps under another number."""
        nodes = self.wire.nodes_
        if self.gone and self.chance(0.1):
            back, node = self.gone.popitem()
            renumbered = back + 1000 if self.chance(0.5) else back
            nodes[renumbered] = Node(node.site, node.data, node.folder)
            self.seen.append("node back")

    def learn(self, site: str, body: bytes):
        """What flew past."""

        def badge_of(header) -> str:
            open_ = isinstance(header, Enrolled) or not getattr(header, "enrolled", True)
            return "" if open_ else self.badges.get(site, "")

        header, tensors = frames.unseal(body, badge_of)
        if isinstance(header, Enrolled):
            self.badges[site] = header.badge
        if isinstance(header, Answers):
            self.honest[site, header.round].add(tensors["deltas"].tobytes())
        return header

    def lie(self, kind: str, site: str, body: bytes) -> bytes:
        """A hostile site's answer, under its own badge."""
        header, tensors = frames.unseal(body, lambda _: self.badges[site])
        deltas = tensors["deltas"]
        arrays = {"deltas": deltas}
        match kind:
            case "nan" | "inf" | "huge":
                value = {"nan": np.nan, "inf": np.inf, "huge": 1e30}[kind]
                arrays = {"deltas": np.where(np.arange(deltas.size) == 0, value, deltas)}
            case "zero":
                arrays = {"deltas": np.zeros_like(deltas)}
            case "denormal":
                arrays = {"deltas": np.zeros_like(deltas).astype(np.float32)}
            case "wrong-dtype":
                arrays = {"deltas": deltas.astype(np.float32)}
            case "wrong-shape":
                arrays = {"deltas": deltas[:, :-1]}
            case "missing":
                arrays = {}
            case "extra":
                arrays = {"deltas": deltas, "more": deltas}
            case "heavy" | "light":
                header = _changed(header, weights=(1e9 if kind == "heavy" else -1.0,))
            case "steps":
                header = _changed(header, steps=(10**9,))
            case "another-round":
                header = _changed(header, round=header.round + 1)
            case "another-client":
                header = _changed(header, clients=((header.clients[0] + 1) % 3,))
            case "another-nonce":
                header = _changed(header, nonces=("0" * 32,))
            case "another-version":
                header = _changed(header, version="0" * 32)
            case "silence-others":
                others = tuple((header.clients[0] + k) % 3 for k in (1, 2))
                header = _changed(
                    header,
                    clients=others,
                    nonces=("", ""),
                    reasons=("lost", "lost"),
                    steps=(),
                    weights=(),
                )
                arrays = {"deltas": deltas[:0]}
        return frames.seal(header, arrays, badge=self.badges[site])


def _changed(header, **fields):
    return msgspec.structs.replace(header, **fields)


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
        for _ in range(int(storm.draw.integers(0, 4)))
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
        number = instructions[0].round
        dies("reserve", number)
        for event in real_answer(self, instructions, state, clip):
            yield event
            dies("answers", number)

    patch.setattr(Network, "answer", answer)
    real_settle = Network.settle

    def settle(self, number, clients):
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
        try:
            serve(study, path, storm.wire, TERMS)
        except Died:
            continue
        except UsageError as refusal:
            if refusal.code == 652:  # a site took the server for one that was set back: it is over
                storm.over = True
                return book
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
    # Each round's noise met one sum and no other.
    done = set(book.noised) | book.abandoned
    assert done == set(range(rounds)) or (storm.over and done < set(range(rounds)))
    for number, sums in book.noised.items():
        assert len(sums) == 1, f"round {number}: noise on {len(sums)} sums"
        (digest,) = sums
        members = book.members[number, digest]
        # That sum is the exact sum of the members' true answers, each of them once, in grid steps.
        total = np.zeros(len(storm.totals[digest]), dtype=np.int64)
        for place in members:
            answers = storm.honest[SITES[place], number]
            assert len(answers) == 1, "a site gave two answers to one round"
            answer = np.frombuffer(next(iter(answers)), dtype=np.float64)[: len(total)]
            total += np.rint(answer / storm.grid).astype(np.int64)
        assert np.array_equal(total * storm.grid, storm.totals[digest])


Patch = Callable[..., None]
__all__ = ["LIES", "POINTS", "Ask", "Book", "Died", "Storm", "check", "survive"]
