"""The server's list of enrolled sites; kept on disk, because positions must never move."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.network.frames import Enrolled, Willing
from sequester.federated.network.site import by_people
from sequester.federated.settings import settings_of
from sequester.secagg.crypto import can_be_enrolled
from sequester.training.study import Study

_NAME = "roster.json"
_MOST = 1 << 20
"""People of one site, where a study's whole population is declared smaller."""
_WORD = 256
"""Letters of a name, a badge or a fingerprint."""


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One enrolled site.

    Attributes:
        name: As its node calls it.
        clients: Clients there.
        fingerprint: Of its data, under a key of the node's.
        badge: Keys the digests of its frames.
        member: Its public key in secure sums, hexadecimal.
        listed: Whether it accepts only members' keys that its holder wrote down.
        first: Position of its first client in the whole population.
    """

    name: str
    clients: int
    fingerprint: str
    badge: str
    member: str
    listed: bool = False
    first: int = 0

    @classmethod
    def of(cls, said: Enrolled) -> Site:
        """What a node says that it is."""
        return cls(said.site, said.clients, said.fingerprint, said.badge, said.member, said.listed)


def most_clients(study: Study) -> int:
    """Clients that one site can have."""
    return max(_MOST, study.data.population) if by_people(settings_of(study)) else 1


def unfit(said: Willing | Enrolled, most: int) -> str:
    """Why a site that says so cannot be on the list, which is for good; empty if it can.

    Args:
        said: What its node says.
        most: Clients that one site can have.
    """
    if not 0 < len(said.site) <= _WORD or not said.site.isprintable():
        return "a site without a name that can be written down"
    try:
        key = bytes.fromhex(said.member)
    except ValueError:
        key = b""
    if key.hex() != said.member or not can_be_enrolled(key):
        return f"{said.site!r} shows a public key that is none"
    if isinstance(said, Willing):
        return ""
    if not 1 <= said.clients <= most:
        return f"{said.site!r} says it has {said.clients} clients; one site has 1 to {most}"
    if not 0 < len(said.badge) <= _WORD or len(said.fingerprint) > _WORD:
        return f"{said.site!r} shows no badge or fingerprint"
    return ""


@dataclass(frozen=True)
class Roster:
    """All sites of a run, by name; fixed once the run begins.

    Attributes:
        sites: In the order of their names.
    """

    sites: tuple[Site, ...]

    @classmethod
    def of(cls, sites: Sequence[Site]) -> Roster:
        """Give every client its position: sites by name, one after another."""
        ordered, first = [], 0
        for site in sorted(sites, key=lambda site: site.name):
            ordered.append(msgspec.structs.replace(site, first=first))
            first += site.clients
        return cls(tuple(ordered))

    @classmethod
    def load(cls, folder: Path) -> Roster | None:
        """The list kept in `folder`; None before the run begins.

        Raises:
            UsageError: SQ-645 if it is damaged.
        """
        file = folder / _NAME
        if not file.exists():
            return None
        try:
            return cls(msgspec.json.decode(file.read_bytes(), type=tuple[Site, ...]))
        except msgspec.MsgspecError:
            raise UsageError(
                645,
                "the list of enrolled sites is damaged; name a new run folder, what sites hold for "
                "this run stays charged",
                where=str(file),
            ) from None

    def save(self, folder: Path) -> None:
        """Keep it."""
        write_atomic(folder / _NAME, msgspec.json.encode(self.sites), private=True)

    @property
    def clients(self) -> int:
        """Clients of all sites."""
        return sum(site.clients for site in self.sites)

    @property
    def members(self) -> frozenset[str]:
        """Public keys of all sites."""
        return frozenset(site.member for site in self.sites)

    @property
    def fingerprint(self) -> str:
        """One digest over all sites' data."""
        text = "|".join(f"{site.name}:{site.fingerprint}" for site in self.sites)
        return hashlib.sha256(text.encode()).hexdigest()

    def named(self, name: str) -> Site | None:
        """The site of this name."""
        return next((site for site in self.sites if site.name == name), None)

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        return np.array([site.first for site in self.sites], dtype=np.int64)

    def at(self, client: int) -> int:
        """Which site, by its place in the list, holds this client."""
        return int(np.searchsorted(self._firsts, client, side="right")) - 1
