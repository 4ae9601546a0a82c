"""Write the published transcripts of secure aggregation: `python -m tests.transcripts.make`.

Every key, nonce and vector is fixed, so a stranger's implementation can be compared byte for
byte with `secagg-*.json`. None of these keys may protect anything.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sequester.secagg.client import Client
from sequester.secagg.crypto import Identity
from sequester.secagg.masks import Words
from sequester.secagg.policy import Policy
from sequester.secagg.server import Server
from sequester.secagg.session import Roster, Session

FOLDER = Path(__file__).parent
CASES = {"secagg-5-members-1-drops": (5, 3, {3}), "secagg-3-members": (3, 2, set())}
LENGTH, WIDE = 8, 4


def fixed(what: str, member: int) -> bytes:
    return hashlib.sha256(f"published transcript {what} {member}".encode()).digest()


def inputs(members: int) -> tuple[list[bytes], list[bytes], list[tuple[list[int], list[int]]]]:
    identities = [fixed("identity", i) for i in range(members)]
    secrets = [fixed("secret", i) for i in range(members)]
    vectors = []
    for i in range(members):
        raw = np.frombuffer(fixed("vector", i) + fixed("wide", i), "<u4")
        vectors.append(([int(x) for x in raw[:LENGTH]], [int(x) for x in raw[LENGTH:12]]))
    return identities, secrets, vectors


def play(members: int, threshold: int, dropped: set[int]) -> dict[str, Any]:
    """One round of the package, every message by name."""
    keys, secrets, vectors = inputs(members)
    identities = {i: Identity(i, key) for i, key in enumerate(keys)}
    roster = Roster({i: one.public for i, one in identities.items()})
    session = Session(
        run="transcript", round_number=7, model=fixed("model", 0), config=fixed("config", 0),
        roster=roster.digest, threshold=threshold, degree=0, length=LENGTH, wide=WIDE, bits=32,
        min_cohort=members, min_survivors=threshold,
    )  # fmt: skip
    server = Server(session, roster)
    clients = {
        i: Client(
            one, roster, Policy(2, 0.5, 0.0), model=session.model, config=session.config,
            secret=secrets[i],
        )
        for i, one in identities.items()
    }  # fmt: skip
    names = (
        ("offer", "advert"), ("peers", "shares"), ("sealed", "masked"),
        ("survivors", "confirm"), ("confirmed", "reveal"),
    )  # fmt: skip
    said: dict[str, bytes] = {}
    outbox = dict.fromkeys(clients, server.offer())
    for request, reply in names:
        for i, message in outbox.items():
            said[request if request in {"offer", "survivors"} else f"{request} {i}"] = message
            if reply == "masked" and i in dropped:
                continue
            narrow, wide = (np.array(v, np.uint32) for v in vectors[i])
            answer = clients[i].answer(message, Words(narrow, wide))
            said[f"{reply} {i}"] = answer
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
        "dropped": sorted(dropped),
        "messages": {name: data.hex() for name, data in said.items()},
        "sum": {"narrow": total.narrow.tolist(), "wide": total.wide.tolist()},
    }


if __name__ == "__main__":
    for name, case in CASES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(play(*case), indent=1) + "\n")
