"""What leaves a client looks like nothing at all."""

import numpy as np
from scipy import stats

from sequester.core.rng import public_generator
from sequester.secagg import masks
from sequester.secagg import messages as m
from sequester.secagg.masks import Words
from sequester.secagg.simulator import enrol, open_round
from tests.secagg.rounds import LAX, session_for

LENGTH = 60_000


def masked(round_number: int, vector: np.ndarray, seed: int | None = None) -> np.ndarray:
    """The words that client 0 sends in a round of four."""
    identities = enrol(range(4), 1)
    session = session_for(identities, length=LENGTH, bits=16, round_number=round_number)
    secrets = None if seed is None else {x: bytes([seed, x]) * 16 for x in range(4)}
    server, clients = open_round(session, identities, LAX, secrets=secrets)
    words = Words(vector.astype(np.uint16), np.zeros(4, np.uint32))
    outbox = dict.fromkeys(clients, server.offer())
    for _ in range(2):
        for member, message in outbox.items():
            server.receive(member, clients[member].answer(message))
        outbox = server.close()
    sent = m.Masked.decode(clients[0].answer(outbox[0], words), session)
    return masks.unpack(sent.words, LENGTH, 4, 16).narrow


def test_a_masked_vector_is_uniform_whatever_it_holds() -> None:
    ramp = np.arange(LENGTH) % 7
    for number, vector in enumerate((np.zeros(LENGTH), ramp, np.full(LENGTH, 65535))):
        words = masked(number, vector, seed=3)
        for octets in (words & 0xFF, words >> 8):
            counts = np.bincount(octets.astype(int), minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-5
        if vector.std():
            correlation = np.corrcoef(words.astype(float), vector)[0, 1]
            assert abs(correlation) < 4.5 / np.sqrt(LENGTH)


def test_equal_vectors_in_two_rounds_look_unrelated() -> None:
    # Even with the same client secrets: the round enters every key.
    vector = public_generator(1).integers(0, 100, LENGTH)
    one, two = masked(1, vector, seed=4), masked(2, vector, seed=4)
    assert (one == two).mean() < 1e-3
    difference = (one - two) >> 8
    assert stats.chisquare(np.bincount(difference, minlength=256)).pvalue > 1e-5
    np.testing.assert_array_equal(one, masked(1, vector, seed=4))


def test_fresh_clients_never_repeat_a_key() -> None:
    identities = enrol(range(3), 1)
    session = session_for(identities)
    seen = set()
    for _ in range(20):
        _, clients = open_round(session, identities, LAX)
        for client in clients.values():
            keys = m.Advert.decode(client.answer(m.Offer(session).encode()), session).keys
            seen |= {keys.channel, keys.mask}
    assert len(seen) == 20 * 3 * 2


def test_colluders_below_the_threshold_see_a_uniform_seed() -> None:
    """t − 1 members pool their shares of client 0: every seed word stays equally likely."""
    from sequester.secagg import field

    draw = public_generator(8)
    words = []
    for _ in range(400):
        dealt = field.split(b"\x2a\x00" * 16, 5, 4, draw.bytes(field.randomness_bytes(32, 4)))
        words.append(dealt[:3])
    pooled = np.stack(words).reshape(-1)  # 400·3·16 residues about a constant secret
    counts = np.histogram(pooled, bins=64, range=(0, field.PRIME))[0]
    assert stats.chisquare(counts).pvalue > 1e-5
