"""A seeded storm over real nodes and a real server, and what must be true after it.

Everything is decided by the seed: which questions and answers are lost, doubled, delayed past the
deadline, cut, altered or replayed; which nodes lie, restart, are killed at one of five points, lose
touch, or come back from an older copy of their folder; which fall silent while they enrol, so that
the run ends; at which of twelve points of which round the server dies. In every fourth seed it is
the server that comes back from an older copy of its folder.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from sequester.federated.network import frames
from sequester.federated.network.frames import Answers, Enrolled
from sequester.federated.network.node import Node
from sequester.federated.network.transport import Reply
from tests.federated.network.world import SITES, Killed, Wire, make_nodes

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


@dataclass
class Storm:
    """One seed's weather.

    Attributes:
        seed: Decides everything.
        state: Folder of the nodes.
        data: Folder of the sites' files.
        badges: Each site's badge, as it flew past: only a site itself can use it to lie.
        honest: True answers: (site, run, round) to the deltas of every time it was asked.
        silent: Sites of which the server hears no more in this enrolment; whether they hear it.
        lied: Rounds in which a site's answer was replaced by a lie that the gate must catch.
        over: Whether it ended without a release: no round had an answer that could be used.
        set_back: How often the server's folder was replaced by an older copy.
        old: Answers of before, for replays.
    """

    seed: int
    state: Path
    data: Path
    badges: dict[str, str] = field(default_factory=dict)
    honest: dict[tuple[str, str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    silent: dict[str, bool] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    over: bool = False
    set_back: int = 0
    old: list[Reply] = field(default_factory=list)
    draw: np.random.Generator = field(init=False)
    wire: Wire = field(init=False)
    gone: dict[int, Node] = field(default_factory=dict)
    copies: dict[str, Path] = field(default_factory=dict)
    aged: set[str] = field(default_factory=set)

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

    @property
    def server_set_back(self) -> bool:
        """Whether the server's folder is set back, rather than nodes': a round that both forgot
        was never asked."""
        return self.seed % 4 == 0

    def restore(self, path: Path) -> None:
        """Before a server starts again: keep a copy of its folder, or put the old one back."""
        copy = path.with_name("run.copy")
        if not self.server_set_back or not self.chance(0.5):
            return
        if copy.exists():
            shutil.rmtree(path)
            shutil.copytree(copy, path)
            self.set_back += 1
            self.seen.append("server set back")
        elif path.exists():
            shutil.copytree(path, copy)

    # ---- the network --------------------------------------------------------------------

    def deliver(self, parcel):
        """A question on its way."""
        self.shake(parcel.node)
        site = self.wire.nodes_[parcel.node].site if parcel.node in self.wire.nodes_ else ""
        if parcel.ticket.startswith("hold") and site not in self.silent and self.chance(0.1):
            self.silent[site] = self.chance(0.5)
            self.seen.append("site silent while it enrols")
        if self.silent.get(site) is False:
            return None
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
        if site in self.silent:
            return []
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

    def kill(self, owner, name: str, patch) -> None:
        """Now and then a node is killed before, or after, it does this."""
        real = getattr(owner, name)

        def dies(*args, **more):
            early = self.chance(0.02)
            done = None if early else real(*args, **more)
            if early or self.chance(0.02):
                self.seen.append(f"node killed at {name}")
                raise Killed
            return done

        patch.setattr(owner, name, dies)

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
        if not self.server_set_back and site in self.badges and self.chance(0.05):
            if site in self.copies:
                self.aged.add(site)
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
            open_ = isinstance(header, frames.Open) or not getattr(header, "enrolled", True)
            return "" if open_ else self.badges.get(site, "")

        header, tensors = frames.unseal(body, badge_of)
        if isinstance(header, Enrolled):
            self.badges[site] = header.badge
        if isinstance(header, Answers):
            self.honest[site, header.run, header.round].add(tensors["deltas"].tobytes())
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
                arrays = {"deltas": np.where(deltas != 0.0, np.nextafter(0.0, 1.0), deltas)}
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
