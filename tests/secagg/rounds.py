"""Rounds for tests: small, seeded, with the sum computed beside them in Python integers."""

import numpy as np

from sequester.core.rng import public_generator
from sequester.secagg.graph import Threats, full_threshold
from sequester.secagg.masks import Words, word_type
from sequester.secagg.policy import Policy
from sequester.secagg.session import Session
from sequester.secagg.simulator import Simulated, enrol, open_round, roster_of, run_round

MODEL, CONFIG = b"m" * 32, b"c" * 32


def session_for(identities, **changes) -> Session:
    members = len(identities)
    fields = {
        "run": "test",
        "round_number": 0,
        "model": MODEL,
        "config": CONFIG,
        "roster": roster_of(identities).digest,
        "threshold": full_threshold(members, Threats(0.0, 0.0)),
        "degree": 0,
        "length": 33,
        "wide": 4,
        "bits": 32,
        "min_cohort": 2,
        "min_survivors": 2,
    }
    return Session(**(fields | changes))


# Tests look at what the protocol does; the client's own limits are tested by themselves.
LAX = Policy(2, 0.99, 0.0, allow_semi_honest=True, degree=2)


def vectors_for(session: Session, members, seed: int = 0) -> dict[int, Words]:
    draw = public_generator(seed)
    kind = word_type(session.bits)
    return {
        member: Words(
            draw.integers(0, 2**session.bits, session.length).astype(kind),
            draw.integers(0, 2**32, session.wide).astype(np.uint32),
        )
        for member in members
    }


def expected_sum(session: Session, vectors, survivors) -> tuple[list[int], list[int]]:
    """Python integers: no word can wrap unnoticed."""
    narrow = [0] * session.length
    wide = [0] * session.wide
    for member in survivors:
        narrow = [a + int(b) for a, b in zip(narrow, vectors[member].narrow, strict=True)]
        wide = [a + int(b) for a, b in zip(wide, vectors[member].wide, strict=True)]
    return [v % 2**session.bits for v in narrow], [v % 2**32 for v in wide]


def is_exact(session: Session, vectors, round_: Simulated) -> bool:
    narrow, wide = expected_sum(session, vectors, round_.outcome.survivors)
    total = round_.outcome.total
    return [int(v) % 2**session.bits for v in total.narrow] == narrow and [
        int(v) for v in total.wide
    ] == wide


def play(members, drops=None, *, seed=1, policy=LAX, **changes):
    """One whole round; returns (session, vectors, simulated)."""
    identities = enrol(members, seed)
    session = session_for(identities, **changes)
    server, clients = open_round(session, identities, policy)
    vectors = vectors_for(session, identities)
    return session, vectors, run_round(server, clients, vectors, drops)
