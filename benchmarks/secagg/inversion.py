"""Gradient inversion of sensor windows from what a server sees with secure aggregation.

    python -m benchmarks.secagg.inversion

Five clients hold one window each (12 steps x 3 sensors). The server, who knows the model, attacks
client 0 with `audit.inversion`: a closed form on a patch transformer, Gauss-Newton on a GRU. It
sees the plain update; or the words that client 0 sends in the real protocol, which is all of
client 0 that ever leaves; or the opened sum; or the opened sum with the members' noise.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from tests.audit.test_inversion import TASK, window

from sequester import secagg
from sequester.audit.inversion import Protection, invert_squares, positions, quality, seen
from sequester.core.rng import Keystream, fresh_key
from sequester.models import Shape, build
from sequester.sampling import Lot
from sequester.secagg import masks
from sequester.secagg import messages as m
from sequester.secagg.encoding import centred, decode, encode
from sequester.secagg.rotation import rotate_back
from sequester.secagg.simulator import RoundContext, enrol, open_round, roster_of

CLIENTS, STEPS, NOISE = 5, 12, 0.8


def network(kind: str) -> torch.nn.Module:
    """The model that everybody knows."""
    shape = Shape(features=3, vocabularies=(), steps=STEPS, outputs=6, pool="mean")
    return build(kind, shape, {"width": 64} if kind == "transformer" else {})


def attack(kind: str, model: torch.nn.Module, lot: Lot, flat: np.ndarray) -> float:
    """Correlation of the rebuilt window with the true one; what runs away counts as nothing."""
    update, at = {}, 0
    for name, parameter in model.named_parameters():
        part = flat[at : at + parameter.numel()]
        update[name] = torch.from_numpy(part.reshape(tuple(parameter.shape)).copy())
        at += parameter.numel()
    if kind == "transformer":
        found = positions(update["lift.weight"], update["positions.weight"])
        return abs(quality(found, lot.x[0])[1])
    rebuilt = invert_squares(model, TASK, lot, list(update.values()), iterations=36)
    return abs(quality(rebuilt.x[0], lot.x[0])[1])


def views(updates: list[np.ndarray], multiplier: float) -> tuple[np.ndarray, np.ndarray]:
    """What the server reads in client 0's words, and the sum that it opens."""
    clip = max(float(np.linalg.norm(update)) for update in updates)
    plan = secagg.plan(
        CLIENTS, len(updates[0]), clip=clip, corrupt=0.0, noise_multiplier=multiplier
    )
    encoding, where = plan.encoding, RoundContext("inversion")
    rotation, identities = where.rotation(), enrol(range(CLIENTS))
    session = plan.session("inversion", 0, model=where.model, roster=roster_of(identities).digest)
    server, clients = open_round(session, identities, plan.policy())
    words = {
        i: encode(
            encoding,
            update,
            rotation=rotation,
            stream=Keystream(fresh_key(), run="inversion", purpose="secagg encoding"),
        ).words
        for i, update in enumerate(updates)
    }
    outbox, sent = dict.fromkeys(clients, server.offer()), b""
    while server.outcome is None:
        for member, message in outbox.items():
            answer = clients[member].answer(message, words[member])
            server.receive(member, answer)
            if member == 0 and answer[5] == m.Masked.type:
                sent = answer
        outbox = server.close()
    payload = m.Masked.decode(sent, session).words
    narrow = masks.unpack(payload, session.length, session.wide, session.bits).narrow
    read = centred(narrow, session.bits).astype(np.float64)
    if encoding.is_noisy:
        read = rotate_back(read, rotation)
    stolen = read[: encoding.length] * encoding.granularity
    opened = decode(encoding, server.outcome.total, CLIENTS, rotation=rotation)
    return stolen, opened.total


def main() -> None:
    """Print the table."""
    print("correlation of client 0's window with what is rebuilt from")
    print("network      its update  its masked words  the sum of five  that sum with noise")
    for kind in ("transformer", "gru"):
        model, lots = network(kind), [window(seed, STEPS) for seed in range(CLIENTS)]
        updates = [
            torch.cat([g.reshape(-1) for g in seen(model, TASK, lot, Protection())]).numpy()
            for lot in lots
        ]
        stolen, total = views(updates, 0.0)
        _, noised = views(updates, NOISE)
        found = [attack(kind, model, lots[0], x) for x in (updates[0], stolen, total, noised)]
        print(f"{kind:12s} {found[0]:10.4f} {found[1]:17.4f} {found[2]:16.4f} {found[3]:20.4f}")
        if found[0] < 0.9 or found[1] > 0.4:
            raise SystemExit("the plain update must give the window away and the words must not")


if __name__ == "__main__":
    main()
