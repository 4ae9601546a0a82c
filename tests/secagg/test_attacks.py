"""Every attack found to work on another framework, and every lie the protocol must survive."""

import dataclasses

import numpy as np
import pytest

from sequester.core import rng
from sequester.core.errors import SequesterError, UsageError
from sequester.secagg import crypto, field, parcels
from sequester.secagg import messages as m
from sequester.secagg.client import Client
from sequester.secagg.graph import Threats, full_threshold
from sequester.secagg.policy import Policy
from sequester.secagg.server import Server
from sequester.secagg.simulator import enrol, open_round, roster_of
from sequester.secagg.wire import to_bitmap
from tests.secagg.rounds import (
    CONFIG,
    LAX,
    MODEL,
    expected_sum,
    is_exact,
    play,
    session_for,
    vectors_for,
)


class Round:
    """One round carried by hand, so that a test can lie in any place."""

    def __init__(self, members: int = 5, policy: Policy = LAX, **changes) -> None:
        self.identities = enrol(range(members), 1)
        self.session = session_for(self.identities, **changes)
        self.server, self.clients = open_round(self.session, self.identities, policy)
        self.vectors = vectors_for(self.session, self.identities)
        self.outbox = dict.fromkeys(self.clients, self.server.offer())

    def answer(self, member: int, message: bytes | None = None) -> bytes:
        sent = self.outbox[member] if message is None else message
        return self.clients[member].answer(sent, self.vectors[member])

    def carry(self, phases: int, gone: set[int] = frozenset()) -> "Round":
        """Carry some phases honestly, without those who have gone."""
        for _ in range(phases):
            for member in self.outbox:
                if member not in gone:
                    self.server.receive(member, self.answer(member))
            self.outbox = self.server.close()
        return self

    def read(self, kind: type, member: int):
        return kind.decode(self.outbox[member], self.session)


def refused(number: int):
    return pytest.raises(SequesterError, match=f"SQ-{number}")


# --- what the server may try ------------------------------------------------------------------


def test_both_shares_of_one_peer_are_never_given() -> None:
    # Flower 1.42: every client answers with both shares when a peer is listed twice.
    turn = Round().carry(4)
    first = m.Reveal.decode(turn.answer(1), turn.session)
    assert {s.peer for s in first.seeds} == {0, 1, 2, 3, 4}
    assert not first.keys
    client = turn.clients[1]
    for liar in (_survivors(turn, [0, 1, 3, 4]), _survivors(turn, [0, 1, 2, 3, 4])):
        with refused(703):
            client.answer(liar)
    # The same question again gets the same answer, byte for byte.
    assert turn.answer(1) == first.encode()
    # Nothing that could answer another question is left.
    assert not client._held


def test_a_second_survivor_set_is_refused_before_confirmation_too() -> None:
    turn = Round().carry(3)
    turn.answer(1)
    with refused(703):
        turn.answer(1, _survivors(turn, [0, 1, 3, 4]))


def _survivors(turn: Round, alive: list[int]) -> bytes:
    members = sorted(turn.clients)
    return m.Survivors(turn.session.digest, to_bitmap(x in alive for x in members)).encode()


def test_no_peer_is_opened_by_two_faces() -> None:
    # A split view: half are told that 2 dropped, half that it survived.
    turn = Round(7).carry(3)
    faces = {i: _survivors(turn, [0, 1, 3, 4, 5, 6]) for i in (0, 1, 3)}
    faces |= {i: _survivors(turn, list(range(7))) for i in (4, 5, 6)}
    confirms = {
        i: m.Confirm.decode(turn.answer(i, face), turn.session) for i, face in faces.items()
    }
    for i in faces:
        tags = [m.Tag(j, t) for j, c in confirms.items() for p, t in c.tags if p == i]
        answer = turn.answer(i, m.Confirmed(turn.session.digest, tuple(tags)).encode())
        others = [j for j in faces if faces[j] != faces[i] and (j != 2 or i > 3)]
        assert reveals_nothing(turn, answer, doubts=[j for j in others if j in dict(tags)])
        assert turn.clients[i]._held == {}
    # Showing each only the confirmations that agree leaves it below the threshold.
    turn = Round(7).carry(3)
    confirms = {
        i: m.Confirm.decode(turn.answer(i, face), turn.session) for i, face in faces.items()
    }
    for i in (0, 1, 3):
        tags = [m.Tag(j, t) for j in (0, 1, 3) for p, t in confirms[j].tags if p == i]
        answer = turn.answer(i, m.Confirmed(turn.session.digest, tuple(tags)).encode())
        assert reveals_nothing(turn, answer, doubts=[])


def reveals_nothing(turn: Round, answer: bytes, doubts: list[int]) -> bool:
    reveal = m.Reveal.decode(answer, turn.session)
    return not reveal.seeds and not reveal.keys and list(reveal.doubts) == doubts


def test_a_cohort_of_one_or_two_or_of_strangers_is_refused() -> None:
    # Flower 1.42 and a threshold of 1: the client accepts and is read in full.
    identities = enrol(range(5), 1)
    roster = roster_of(identities)
    with pytest.raises(UsageError, match="SQ-724"):
        session_for(identities, threshold=1)
    for size, number in ((1, 704), (2, 704)):
        session = session_for(identities, min_cohort=2, threshold=2)
        clients = _clients(identities, roster, Policy())
        adverts = [_advert(clients[i], session) for i in range(size)]
        with refused(number):
            clients[0].answer(_peers(session, adverts, 0))
    # Sybils: two keys that nobody enrolled.
    stranger = enrol([7, 8], 99)
    session = session_for(identities, threshold=2)
    clients = _clients(identities, roster, Policy())
    adverts = [_advert(clients[0], session)]
    for i, one in stranger.items():
        keys = m.Keys(
            i, crypto.public_of(bytes([i]) * 32), crypto.public_of(bytes([i + 9]) * 32), b""
        )
        signed = one.sign(_signed(session, keys, b"nnnn"))
        adverts.append(m.Advert(session.digest, keys._replace(signature=signed), b"nnnn"))
    with refused(709):
        clients[0].answer(_peers(session, adverts, 0))


def _signed(session, keys, nonce):
    from sequester.secagg.context import signed_bytes

    return signed_bytes(session, keys, nonce)


def _clients(identities, roster, policy) -> dict[int, Client]:
    return {
        i: Client(one, roster, policy, model=MODEL, config=CONFIG) for i, one in identities.items()
    }


def _advert(client: Client, session) -> m.Advert:
    return m.Advert.decode(client.answer(m.Offer(session).encode()), session)


def _peers(session, adverts, receiver: int) -> bytes:
    cohort = tuple(m.Entry(a.keys.member, a.nonce) for a in adverts)
    keys = tuple(a.keys for a in adverts if a.keys.member != receiver)
    return m.Peers(session.digest, cohort, keys).encode()


def test_the_server_cannot_lower_threshold_or_number_of_survivors() -> None:
    # t = 3 of 5 is too low where one member may be corrupt: 2t > n + c fails.
    turn = Round(5, Policy(3, 0.2, 0.2), threshold=3)
    with refused(705):
        turn.carry(1).answer(0)
    turn = Round(6, Policy(3, 0.2, 0.0), threshold=4)
    turn.carry(3)
    with refused(706):  # One of six may vanish, not two.
        turn.answer(0, _survivors(turn, [0, 1, 2, 3]))


def test_a_semi_honest_round_must_be_asked_for() -> None:
    with refused(707):
        Round(5, Policy(2, 0.9, 0.0), active=False).answer(0)


@pytest.mark.parametrize("part", ["model", "config", "roster"])
def test_another_model_configuration_or_roster_is_refused(part: str) -> None:
    # Model inconsistency (Pasquini et al. 2022): each client gets a model of its own.
    turn = Round()
    other = dataclasses.replace(turn.session, **{part: b"x" * 32})
    with refused(708):
        turn.answer(0, m.Offer(other).encode())


def test_different_models_give_keys_that_nobody_else_accepts() -> None:
    # The server tells client 0 of a model that client 0 really received, and 1 of another.
    identities = enrol(range(3), 1)
    roster, session = roster_of(identities), session_for(enrol(range(3), 1))
    other = dataclasses.replace(session, model=b"o" * 32)
    victim = Client(identities[0], roster, LAX, model=b"o" * 32, config=CONFIG)
    rest = _clients({i: identities[i] for i in (1, 2)}, roster, LAX)
    adverts = [_advert(rest[i], session) for i in (1, 2)]
    mine = _advert(victim, other)
    with refused(709):  # Signatures cover the session, so the others' keys are not for it.
        victim.answer(_peers(other, [mine, *adverts], 0))


def test_masks_of_different_models_do_not_cancel_even_without_signatures() -> None:
    identities = enrol(range(3), 1)
    session = session_for(identities, active=False)
    roster = roster_of(identities)
    a, b = (dataclasses.replace(session, model=x * 32) for x in (b"a", b"b"))
    clients = {
        i: Client(identities[i], roster, LAX, model=s.model, config=CONFIG)
        for i, s in enumerate((a, a, b))
    }
    from sequester.secagg.context import Context

    adverts = {i: _advert(clients[i], s) for i, s in enumerate((a, a, b))}
    entries = tuple(m.Entry(i, adverts[i].nonce) for i in range(3))
    shared = crypto.agree(clients[0]._mask_private, adverts[2].keys.mask)
    one, two = (
        Context(a, entries).pair_key(shared, 0, 2),
        Context(b, entries).pair_key(shared, 0, 2),
    )
    assert one != two


def test_altered_cohorts_and_neighbours_are_refused() -> None:
    turn = Round().carry(1)
    peers = turn.read(m.Peers, 0)
    forged = peers.cohort[0]._replace(nonce=b"zzzz")
    cases = [
        dataclasses.replace(peers, cohort=(forged, *peers.cohort[1:])),
        dataclasses.replace(peers, keys=peers.keys[:-1]),
        dataclasses.replace(peers, cohort=peers.cohort[:-1]),
    ]
    for case in cases:
        fresh = Round().carry(1)
        with refused(709):
            fresh.answer(0, case.encode())


def test_a_cohort_inflated_with_strangers_is_refused_on_the_ring_too() -> None:
    # The strangers are not neighbours here, so only the list can tell.
    changes = {"degree": 8, "threshold": 6, "min_cohort": 20, "min_survivors": 15}
    turn = Round(20, Policy(2, 0.2, 0.0, 1, degree=2), **changes).carry(1)
    peers = turn.read(m.Peers, 0)
    crowd = dataclasses.replace(peers, cohort=(*peers.cohort, m.Entry(999, b"zzzz")))
    with pytest.raises(SequesterError, match="not enrolled"):
        turn.answer(0, crowd.encode())


def test_a_key_swapped_under_a_signature_is_refused() -> None:
    for part in ("channel", "mask"):
        turn = Round().carry(1)
        peers = turn.read(m.Peers, 0)
        mine = crypto.public_of(b"e" * 32)
        swapped = tuple(k._replace(**{part: mine}) if k.member == 2 else k for k in peers.keys)
        with refused(709):
            turn.answer(0, dataclasses.replace(peers, keys=swapped).encode())


def test_adverts_of_an_earlier_round_are_refused() -> None:
    old = Round(round_number=1).carry(1)
    new = Round(round_number=2).carry(1)
    stale = old.read(m.Peers, 0).keys[0]
    peers = new.read(m.Peers, 0)
    nonces = dict(old.read(m.Peers, 0).cohort)
    cohort = tuple(e._replace(nonce=nonces[1]) if e.member == 1 else e for e in peers.cohort)
    with refused(709):
        new.answer(
            0, dataclasses.replace(peers, cohort=cohort, keys=(stale, *peers.keys[1:])).encode()
        )
    with refused(702):
        Round(round_number=2).carry(1).answer(0, old.outbox[0])


def test_doubled_keys_and_low_order_points_are_refused() -> None:
    turn = Round(active=False).carry(1)
    peers = turn.read(m.Peers, 0)
    copied = peers.keys[1]._replace(channel=peers.keys[0].channel)
    with refused(710):
        turn.answer(
            0,
            dataclasses.replace(peers, keys=(peers.keys[0], copied, *peers.keys[2:])).encode(),
        )
    turn = Round(active=False).carry(1)
    peers = turn.read(m.Peers, 0)
    weak = peers.keys[1]._replace(channel=bytes(32))
    with refused(722):
        turn.answer(
            0, dataclasses.replace(peers, keys=(peers.keys[0], weak, *peers.keys[2:])).encode()
        )


def test_a_stuck_generator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng.os, "urandom", lambda count: b"\x11" * count)
    identities = enrol(range(2), 1)
    with refused(721):
        Client(identities[0], roster_of(identities), LAX, model=MODEL, config=CONFIG)


@pytest.mark.parametrize("change", ["tampered", "swapped", "reflected", "replayed", "cut"])
def test_parcels_that_are_not_as_sealed_are_refused(change: str) -> None:
    turn, other = Round().carry(2), Round(round_number=5).carry(2)
    client = turn.clients[0]
    box = list(turn.read(m.Sealed, 0).parcels)
    if change == "tampered":
        flipped = bytes([box[1].sealed[0] ^ 1]) + box[1].sealed[1:]
        box[1] = box[1]._replace(sealed=flipped)
    elif change == "swapped":
        box[0], box[1] = (
            box[0]._replace(sealed=box[1].sealed),
            box[1]._replace(sealed=box[0].sealed),
        )
    elif change == "reflected":
        mine = m.Shares.decode(turn.clients[0]._answered[1], turn.session).parcels
        box[0] = parcels.deliver(client._context, 0, mine[0])._replace(peer=1)
    elif change == "replayed":
        box[0] = m.Sealed.decode(other.outbox[0], other.session).parcels[0]
    else:
        box[2] = box[2]._replace(checks=bytes(16))
    turn.answer(0, m.Sealed(turn.session.digest, tuple(box)).encode())
    spoilt = {"tampered": (2,), "swapped": (1, 2), "cut": (3,)}.get(change, (1,))
    assert client.doubts == spoilt
    assert set(client._held) == {0, 1, 2, 3, 4} - set(spoilt)


def test_a_parcel_from_no_neighbour_is_refused() -> None:
    turn = Round().carry(2)
    box = list(turn.read(m.Sealed, 0).parcels)
    with refused(711):
        turn.answer(0, m.Sealed(turn.session.digest, (*box, box[-1]._replace(peer=9))).encode())


def test_the_two_directions_of_a_pair_share_no_keystream() -> None:
    key, plain = b"k" * 32, bytes(64)
    up, down = (crypto.seal(key, upward=u, plaintext=plain, context=b"") for u in (True, False))
    assert up[:64] != down[:64]
    opened = crypto.unseal(key, upward=False, ciphertext=up, context=b"")
    assert opened is None


def test_a_client_listed_as_dropped_gives_nothing() -> None:
    turn = Round().carry(3)
    with refused(715):
        turn.answer(0, _survivors(turn, [1, 2, 3, 4]))


def test_fewer_survivors_than_the_threshold_reveal_nothing() -> None:
    turn = Round(5, LAX, min_survivors=2).carry(3)
    with refused(714):
        turn.answer(0, _survivors(turn, [0, 1]))
    turn = Round(5, LAX, threshold=4).carry(3)
    confirm = m.Confirm.decode(turn.answer(1), turn.session)
    tag = next(t for p, t in confirm.tags if p == 0)
    turn.answer(0)
    answer = turn.answer(0, m.Confirmed(turn.session.digest, (m.Tag(1, tag),)).encode())
    assert reveals_nothing(turn, answer, doubts=[])
    with refused(703):
        turn.answer(0, m.Confirmed(turn.session.digest, ()).encode())


def test_any_two_secrets_need_more_honest_answers_than_there_are() -> None:
    # 2t > n + c: whatever the server tells each honest member, not both secrets of one open.
    for members in range(3, 9):
        for corrupt in range(members // 3):
            threats = Threats((corrupt + 0.01) / members, 0.0)
            threshold = full_threshold(members, threats)
            honest = members - corrupt
            for told_dropped in range(honest + 1):
                seeds, keys = honest - told_dropped + corrupt, told_dropped + corrupt
                assert not (seeds >= threshold and keys >= threshold)


# --- what a corrupt client may try ------------------------------------------------------------


def test_a_false_share_is_blamed_and_left_out() -> None:
    for kind in ("seeds", "keys"):
        turn = Round(6).carry(2).carry(1, gone={5}).carry(1)
        for member in range(5):
            reveal = m.Reveal.decode(turn.answer(member), turn.session)
            if member == 1:
                shares = getattr(reveal, kind)
                words = field.from_bytes(shares[0].share, 16)
                words[3] = (words[3] + 1) % field.PRIME
                false = shares[0]._replace(share=field.to_bytes(words[None])[0])
                reveal = dataclasses.replace(reveal, **{kind: (false, *shares[1:])})
            turn.server.receive(member, reveal.encode())
        turn.server.close()
        assert turn.server.outcome is not None
        assert turn.server.outcome.blamed == (1,)
        narrow, _ = expected_sum(turn.session, turn.vectors, range(5))
        assert [int(x) for x in turn.server.outcome.total.narrow] == narrow


def test_a_dealer_of_false_shares_is_named_and_the_round_ends() -> None:
    turn = Round(5).carry(1)
    liar = turn.clients[2]
    honest = liar._split
    liar._split = lambda count: [bytes([s[0] ^ 1]) + s[1:] for s in honest(count)]
    turn.carry(3)
    for member in range(5):
        turn.server.receive(member, turn.answer(member))
    with pytest.raises(SequesterError, match="SQ-716 member 2"):
        turn.server.close()
    assert turn.server.outcome is None


def test_a_message_under_another_name_is_refused_by_the_server() -> None:
    turn = Round().carry(1)
    answer = turn.answer(0)
    for member in (1, 77):
        with refused(709):
            turn.server.receive(member, answer)
    assert turn.server.receive(0, answer)
    assert not turn.server.receive(0, answer)


def test_an_unenrolled_or_unsigned_advert_is_refused_by_the_server() -> None:
    turn = Round()
    advert = m.Advert.decode(turn.answer(0), turn.session)
    unsigned = dataclasses.replace(advert, keys=advert.keys._replace(signature=bytes(64)))
    with refused(709):
        turn.server.receive(0, unsigned.encode())
    stranger = dataclasses.replace(advert, keys=advert.keys._replace(member=99))
    with refused(709):
        turn.server.receive(99, stranger.encode())


def test_vectors_that_do_not_fit_are_refused_before_anything_leaves() -> None:
    turn = Round().carry(2)
    good = turn.vectors[0]
    for bad in (
        None,
        dataclasses.replace(good, narrow=good.narrow[:-1]),
        dataclasses.replace(good, narrow=good.narrow.astype(np.uint64)),
        dataclasses.replace(good, wide=good.wide.astype(np.int32)),
    ):
        with refused(713):
            turn.clients[0].answer(turn.outbox[0], bad)
    masked = turn.clients[0].answer(turn.outbox[0], good)  # A mistake of its own ends nothing.
    with refused(701):
        turn.server.receive(0, masked + b"\x00")


# --- what the server sees ---------------------------------------------------------------------


def test_contiguous_dropouts_on_the_ring_abort_and_random_ones_do_not() -> None:
    # The ring's order comes from nonces of this round. Whoever could foresee it and drop an
    # arc would stop the round; nobody who drops for other reasons can.
    members, degree, threshold = 80, 56, 34
    policy = Policy(2, 0.3, 0.0, 1, degree=2)
    drops = {x: "masked" for x in range(20)}
    session, vectors, done = play(
        range(members), drops, degree=degree, threshold=threshold, policy=policy,
        min_survivors=56, min_cohort=56,
    )  # fmt: skip
    assert is_exact(session, vectors, done)

    identities = enrol(range(members), 1)
    session = session_for(
        identities, degree=degree, threshold=threshold, min_survivors=56, min_cohort=56
    )
    server, clients = open_round(session, identities, policy)
    outbox = dict.fromkeys(clients, server.offer())
    for _ in range(2):
        for member, message in outbox.items():
            server.receive(member, clients[member].answer(message))
        outbox = server.close()
    arc = set(server._context.graph.ring[10:34])
    vectors = vectors_for(session, clients)
    for member, message in outbox.items():
        if member not in arc:
            server.receive(member, clients[member].answer(message, vectors[member]))
    outbox = server.close()
    outcomes = []
    for member, message in outbox.items():
        try:
            clients[member].answer(message)
            outcomes.append(True)
        except SequesterError as refusal:
            outcomes.append(refusal.code)
    assert 714 in outcomes


def test_repr_and_errors_hold_no_secret() -> None:
    turn = Round().carry(2)
    client = turn.clients[0]
    keys = [client._mask_private, client._channel_private]
    secrets = [client._secret, client._seed, *(key.private_bytes_raw() for key in keys)]
    shown = repr(client) + repr(client._identity) + str(vars(turn.server).keys())
    with pytest.raises(SequesterError) as refusal:
        turn.answer(0, m.Sealed(turn.session.digest, ()).encode())
    shown += str(refusal.value)
    for secret in secrets:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert client._secret == client._seed == b""
    assert not client._held
    assert not {"_mask_private", "_channel_private"} & vars(client).keys()


def test_the_server_refuses_a_session_of_another_roster() -> None:
    identities = enrol(range(3), 1)
    with pytest.raises(UsageError, match="SQ-723"):
        Server(session_for(identities), roster_of(enrol(range(3), 2)))


@pytest.mark.parametrize("gone", [set(), {2}])
def test_shares_that_are_no_field_elements_are_their_dealers_doing(gone: set[int]) -> None:
    # The digests announced are those of the rubbish, so no holder is to blame.
    turn = Round(5).carry(1)
    liar = turn.clients[2]
    honest = liar._split
    size = field.share_bytes(m.SEED_WORDS)
    assert size == 34
    # The marks of 65536 say that all words are, and the words say that they are not.
    liar._split = lambda context: [
        share[: size - 2] + b"\xff\xff" + share[size:-2] + b"\xff\xff" for share in honest(context)
    ]
    turn.carry(1).carry(1, gone).carry(1, gone)
    for member in set(turn.clients) - gone:
        turn.server.receive(member, turn.answer(member))
    with pytest.raises(SequesterError, match=r"SQ-716.*member 2 dealt"):
        turn.server.close()
