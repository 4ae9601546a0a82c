"""Rounds in one process: the real protocol over a perfect wire, with dropouts on demand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sequester.accounting import Event
from sequester.core.errors import UsageError, VerificationError
from sequester.core.rng import Keystream, fresh_key, key_from_test_seed
from sequester.secagg.client import Client
from sequester.secagg.crypto import Identity, digest
from sequester.secagg.encoding import (
    Encoded,
    decode,
    encode,
    integers_of,
    within_words,
    words_of,
)
from sequester.secagg.masks import Words
from sequester.secagg.plan import RoundPlan
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
    *,
    roster: Roster | None = None,
    secrets: Mapping[int, bytes] | None = None,
) -> tuple[Server, dict[int, Client]]:
    """A server and a client for every member of a round."""
    roster = roster or roster_of(identities)
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


@dataclass(frozen=True)
class RoundReport:
    """A simulated round under a plan, for whoever trains.

    Attributes:
        total: The sum: int64 for integers, float64 for updates, shape `(length,)`.
        weight: Sum of the survivors' weights.
        survivors: Whose vectors are in it.
        dropped: Members of the cohort who are not.
        event: What the accountant is charged; None without noise.
        private: Per-member norms and whether they were clipped: never leaves the run.
        traffic: CPU time and bytes.
        seeded: True when test seeds replaced the system's randomness: NOT PRIVATE.
    """

    total: NDArray[Any] = field(repr=False)
    weight: int = field(repr=False)
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]
    event: Event | None
    private: dict[int, Encoded] = field(repr=False)
    traffic: Traffic
    seeded: bool


@dataclass(frozen=True)
class RoundContext:
    """Which round this is, for keys, rotations and noise.

    Attributes:
        run: The run's name.
        number: The round.
        model: SHA-256 of the broadcast model.
        seed: A test seed that makes the round reproducible and NOT PRIVATE; None for real.
        key: 32 secret bytes of a run, from which its members' roundings and noise shares of this
            round follow: a round that is repeated after a crash repeats them, so that nobody
            sees two draws on one update. Masks are fresh all the same. None draws afresh.
    """

    run: str = "simulation"
    number: int = 0
    model: bytes = bytes(32)
    seed: int | None = None
    key: bytes | None = field(default=None, repr=False)

    def rotation(self) -> bytes:
        """The round's public rotation seed."""
        head = self.number.to_bytes(8, "little")
        return digest(b"rotation", head, self.model, self.run.encode())

    def secrets(self, member: int) -> tuple[bytes, bytes]:
        """(protocol secret, noise key) of one member for this round."""
        if self.seed is None and self.key is None:
            return fresh_key(), fresh_key()
        place = b"%d %d " % (self.number, member) + self.model + self.run.encode()
        if self.seed is None:
            return fresh_key(), digest(b"member noise", self.key or b"", place)
        key = key_from_test_seed(self.seed)
        return digest(b"test protocol", key, place), digest(b"test noise", key, place)


def simulate_round(
    vectors: Mapping[int, NDArray[np.integer]],
    plan: RoundPlan,
    *,
    context: RoundContext | None = None,
    drops: Mapping[int, str] | None = None,
    identities: Mapping[int, Identity] | None = None,
) -> RoundReport:
    """Sum integer vectors through the real protocol.

    Args:
        vectors: Member → integers, shape `(plan.encoding.words,)`, whose sum fits the plan's
            width.
        plan: The round's plan.
        context: Which round it is.
        drops: Member → the answer it no longer gives ("advert" … "reveal").
        identities: Enrolled identities; fresh ones when not given.

    Raises:
        SequesterError: whatever the protocol refuses, SQ-713 for a number beyond 32 bits, or
            SQ-720 for a sum that wraps, or at 32 bits might, whoever drops out.
    """
    bits, where = plan.encoding.bits, context or RoundContext()
    rotation = where.rotation()
    whole = {member: within_words(np.asarray(vector)) for member, vector in vectors.items()}
    _check_sum(whole.values())
    words = {member: words_of(vector, bits, rotation=rotation) for member, vector in whole.items()}
    done = _play(words, plan, where, drops, identities)
    survivors = len(done.outcome.survivors)
    total = integers_of(done.outcome.total, bits, survivors, rotation=rotation)
    return _report(done, total.astype(np.int64), 0, None, {}, where)


def _check_sum(vectors: Collection[NDArray[np.int32]]) -> None:
    """Refuse what could wrap 32-bit words, which no checksum modulo 2³² shows."""
    if sum(max(int(v.max(initial=0)), -int(v.min(initial=0))) for v in vectors) < 1 << 31:
        return
    largest = np.zeros(max(vector.size for vector in vectors), np.int64)
    for vector in vectors:
        largest[: vector.size] += np.abs(vector.astype(np.int64))
    if int(largest.max()) >= 1 << 31:
        raise VerificationError(
            720, "a coordinate of the sum could wrap around 32 bits; use a coarser granularity"
        )


def simulate_updates(
    updates: Mapping[int, NDArray[np.floating]],
    plan: RoundPlan,
    *,
    context: RoundContext | None = None,
    drops: Mapping[int, str] | None = None,
    weights: Mapping[int, int] | None = None,
    identities: Mapping[int, Identity] | None = None,
) -> RoundReport:
    """Clip, round, noise, mask and sum float updates through the real protocol.

    Args:
        updates: Member → update, shape `(plan.encoding.length,)`.
        plan: The round's plan.
        context: Which round it is.
        drops: Member → the answer it no longer gives ("advert" … "reveal").
        weights: Member → whole number that adds up beside the vector, masked like it; only
            without noise. The caller scales the updates themselves.
        identities: Enrolled identities; fresh ones when not given.

    Raises:
        SequesterError: whatever the protocol refuses, or SQ-720 for a wrapped sum.
    """
    where = context or RoundContext()
    rotation = where.rotation()
    encoded: dict[int, Encoded] = {}
    for member, update in updates.items():
        stream = Keystream(where.secrets(member)[1], run=where.run, purpose="secagg encoding")
        encoded[member] = encode(
            plan.encoding,
            update,
            rotation=rotation,
            stream=stream,
            weight=(weights or {}).get(member, 0),
        )
    words = {member: each.words for member, each in encoded.items()}
    done = _play(words, plan, where, drops, identities)
    survivors = len(done.outcome.survivors)
    opened = decode(plan.encoding, done.outcome.total, survivors, rotation=rotation)
    event = plan.event_for(survivors) if plan.encoding.is_noisy else None
    return _report(done, opened.total, opened.weight, event, encoded, where)


def _play(
    words: Mapping[int, Words],
    plan: RoundPlan,
    where: RoundContext,
    drops: Mapping[int, str] | None,
    identities: Mapping[int, Identity] | None,
) -> Simulated:
    enrolled = dict(identities or enrol(words, where.seed))
    roster = roster_of(enrolled)
    session = plan.session(where.run, where.number, model=where.model, roster=roster.digest)
    cohort = {member: enrolled[member] for member in words}
    secrets = {member: where.secrets(member)[0] for member in words}
    server, clients = open_round(session, cohort, plan.policy(), roster=roster, secrets=secrets)
    return run_round(server, clients, words, drops)


def _report(
    done: Simulated,
    total: NDArray[Any],
    weight: int,
    event: Event | None,
    encoded: dict[int, Encoded],
    where: RoundContext,
) -> RoundReport:
    outcome = done.outcome
    return RoundReport(
        total=total,
        weight=weight,
        survivors=outcome.survivors,
        dropped=outcome.dropped,
        event=event,
        private=encoded,
        traffic=done.traffic,
        seeded=where.seed is not None,
    )
