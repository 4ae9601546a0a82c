"""Write the published transcripts of secure aggregation: `python -m tests.transcripts.make`.

Every key, nonce and vector is fixed, so a stranger's implementation can be compared byte for
byte with `secagg-*.json`. None of these keys may protect anything.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sequester.secagg.client import Client
from sequester.secagg.crypto import Identity
from sequester.secagg.masks import Words, word_type
from sequester.secagg.policy import Policy
from sequester.secagg.server import Phase, Server
from sequester.secagg.session import Roster, Session

FOLDER = Path(__file__).parent
NAMES = (
    "", "offer", "advert", "peers", "shares", "sealed", "masked", "survivors", "confirm",
    "confirmed", "reveal",
)  # fmt: skip
LENGTH, WIDE = 7, 4


class Case(NamedTuple):
    """One published round: who is enrolled, its graph, words and trust, and who leaves when."""

    members: int
    threshold: int
    drops: dict[int, str]
    degree: int = 0
    bits: int = 32
    active: bool = True


CASES = {
    "secagg-3-members": Case(3, 2, {}),
    "secagg-5-members-2-drops": Case(5, 3, {3: "masked", 0: "confirm"}),
    "secagg-6-members-16-bits-semi-honest": Case(
        6, 3, {1: "shares", 4: "masked", 5: "reveal"}, bits=16, active=False
    ),
    "secagg-10-members-ring-24-bits": Case(
        10, 4, {7: "advert", 2: "shares", 5: "masked"}, degree=6, bits=24
    ),
    "secagg-9-members-ring-20-bits-semi-honest": Case(
        9, 3, {0: "masked", 3: "reveal"}, degree=6, bits=20, active=False
    ),
    "secagg-10-members-ring-32-bits": Case(10, 4, {8: "reveal", 4: "masked"}, degree=6),
}


def fixed(what: str, member: int) -> bytes:
    return hashlib.sha256(f"published transcript {what} {member}".encode()).digest()


def inputs(case: Case) -> tuple[list[bytes], list[bytes], list[tuple[list[int], list[int]]]]:
    identities = [fixed("identity", i) for i in range(case.members)]
    secrets = [fixed("secret", i) for i in range(case.members)]
    vectors = []
    for i in range(case.members):
        raw = np.frombuffer(fixed("vector", i) + fixed("wide", i), "<u4")
        vectors.append(([int(x) % 2**case.bits for x in raw[:LENGTH]], raw[8 : 8 + WIDE].tolist()))
    return identities, secrets, vectors


def begin(case: Case) -> tuple[Session, Server, dict[int, Client]]:
    """The round's server and clients."""
    keys, secrets, _ = inputs(case)
    identities = {i: Identity(i, key) for i, key in enumerate(keys)}
    roster = Roster({i: one.public for i, one in identities.items()})
    session = Session(
        run="transcript", round_number=7, model=fixed("model", 0), config=fixed("config", 0),
        roster=roster.digest, threshold=case.threshold, degree=case.degree, length=LENGTH,
        wide=WIDE, bits=case.bits, min_cohort=3, min_survivors=2, active=case.active,
    )  # fmt: skip
    policy = Policy(2, 0.5, 0.0, allow_semi_honest=True, degree=2)
    clients = {
        i: Client(
            one, roster, policy, model=session.model, config=session.config, secret=secrets[i]
        )
        for i, one in identities.items()
    }
    return session, Server(session, roster), clients


def play(case: Case) -> dict[str, Any]:
    """One round of the package, every message by name."""
    keys, secrets, vectors = inputs(case)
    session, server, clients = begin(case)
    kind = word_type(case.bits)
    said: dict[str, bytes] = {}
    outbox = dict.fromkeys(clients, server.offer())
    gone: set[int] = set()
    while server.phase is not Phase.DONE:
        phase = server.phase.name.lower()
        gone |= {i for i, last in case.drops.items() if last == phase}
        for i, message in outbox.items():
            request = NAMES[message[5]]
            said[request if request in {"offer", "survivors"} else f"{request} {i}"] = message
            if i in gone:
                continue
            narrow, wide = vectors[i]
            words = Words(np.array(narrow, kind), np.array(wide, np.uint32))
            answer = clients[i].answer(message, words)
            said[f"{NAMES[answer[5]]} {i}"] = answer
            server.receive(i, answer)
        outbox = server.close()
    assert server.outcome is not None
    total = server.outcome.total
    fields = {name: getattr(session, name) for name in Session.__dataclass_fields__}
    fields |= {name: fields[name].hex() for name in ("model", "config", "roster")}
    return {
        "session": fields,
        "session_digest": session.digest.hex(),
        "identities": [key.hex() for key in keys],
        "secrets": [secret.hex() for secret in secrets],
        "vectors": [{"narrow": n, "wide": w} for n, w in vectors],
        "drops": {str(member): phase for member, phase in sorted(case.drops.items())},
        "messages": {name: data.hex() for name, data in said.items()},
        "sum": {
            "narrow": [int(x) % 2**case.bits for x in total.narrow],
            "wide": total.wide.tolist(),
        },
    }


if __name__ == "__main__":
    for name, case in CASES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(play(case), indent=1) + "\n")
