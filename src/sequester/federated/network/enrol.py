"""Finding the sites: which node is which, at the beginning and after anything restarted.

Sites are asked twice. First each node says whether anything speaks against the run that it can
know without charging or reading anything; only when as many sites as the run needs are willing are
these, and no others, asked to charge and to read. A node that enrolled for nothing hears of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.messages import Rejection
from sequester.federated.network import frames
from sequester.federated.network.frames import (
    Enrol,
    Enrolled,
    Header,
    Refused,
    Release,
    Released,
    Willing,
)
from sequester.federated.network.roster import Roster, Site, unfit
from sequester.federated.network.transport import Parcel, Transport

_LOG = logging.getLogger("sequester.server")
ATTEMPTS = 4
"""Times that a node is asked to enrol before its silence, or damage on the way, is its answer."""
UNREADABLE = 631
PAUSE_S = 5.0
"""Before a node that the transport did not reach is asked again."""
GRACE_S = 120.0
"""Once there are enough, how long a new node may take to say who it is: nobody waits for a mute."""


class Talk(Protocol):
    """What is asked of the nodes, and until when."""

    @property
    def patience(self) -> float:
        """Seconds to wait for nodes that were asked and are silent, once nothing is missing."""
        ...

    def missing(self) -> tuple[int, int]:
        """Sites, or nodes, that are still waited for, and of how many."""
        ...

    def question(self, node: int) -> Enrol | Release | None:
        """What to ask a node of which nothing is out, if anything."""
        ...

    def hear(self, node: int, header: Willing | Enrolled) -> None:
        """What a node says."""
        ...


@dataclass
class Finder:
    """Keeps a run's sites and the transport's node numbers together.

    Attributes:
        transport: Reaches nodes.
        question: The question that enrols.
        file: Where `nodes` is kept, so that a restarted server need not ask again.
        limit: Bytes of a frame.
        most: Clients that one site can have.
        ended: Runs of before that ended without a round: every node is told, before anything else.
        nodes: Node of each site that was heard of, by the site's name.
        refusals: SQ numbers of nodes that said no, by node.
        freed: Nodes that were told, or would not hear it.
    """

    transport: Transport
    question: Enrol
    file: Path
    limit: int = frames.LIMIT
    most: int = 1
    ended: tuple[str, ...] = ()
    nodes: dict[str, int] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    freed: set[int] = field(default_factory=set)
    _damaged: Counter[int] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        """Remember the nodes of before; a file that cannot be read means to ask again."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self.nodes |= msgspec.json.decode(self.file.read_bytes(), type=dict[str, int])

    def enrol(self, sites: int, seconds: float, hold: Callable[[], None]) -> Roster:
        """Wait until `sites` sites have enrolled.

        Args:
            sites: How many.
            seconds: How long.
            hold: Called before the first site is asked to charge.

        Raises:
            UsageError: SQ-644 if fewer did in time; it says what the others answered.
        """
        self.nodes.clear()  # of an enrolment that a crash cut short
        talk = _Enrolment(self, sites, hold)
        self._ask_until(talk, seconds)
        found = talk.found
        if len(found) < sites:
            told = "; ".join(sorted(set(self.refusals.values()))) or "none answered"
            count, did = (len(found), "enrolled") if talk.holding else (talk.able(), "would enrol")
            raise UsageError(
                644,
                f"{count} of {sites} sites {did} within {seconds:g} s ({told}); start the missing "
                "nodes and run again",
            )
        taken = {site.member for site in found.values()}
        if others := {node for node, member in talk.held.items() if member not in taken}:
            self.release((self.question.run,), min(seconds, GRACE_S), others)
        return Roster.of(list(found.values()))

    def gather(self, roster: Roster, least: int, seconds: float) -> int:
        """Look for the roster's sites again until `least` are there; how many are.

        Nodes that came back under another number are recognised by their badge.
        """
        self._ask_until(_Gathering(self, roster, least), seconds)
        return len(self.present(roster))

    def release(self, runs: tuple[str, ...], seconds: float, nodes: set[int] | None = None) -> None:
        """Tell nodes that runs ended without a round, so that they give back what these hold.

        Args:
            runs: Their names.
            seconds: How long to wait for answers; silence costs the site its budget.
            nodes: Whom; everybody who is there by default.
        """
        self._ask_until(_Releasing(self, runs, nodes), seconds)

    def present(self, roster: Roster) -> dict[int, int]:
        """Node of each site that seems to be there, by the site's place in the list."""
        alive = set(self.transport.nodes())
        return {
            place: self.nodes[site.name]
            for place, site in enumerate(roster.sites)
            if self.nodes.get(site.name) in alive
        }

    def first(self, node: int) -> Release | None:
        """What every node hears before anything else."""
        if not self.ended or node in self.freed:
            return None
        return Release(self.question.run, self.ended, "")

    def keep(self, site: str, node: int) -> None:
        """This node is that site."""
        self.nodes[site] = node
        write_atomic(self.file, msgspec.json.encode(self.nodes), private=True)

    def refuse(self, node: int, why: str) -> None:
        """Ask this node no more."""
        _LOG.warning("node %d: %s", node, why)
        self.refusals[node] = why

    def _ask_until(self, talk: Talk, seconds: float) -> None:
        """Ask every node what is to be asked until nothing is missing, or time is up."""
        begun = self.transport.now()
        asked: dict[str, int] = {}
        lost: dict[int, float] = {}
        since, reached, said = begun, float("inf"), -1
        while (now := self.transport.now()) - begun <= seconds:
            if now - since > seconds / ATTEMPTS:  # questions or answers may be lost on the way
                asked, since = {}, now
            resting = {node for node, until in lost.items() if now < until}
            busy, parcels = {*asked.values()} | resting, []
            for node in self.transport.nodes():
                if node not in busy and (question := talk.question(node)) is not None:
                    parcels.append(self._parcel(node, question))
            asked |= {parcel.ticket: parcel.node for parcel in parcels}
            if parcels:
                # Nothing that asks to charge may arrive after this run was given up.
                self.transport.send(parcels, max(seconds - (now - begun), 1.0))
            for reply in self.transport.receive():
                node = asked.pop(reply.ticket, -1)
                if node < 0:
                    continue
                if reply.body is None:  # the node is gone, or was not reached
                    lost[node] = now + PAUSE_S
                else:
                    self._heard(reply.ticket, reply.body, node, talk)
            missing, wanted = talk.missing()
            if missing <= 0:
                reached = min(reached, now)
                if not asked or now - reached >= talk.patience:
                    break
            elif missing != said:
                _LOG.info("waiting for %d of %d sites", missing, wanted)
                said = missing
            self.transport.wait()
        for node in asked.values():
            self._unreadable(node, "no answer")
        self.transport.forget()

    def _parcel(self, node: int, question: Enrol | Release) -> Parcel:
        word = "release" if isinstance(question, Release) else "hold" if question.hold else "enrol"
        ticket = f"{word}-{node}"
        body = frames.seal(msgspec.structs.replace(question, ticket=ticket), limit=self.limit)
        return Parcel(ticket, node, body)

    def _heard(self, ticket: str, body: bytes, node: int, talk: Talk) -> None:
        try:
            header, _ = frames.unseal(body, lambda _: "", limit=self.limit)
        except Rejection as rejection:
            self._unreadable(node, str(rejection.reason))
            return
        if isinstance(header, Refused) and header.code == UNREADABLE:
            self._unreadable(node, header.message)
        elif not _answers(header, ticket, self.question.run):  # perhaps of before, played again
            self._unreadable(node, "another answer than was asked for")
        elif ticket.startswith("release"):
            self._told(node, header)
        elif isinstance(header, Refused):
            self.refuse(node, f"SQ-{header.code} {header.message}")
        elif isinstance(header, Willing | Enrolled):
            talk.hear(node, header)

    def _told(self, node: int, header: Header) -> None:
        if isinstance(header, Refused):
            _LOG.warning("node %d gives nothing back: SQ-%d %s", node, header.code, header.message)
        self.freed.add(node)

    def _unreadable(self, node: int, why: str) -> None:
        """Something was damaged on the way; ask again, but not for ever."""
        self._damaged[node] += 1
        if self._damaged[node] >= ATTEMPTS:
            self.freed.add(node)
            self.refuse(node, why)


def _answers(header: Header, ticket: str, run: str) -> bool:
    """Whether this can be said to the question of that ticket."""
    word = ticket.partition("-")[0]
    if isinstance(header, Refused):  # a node that its holder did not set up cannot read whose it is
        return header.ticket in (ticket, "")
    said = {"enrol": Willing | Enrolled, "hold": Enrolled, "release": Released}[word]
    return isinstance(header, said) and (header.ticket, header.run) == (ticket, run)


@dataclass
class _Enrolment:
    """Until enough sites have enrolled.

    Attributes:
        finder: Asks.
        sites: How many are needed.
        hold: Called before the first site is asked to charge.
        willing: Node and public key of each site that would enrol, in the order they said so.
        found: Sites that enrolled.
        held: Public key of each node that was asked to charge.
        holding: Whether any was.
    """

    finder: Finder
    sites: int
    hold: Callable[[], None]
    willing: dict[str, tuple[int, str]] = field(default_factory=dict)
    found: dict[str, Site] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    holding: bool = False
    patience: float = 0.0

    def missing(self) -> tuple[int, int]:
        if self.holding:
            return self.sites - len(self.found), self.sites
        return max(self.sites - self.able(), 1), self.sites

    def able(self) -> int:
        """Sites that are there and would enrol, at most as many as are needed."""
        return len(self._chosen())

    def question(self, node: int) -> Enrol | Release | None:
        finder = self.finder
        if node in finder.refusals:
            return None
        if first := finder.first(node):
            return first
        chosen = self._chosen()
        if not self.holding and len(chosen) == self.sites:
            self.hold()
            self.holding = True
        name = next((name for name, (at, _) in self.willing.items() if at == node), None)
        if name is None:
            return msgspec.structs.replace(finder.question, hold=False)
        if not self.holding or name in self.found or name not in chosen:
            return None
        self.held[node] = self.willing[name][1]
        return msgspec.structs.replace(finder.question, hold=True)

    def hear(self, node: int, header: Willing | Enrolled) -> None:
        name, finder = header.site, self.finder
        badge = header.badge if isinstance(header, Enrolled) else ""
        if why := unfit(header, finder.most):
            finder.refuse(node, why)
            return
        other = name in self.willing and self.willing[name][1] != header.member
        if other or (badge and name in self.found and self.found[name].badge != badge):
            # The first to come keeps the name; a second one would share its coins.
            finder.refuse(node, f"a second node calls itself {name!r}")
        else:
            self.willing[name] = (node, header.member)
        if isinstance(header, Willing):
            return
        self.held[node] = header.member
        if name not in self.found and len(self.found) == self.sites:
            finder.refuse(node, f"{self.sites} other sites enrolled before {name!r}")
        elif node not in finder.refusals:
            self.found[name] = Site.of(header)
            finder.keep(name, node)

    def _chosen(self) -> list[str]:
        """Those who are asked to charge: the first who are willing, there, and did not refuse."""
        alive = {*self.finder.transport.nodes()} - {*self.finder.refusals}
        able = [n for n, (node, _) in self.willing.items() if n in self.found or node in alive]
        return able[: self.sites]


@dataclass
class _Gathering:
    """Until enough of the roster's sites are there; nodes that are there are asked once anyway."""

    finder: Finder
    roster: Roster
    least: int
    patience: float = GRACE_S
    strangers: set[int] = field(default_factory=set)

    def missing(self) -> tuple[int, int]:
        return self.least - len(self.finder.present(self.roster)), self.least

    def question(self, node: int) -> Enrol | Release | None:
        finder = self.finder
        if node in self.strangers and node in finder.freed:
            finder.refuse(node, "enrolled here and is not on this run's list")
        if node in finder.refusals or node in finder.nodes.values():
            return None
        if node in self.strangers:
            return Release(finder.question.run, (*finder.ended, finder.question.run), "")
        return finder.first(node) or msgspec.structs.replace(finder.question, hold=False)

    def hear(self, node: int, header: Willing | Enrolled) -> None:
        known = self.roster.named(header.site)
        if isinstance(header, Enrolled) and known is not None and known.badge == header.badge:
            self.finder.keep(header.site, node)
        elif isinstance(header, Enrolled) and header.member not in self.roster.members:
            self.strangers.add(node)
            self.finder.freed.discard(node)
        else:
            self.finder.refuse(node, f"{header.site!r} is not on this run's list")


@dataclass
class _Releasing:
    """Until every node has given back what ended runs hold."""

    finder: Finder
    runs: tuple[str, ...]
    nodes: set[int] | None
    patience: float = 0.0

    def __post_init__(self) -> None:
        self.finder.freed.clear()

    def missing(self) -> tuple[int, int]:
        whom = self._whom()
        return len(whom - self.finder.freed), len(whom)

    def question(self, node: int) -> Enrol | Release | None:
        if node not in self._whom() or node in self.finder.freed:
            return None
        return Release(self.finder.question.run, self.runs, "")

    def hear(self, node: int, header: Willing | Enrolled) -> None:
        """Nothing that enrols is asked here."""

    def _whom(self) -> set[int]:
        there = {*self.finder.transport.nodes()}
        return there if self.nodes is None else there & self.nodes
