"""Rounds in one process: the real protocol over a perfect wire, with dropouts on demand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sequester.core.errors import UsageError
from sequester.core.rng import key_from_test_seed
from sequester.secagg.client import Client
from sequester.secagg.crypto import Identity
from sequester.secagg.masks import Words
from sequester.secagg.policy import Policy
from sequester.secagg.server import Outcome, Phase, Server
from sequester.secagg.session import Roster, Session

PHASES = ("advert", "shares", "masked", "confirm", "reveal")


@dataclass
class Traffic:
    """What one round cost.

    Attributes:
        client_seconds: CPU seconds of each client over all phases.
        server_seconds: CPU seconds of the server over all phases.
        sent: Bytes each client sent.
        received: Bytes each client received.
    """

    client_seconds: dict[int, float] = field(default_factory=dict)
    server_seconds: float = 0.0
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """A finished round and its cost."""

    outcome: Outcome
    traffic: Traffic


Tamper = Callable[[str, int, bytes], bytes]


def enrol(members: Iterable[int], seed: int | None = None) -> dict[int, Identity]:
    """Identities for members; with a seed they are reproducible and protect nobody."""
    if seed is None:
        return {member: Identity(member) for member in members}
    return {
        member: Identity(
            member, hashlib.sha256(key_from_test_seed(seed) + str(member).encode()).digest()
        )
        for member in members
    }


def roster_of(identities: Mapping[int, Identity]) -> Roster:
    """The roster that these identities enrol."""
    return Roster({member: identity.public for member, identity in identities.items()})


def run_round(
    server: Server,
    clients: Mapping[int, Client],
    vectors: Mapping[int, Words],
    drops: Mapping[int, str] | None = None,
) -> Simulated:
    """Carry every message of one round.

    Args:
        server: A server that has just opened the round.
        clients: Fresh clients by member.
        vectors: Each member's words.
        drops: Member → the answer it no longer gives: "advert", "shares", "masked",
            "confirm" or "reveal". (In a semi-honest round there is no "confirm".)

    Raises:
        SequesterError: whatever the server or a client refuses.
    """
    drops = dict(drops or {})
    if unknown := set(drops.values()) - set(PHASES):
        raise UsageError(719, f"a client can drop at one of {PHASES}, got {sorted(unknown)}")
    traffic = Traffic(dict.fromkeys(clients, 0.0), 0.0, dict.fromkeys(clients, 0), {})
    traffic.received = dict.fromkeys(clients, 0)
    outbox = dict.fromkeys(clients, server.offer())
    while server.phase is not Phase.DONE:
        phase = server.phase.name.lower()
        for member, message in outbox.items():
            if drops.get(member) == phase:
                del drops[member]
                drops[member] = "gone"
            if drops.get(member) == "gone":
                continue
            traffic.received[member] += len(message)
            start = time.process_time()
            answer = clients[member].answer(message, vectors.get(member))
            middle = time.process_time()
            server.receive(member, answer)
            traffic.server_seconds += time.process_time() - middle
            traffic.client_seconds[member] += middle - start
            traffic.sent[member] += len(answer)
        start = time.process_time()
        outbox = server.close()
        traffic.server_seconds += time.process_time() - start
    outcome = server.outcome
    if outcome is None:
        raise UsageError(725, "the round has no outcome")
    return Simulated(outcome, traffic)


def open_round(
    session: Session,
    identities: Mapping[int, Identity],
    policy: Policy,
    secrets: Mapping[int, bytes] | None = None,
) -> tuple[Server, dict[int, Client]]:
    """A server and a client for every member of a round."""
    roster = roster_of(identities)
    clients = {
        member: Client(
            identity,
            roster,
            policy,
            model=session.model,
            config=session.config,
            secret=None if secrets is None else secrets[member],
        )
        for member, identity in identities.items()
    }
    return Server(session, roster), clients
