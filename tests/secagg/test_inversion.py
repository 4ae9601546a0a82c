"""Gradient inversion: a plain update gives a person's window away, a masked one gives nothing.

The model is the smallest that trains on windows: one linear unit with a bias. Its gradient for
one window x is (error·x, error), so x is the quotient: no search is needed.
"""

import numpy as np

from sequester import secagg
from sequester.core.rng import Keystream, fresh_key, public_generator
from sequester.secagg import masks
from sequester.secagg import messages as m
from sequester.secagg.encoding import centred, encode
from sequester.secagg.simulator import RoundContext, enrol, open_round, roster_of

STEPS = 400


def windows() -> np.ndarray:
    """A sensor window for each of four people: a daily rhythm with their own phase and noise."""
    draw = public_generator(11)
    time = np.arange(STEPS) / 50
    return np.stack(
        [np.sin(time + phase) + 0.2 * draw.normal(size=STEPS) for phase in (0.0, 0.9, 2.0, 4.1)]
    )


def gradient(window: np.ndarray, target: float) -> np.ndarray:
    weights = np.full(STEPS, 0.01)
    error = weights @ window + 0.5 - target
    return np.append(error * window, error)


def invert(update: np.ndarray) -> np.ndarray:
    return update[:-1] / update[-1]


def likeness(guess: np.ndarray, truth: np.ndarray) -> float:
    return abs(float(np.corrcoef(guess, truth)[0, 1]))


def test_the_server_reads_a_plain_update_and_not_a_masked_one() -> None:
    people = windows()
    updates = [
        gradient(window, target) for window, target in zip(people, (1, 0, 1, 0), strict=True)
    ]
    assert likeness(invert(updates[0]), people[0]) > 0.999999

    plan = secagg.plan(4, STEPS + 1, clip=100.0, corrupt=0.0, dropout=0.0)
    where = RoundContext("inversion")
    identities = enrol(range(4))
    session = plan.session("inversion", 0, model=where.model, roster=roster_of(identities).digest)
    server, clients = open_round(session, identities, plan.policy())
    words = {
        i: encode(
            plan.encoding,
            update,
            rotation=where.rotation(),
            stream=Keystream(fresh_key(), run="inversion", purpose="secagg encoding"),
        ).words
        for i, update in enumerate(updates)
    }
    outbox, seen = dict.fromkeys(clients, server.offer()), b""
    for _ in range(5):
        for member, message in outbox.items():
            answer = clients[member].answer(message, words[member])
            server.receive(member, answer)
            if member == 0 and answer[5] == m.Masked.type:
                seen = answer
        outbox = server.close()
    payload = m.Masked.decode(seen, session).words
    narrow = masks.unpack(payload, STEPS + 1, 4, session.bits).narrow
    stolen = centred(narrow, session.bits) * plan.encoding.granularity
    # 1/√400 = 0.05 is what chance gives.
    assert likeness(invert(stolen), people[0]) < 0.25

    assert server.outcome is not None
    total = centred(server.outcome.total.narrow, session.bits) * plan.encoding.granularity
    np.testing.assert_allclose(total, sum(updates), atol=1e-4)
    # The sum mixes four people; it is not any one's window.
    assert likeness(invert(total), people[0]) < 0.9
