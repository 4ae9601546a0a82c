"""What works on other frameworks (Flower 1.42, OpenFL, FedML, APPFL, NVFlare), tried on ours.

The rest of that list needs a lying server and is in `test_attacks.py`: both shares of one peer, a
peer listed as dropped though it is there, a threshold of one, a cohort of the server's own keys.
"""

import hashlib
import itertools

import numpy as np
import pytest

from sequester import secagg
from sequester.core.errors import UsageError
from sequester.secagg import masks
from sequester.secagg import messages as m
from sequester.secagg.masks import Words
from tests.secagg.rounds import is_exact, play
from tests.secagg.test_attacks import Round


def stream(key: bytes, length: int = 64) -> bytes:
    words = Words.zeros(length, 0, 32)
    masks.apply(words, [key], [])
    return words.narrow.tobytes()


def test_a_mask_depends_on_every_bit_of_its_key() -> None:
    # Flower folds a key to 28 bits of seed; a core tries all of them in a minute.
    key = hashlib.sha256(b"key").digest()[: masks.MASK_KEY_BYTES]
    number = int.from_bytes(key, "big")
    flipped = {
        stream((number ^ 1 << bit).to_bytes(masks.MASK_KEY_BYTES, "big")) for bit in range(128)
    }
    assert len(flipped | {stream(key)}) == 129


def test_every_coordinate_has_a_mask_of_its_own_and_every_word_can_occur() -> None:
    # OpenFL adds one number to all coordinates; Flower's masks never are 2³²−1 or 2³²−2.
    words = np.frombuffer(stream(b"k" * 16, 1 << 20), np.uint32)
    assert len(np.unique(words[:1000])) == 1000
    top = np.frombuffer(stream(b"k" * 16, 1 << 20), np.uint8)
    assert len(np.unique(top)) == 256
    assert words.max() > 2**32 - 2**15


@pytest.mark.parametrize("phase", ["advert", "shares"])
def test_nine_of_ten_go_on_when_one_leaves_in_the_first_two_stages(phase: str) -> None:
    # Flower's survivors raise KeyError two stages later and the round halts; FedML's too.
    session, vectors, done = play(range(10), {4: phase})
    assert is_exact(session, vectors, done)
    assert done.outcome.survivors == (0, 1, 2, 3, 5, 6, 7, 8, 9)


def test_a_weight_is_masked_like_everything_else() -> None:
    # Flower sends the number of examples in clear beside the masked vector.
    seen = set()
    for number in range(6):
        turn = Round(round_number=number)
        weight = np.array([1, 777, 0, 0], np.uint32)
        turn.vectors = {i: Words(v.narrow, weight) for i, v in turn.vectors.items()}
        turn.carry(2)
        payload = m.Masked.decode(turn.answer(0), turn.session).words
        shape = turn.session.length, turn.session.wide, turn.session.bits
        seen.add(int(masks.unpack(payload, *shape).wide[1]))
    assert len(seen) == 6
    assert 777 not in seen


def test_a_sum_that_cannot_fit_is_refused_before_the_round() -> None:
    # Flower checks the shares' number, not that n·2²² fits its modulus: silent garbage above 1024.
    with pytest.raises(UsageError, match="SQ-718"):
        secagg.plan(2048, 10, granularity=2.0**-22, bits=32)
    assert secagg.plan(500, 10, granularity=2.0**-21, bits=32, dropout=0.05).encoding.bits == 32


def test_no_member_holds_a_secret_of_all_of_them() -> None:
    # APPFL gives all clients one secret, NVFlare one decryption key: one colluder opens everything.
    turn = Round().carry(2)
    secrets = {
        value
        for client in turn.clients.values()
        for value in (
            client._secret,
            client._seed,
            client._mask_private.private_bytes_raw(),
            client._channel_private.private_bytes_raw(),
        )
    }
    assert len(secrets) == 4 * len(turn.clients)
    keys = [
        tuple(sorted(channel.sealing for channel in client._channels.values()))
        for client in turn.clients.values()
    ]
    assert all(len(set(one) & set(other)) == 1 for one, other in itertools.pairwise(keys))
