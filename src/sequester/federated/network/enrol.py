"""Finding the sites: which node is which, at the beginning and after anything restarted."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.messages import Rejection
from sequester.federated.network import frames
from sequester.federated.network.frames import Enrol, Enrolled, Refused
from sequester.federated.network.roster import Roster, Site
from sequester.federated.network.transport import Parcel, Reply, Transport

_LOG = logging.getLogger("sequester.server")
ATTEMPTS = 4
"""Times that a node is asked to enrol before its silence, or damage on the way, is its answer."""
UNREADABLE = 631
GRACE_S = 120.0
"""Once there are enough, how long a new node may take to say who it is: nobody waits for a mute."""


@dataclass
class Finder:
    """Keeps a run's sites and the transport's node numbers together.

    Attributes:
        transport: Reaches nodes.
        question: What every node is asked first.
        limit: Bytes of a frame.
        file: Where `nodes` is kept, so that a restarted server need not ask again.
        nodes: Node of each site that was heard of, by the site's name.
        refusals: SQ numbers of nodes that said no, by node.
    """

    transport: Transport
    question: Enrol
    file: Path
    limit: int = frames.LIMIT
    nodes: dict[str, int] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    _damaged: Counter[int] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        """Remember the nodes of before; a file that cannot be read means to ask again."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self.nodes |= msgspec.json.decode(self.file.read_bytes(), type=dict[str, int])

    def enrol(self, sites: int, seconds: float) -> Roster:
        """Wait until `sites` sites have enrolled.

        Raises:
            UsageError: SQ-644 if fewer did in time; it says what the others answered.
        """
        found: dict[str, Site] = {}
        self.nodes.clear()  # of an enrolment that a crash cut short

        def take(site: Site, node: int) -> bool:
            if site.name in found and found[site.name].badge != site.badge:
                # The first to enrol keeps the name; a second one would share its coins.
                return self._refuse(node, f"a second node calls itself {site.name!r}")
            if site.name not in found and len(found) == sites:
                return self._refuse(node, f"{sites} other sites enrolled before {site.name!r}")
            found[site.name] = site
            return True

        self._ask_until(lambda: len(found), sites, take, seconds)
        if len(found) < sites:
            told = "; ".join(sorted(set(self.refusals.values()))) or "none answered"
            raise UsageError(
                644,
                f"{len(found)} of {sites} sites enrolled within {seconds:g} s ({told}); start "
                "the missing nodes and run again",
            )
        return Roster.of(list(found.values()))

    def gather(self, roster: Roster, least: int, seconds: float) -> int:
        """Look for the roster's sites again until `least` are there; how many are.

        Nodes that came back under another number are recognised by their badge.
        """

        def take(site: Site, node: int) -> bool:
            known = roster.named(site.name)
            if known is None or known.badge != site.badge:
                return self._refuse(node, f"{site.name!r} is not on this run's list")
            return True

        self._ask_until(lambda: len(self.present(roster)), least, take, seconds)
        return len(self.present(roster))

    def present(self, roster: Roster) -> dict[int, int]:
        """Node of each site that seems to be there, by the site's place in the list."""
        alive = set(self.transport.nodes())
        return {
            place: self.nodes[site.name]
            for place, site in enumerate(roster.sites)
            if self.nodes.get(site.name) in alive
        }

    def _ask_until(
        self,
        there: Callable[[], int],
        least: int,
        take: Callable[[Site, int], bool],
        seconds: float,
    ) -> None:
        """Ask every node that is new until there are `least` sites, or time is up.

        Nodes that are there are always asked once, also if there are enough without them.
        """
        begun = self.transport.now()
        asked: dict[str, int] = {}
        since, reached, said = begun, float("inf"), -1
        while (now := self.transport.now()) - begun <= seconds:
            if now - since > seconds / ATTEMPTS:  # questions or answers may be lost on the way
                asked, since = {}, now
            known = {*self.nodes.values(), *self.refusals, *asked.values()}
            new = [node for node in self.transport.nodes() if node not in known]
            parcels = [self._parcel(node) for node in new]
            asked |= {parcel.ticket: parcel.node for parcel in parcels}
            if parcels:
                self.transport.send(parcels, seconds)
            for reply in self.transport.receive():
                node = asked.pop(reply.ticket, None)
                if node is not None:
                    self._heard(reply, node, take)
            if (count := there()) >= least:
                reached = min(reached, now)
                if not asked or now - reached > GRACE_S:
                    break
            elif count != said:
                _LOG.info("waiting for %d of %d sites", least - count, least)
                said = count
            self.transport.wait()
        for node in asked.values():
            self._unreadable(node, "no answer")
        self.transport.forget()

    def _parcel(self, node: int) -> Parcel:
        ticket = f"enrol-{node}"
        question = msgspec.structs.replace(self.question, ticket=ticket)
        return Parcel(ticket, node, frames.seal(question, limit=self.limit))

    def _heard(self, reply: Reply, node: int, take: Callable[[Site, int], bool]) -> None:
        if reply.body is None:
            return
        try:
            header, _ = frames.unseal(reply.body, lambda _: "", limit=self.limit)
        except Rejection as rejection:
            self._unreadable(node, str(rejection.reason))
            return
        if isinstance(header, Refused) and header.code == UNREADABLE:
            self._unreadable(node, header.message)
        elif isinstance(header, Refused):
            self._refuse(node, f"SQ-{header.code} {header.message}")
        elif not isinstance(header, Enrolled) or header.run != self.question.run:
            self._refuse(node, "another answer than was asked for")
        elif header.clients < 1 or not header.site:
            self._refuse(node, "a site without clients")
        elif take(
            Site(
                header.site,
                header.clients,
                header.fingerprint,
                header.badge,
                header.member,
                header.listed,
            ),
            node,
        ):
            self.nodes[header.site] = node
            write_atomic(self.file, msgspec.json.encode(self.nodes), private=True)

    def _unreadable(self, node: int, why: str) -> None:
        """Something was damaged on the way; ask again, but not for ever."""
        self._damaged[node] += 1
        if self._damaged[node] >= ATTEMPTS:
            self._refuse(node, why)

    def _refuse(self, node: int, why: str) -> bool:
        _LOG.warning("node %d: %s", node, why)
        self.refusals[node] = why
        return False
