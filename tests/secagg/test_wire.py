"""Bytes: one encoding per value, nothing accepted that no honest sender makes."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequester.core.errors import SequesterError
from sequester.core.rng import public_generator
from sequester.secagg import masks
from sequester.secagg import messages as m
from sequester.secagg.masks import Words, word_type
from sequester.secagg.session import Session
from sequester.secagg.simulator import enrol, open_round
from sequester.secagg.wire import Reader, from_bitmap, to_bitmap
from tests.secagg.rounds import LAX, session_for, vectors_for

KINDS = (
    m.Advert,
    m.Peers,
    m.Shares,
    m.Sealed,
    m.Masked,
    m.Survivors,
    m.Confirm,
    m.Confirmed,
    m.Reveal,
)


def one_of_each() -> tuple[Session, dict[type, bytes]]:
    identities = enrol(range(4), 1)
    session = session_for(identities, length=6)
    server, clients = open_round(session, identities, LAX)
    vectors = vectors_for(session, identities)
    outbox, seen = dict.fromkeys(clients, server.offer()), []
    for _ in range(5):
        for member, message in outbox.items():
            answer = clients[member].answer(message, vectors[member])
            server.receive(member, answer)
            if member == 2:
                seen += [message, answer]
        outbox = server.close()
    return session, dict(zip((m.Offer, *KINDS), seen, strict=True))


SESSION, MESSAGES = one_of_each()


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_encodes_back_to_its_bytes(kind: type) -> None:
    data = MESSAGES[kind]
    assert kind.decode(data, SESSION).encode() == data
    assert m.Offer.decode(MESSAGES[m.Offer]).encode() == MESSAGES[m.Offer]


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_and_every_extension_is_refused(kind: type) -> None:
    data = MESSAGES[kind]
    for length in range(len(data)):
        if kind is m.Masked and length >= 26:
            continue  # Its length is the session's business: the server checks it.
        with pytest.raises(SequesterError):
            kind.decode(data[:length], SESSION)
    if kind is not m.Masked:
        with pytest.raises(SequesterError, match="SQ-701"):
            kind.decode(data + b"\x00", SESSION)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.data())
def test_what_decodes_encodes_to_the_same_bytes(kind: type, data: st.DataObject) -> None:
    # Canonical: after any damage a message is refused or is exactly what it says.
    raw = bytearray(MESSAGES[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = kind.decode(bytes(raw), SESSION)
    except SequesterError as refusal:
        # A flipped header bit is malformed, foreign or untimely; nothing else can happen here.
        if refusal.code not in {701, 702, 703}:
            raise
    else:
        assert decoded.encode() == bytes(raw)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_noise_is_never_a_message(noise: bytes) -> None:
    for kind in KINDS:
        with pytest.raises(SequesterError):
            kind.decode(noise, SESSION)
    with pytest.raises(SequesterError):
        m.Offer.decode(noise)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.integers(0, 9), st.data())
def test_damaged_bytes_never_crash_a_client_or_yield_a_false_sum(at: int, data) -> None:
    """One byte of one message in flight is changed: refusal, or the exact sum."""
    identities = enrol(range(3), 1)
    session = session_for(identities, length=6)
    server, clients = open_round(session, identities, LAX)
    vectors = vectors_for(session, identities)
    outbox = dict.fromkeys(clients, server.offer())
    try:
        for phase in range(5):
            for member, message in outbox.items():
                if member == 1 and at == 2 * phase:
                    message = _damage(message, data)
                answer = clients[member].answer(message, vectors[member])
                if member == 1 and at == 2 * phase + 1:
                    # A damaged vector is a different vector: that is for the checksum to find.
                    answer = answer if phase == 2 else _damage(answer, data)
                server.receive(member, answer)
            outbox = server.close()
    except SequesterError as refusal:
        assert 700 <= refusal.code < 730  # noqa: PT017
        return
    assert server.outcome is not None
    total = sum(vectors[x].narrow.astype(np.uint64) for x in server.outcome.survivors)
    np.testing.assert_array_equal(server.outcome.total.narrow, total.astype(np.uint32))


def _damage(message: bytes, data) -> bytes:
    raw = bytearray(message)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    return bytes(raw)


def test_lists_out_of_order_or_doubled_are_refused() -> None:
    tags = m.Confirmed.decode(MESSAGES[m.Confirmed], SESSION).tags
    for wrong in (tags[::-1], (tags[0], tags[0], *tags[1:])):
        forged = m.Confirmed(SESSION.digest, wrong).encode()
        with pytest.raises(SequesterError, match="SQ-701"):
            m.Confirmed.decode(forged, SESSION)


def test_an_announced_size_is_checked_before_anything_is_read() -> None:
    data = bytearray(MESSAGES[m.Confirmed])
    data[22:26] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(SequesterError, match="SQ-701"):
        m.Confirmed.decode(bytes(data), SESSION)


def test_every_field_of_the_session_enters_its_digest() -> None:
    changes = {
        "run": "other", "round_number": 9, "model": b"x" * 32, "config": b"x" * 32,
        "roster": b"x" * 32, "threshold": 4, "degree": 8, "length": 7, "wide": 8, "bits": 16,
        "min_cohort": 3, "min_survivors": 3, "active": False,
    }  # fmt: skip
    base = dataclasses.replace(SESSION, min_cohort=4)
    assert set(changes) == {f.name for f in dataclasses.fields(Session)}
    digests = {dataclasses.replace(base, **{k: v}).digest for k, v in changes.items()}
    assert len(digests | {base.digest}) == len(changes) + 1
    assert Session.decode(Reader(base.encoded)) == base


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 1001])
def test_packing_is_reversible_and_as_long_as_stated(bits: int, length: int) -> None:
    draw = public_generator(length)
    words = Words(
        draw.integers(0, 2**bits, length).astype(word_type(bits)),
        draw.integers(0, 2**32, 4).astype(np.uint32),
    )
    data = masks.pack(words, bits)
    assert len(data) == masks.packed_bytes(length, 4, bits) == (length * bits + 7) // 8 + 16
    back = masks.unpack(memoryview(data), length, 4, bits)
    np.testing.assert_array_equal(back.narrow, words.narrow)
    np.testing.assert_array_equal(back.wide, words.wide)
    # The layout itself, in whole numbers: word i occupies bits [i·bits, (i+1)·bits).
    if bits != 20 or length % 2 == 0:
        value = sum(int(w) << (bits * i) for i, w in enumerate(words.narrow))
        assert data[: len(data) - 16] == value.to_bytes(length * bits // 8, "little")


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_bitmaps(flags: list[bool]) -> None:
    assert from_bitmap(to_bitmap(flags), len(flags)) == flags
    with pytest.raises(SequesterError, match="SQ-701"):
        from_bitmap(to_bitmap([*flags, True]), len(flags))
