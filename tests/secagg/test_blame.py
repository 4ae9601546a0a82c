"""Members who lie: each lie is harmless or named, and no honest member is ever blamed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequester.core.errors import SequesterError, VerificationError
from sequester.secagg import crypto, field, parcels
from sequester.secagg import messages as m
from sequester.secagg.client import Client, Stage
from sequester.secagg.context import signed_bytes
from sequester.secagg.policy import Policy
from sequester.secagg.server import Phase
from sequester.secagg.simulator import Simulated, Traffic
from tests.secagg.rounds import is_exact
from tests.secagg.test_attacks import Round

LOW_ORDER = sorted(crypto._KNOWN_SECRET)
Lie = Callable[[Client, Round, set[int]], bytes]


def _said(client: Client, kind: type):
    assert client._answered is not None
    return kind.decode(client._answered[1], client.session)


def _signed(client: Client, **changes) -> bytes:
    advert = _said(client, m.Advert)
    keys = advert.keys._replace(**changes)
    told = signed_bytes(client.session, keys, advert.nonce)
    keys = keys._replace(signature=client._identity.sign(told))
    return dataclasses.replace(advert, keys=keys).encode()


def weak_channel(client: Client, turn: Round, at: set[int]) -> bytes:
    return _signed(client, channel=LOW_ORDER[sum(at) % len(LOW_ORDER)])


def weak_mask(client: Client, turn: Round, at: set[int]) -> bytes:
    return _signed(client, mask=LOW_ORDER[sum(at) % len(LOW_ORDER)])


def one_key_twice(client: Client, turn: Round, at: set[int]) -> bytes:
    return _signed(client, mask=_said(client, m.Advert).keys.channel)


def unsigned(client: Client, turn: Round, at: set[int]) -> bytes:
    advert = _said(client, m.Advert)
    return dataclasses.replace(advert, keys=advert.keys._replace(signature=bytes(64))).encode()


def cut(client: Client, turn: Round, at: set[int]) -> bytes:
    assert client._answered is not None
    return client._answered[1][:-1]


def _dealing(client: Client, change: Callable[[m.Parcel], m.Parcel], at: set[int]) -> bytes:
    shares = _said(client, m.Shares)
    dealt = tuple(change(p) if p.peer in at else p for p in shares.parcels)
    return dataclasses.replace(shares, parcels=dealt).encode()


def rubbish(client: Client, turn: Round, at: set[int]) -> bytes:
    return _dealing(client, lambda p: p._replace(sealed=bytes(len(p.sealed))), at)


def another_seed_check(client: Client, turn: Round, at: set[int]) -> bytes:
    return _dealing(client, lambda p: p._replace(seed_check=bytes(16)), at)


def another_key_check(client: Client, turn: Round, at: set[int]) -> bytes:
    return _dealing(client, lambda p: p._replace(key_check=bytes(16)), at)


def checks_exchanged(client: Client, turn: Round, at: set[int]) -> bytes:
    return _dealing(
        client, lambda p: p._replace(seed_check=p.key_check, key_check=p.seed_check), at
    )


def shares_unlike_their_checks(client: Client, turn: Round, at: set[int]) -> bytes:
    def change(parcel: m.Parcel) -> m.Parcel:
        checks = parcels.deliver(client._context, client.member, parcel).checks
        place = client._context.parcel_context(client.member, parcel.peer, checks)
        sealed = crypto.seal(
            client._channels[parcel.peer].sealing,
            upward=client.member < parcel.peer,
            plaintext=bytes(2 * m.SHARE_BYTES),
            context=place,
        )
        return parcel._replace(sealed=sealed)

    return _dealing(client, change, at)


def shares_of_nothing(client: Client, turn: Round, at: set[int]) -> bytes:
    """Sealed and announced as they are, but on no polynomial."""
    size = field.share_bytes(m.SEED_WORDS)

    def change(parcel: m.Parcel) -> m.Parcel:
        share = bytes([parcel.peer]) * (size - 2) + bytes(2)
        sealing = client._channels[parcel.peer].sealing
        return parcels.pack(client._context, sealing, client.member, parcel.peer, share * 2)

    return _dealing(client, change, at)


def another_commitment(client: Client, turn: Round, at: set[int]) -> bytes:
    return dataclasses.replace(_said(client, m.Shares), commitment=bytes(32)).encode()


def too_few_parcels(client: Client, turn: Round, at: set[int]) -> bytes:
    shares = _said(client, m.Shares)
    return dataclasses.replace(shares, parcels=shares.parcels[1:]).encode()


def wrong_tags(client: Client, turn: Round, at: set[int]) -> bytes:
    confirm = _said(client, m.Confirm)
    tags = tuple(m.Tag(p, bytes(16) if p in at else t) for p, t in confirm.tags)
    return dataclasses.replace(confirm, tags=tags).encode()


def tags_to_strangers(client: Client, turn: Round, at: set[int]) -> bytes:
    confirm = _said(client, m.Confirm)
    tags = tuple(sorted((*confirm.tags, m.Tag(999, bytes(16)), m.Tag(client.member, bytes(16)))))
    return dataclasses.replace(confirm, tags=tags).encode()


def too_few_tags(client: Client, turn: Round, at: set[int]) -> bytes:
    confirm = _said(client, m.Confirm)
    return dataclasses.replace(confirm, tags=confirm.tags[1:]).encode()


def _revealing(client: Client, change: Callable[[m.Share], m.Share | None]) -> bytes:
    reveal = _said(client, m.Reveal)
    seeds, keys = (tuple(filter(None, map(change, r))) for r in (reveal.seeds, reveal.keys))
    return dataclasses.replace(reveal, seeds=seeds, keys=keys).encode()


def false_shares(client: Client, turn: Round, at: set[int]) -> bytes:
    return _revealing(client, lambda s: s._replace(share=bytes(34)) if s.peer in at else s)


def withheld_shares(client: Client, turn: Round, at: set[int]) -> bytes:
    return _revealing(client, lambda s: None if s.peer in at else s)


def false_doubts(client: Client, turn: Round, at: set[int]) -> bytes:
    reveal = m.Reveal.decode(withheld_shares(client, turn, at), client.session)
    doubts = sorted(at & {s.peer for s in (*_said(client, m.Reveal).seeds, *reveal.keys)})
    return dataclasses.replace(
        reveal, doubts=tuple(d for d in doubts if d != client.member)
    ).encode()


def nothing_at_all(client: Client, turn: Round, at: set[int]) -> bytes:
    return m.Reveal(client.session.digest, client.member, (), ()).encode()


LIES: dict[Phase, tuple[Lie, ...]] = {
    Phase.ADVERT: (weak_channel, weak_mask, one_key_twice, unsigned, cut),
    Phase.SHARES: (
        rubbish, another_seed_check, another_key_check, checks_exchanged,
        shares_unlike_their_checks, shares_of_nothing, another_commitment, too_few_parcels, cut,
    ),
    Phase.MASKED: (cut,),
    Phase.CONFIRM: (wrong_tags, tags_to_strangers, too_few_tags, cut),
    Phase.REVEAL: (false_shares, withheld_shares, false_doubts, nothing_at_all, cut),
}  # fmt: skip
FULL = {"members": 7, "threshold": 5}
RING = {
    "members": 9, "threshold": 4, "degree": 6, "policy": Policy(2, 0.45, 0.0, 1, degree=2),
}  # fmt: skip


def carry(turn: Round, lies: dict[int, dict[Phase, Lie]], at: set[int], gone=frozenset()) -> None:
    """A whole round with an honest server; no honest client may refuse anything."""
    while turn.server.phase not in {Phase.DONE, Phase.ABORTED}:
        phase = turn.server.phase
        for member, message in turn.outbox.items():
            if (member, phase) in gone:
                continue
            answer = turn.answer(member, message)
            lie = lies.get(member, {}).get(phase)
            if lie is None:
                assert turn.server.receive(member, answer)
                continue
            with contextlib.suppress(VerificationError):
                turn.server.receive(member, lie(turn.clients[member], turn, at))
        try:
            turn.outbox = turn.server.close()
        except SequesterError as refusal:
            assert turn.server.faults.told() in str(refusal)  # noqa: PT017 - or it ends well


def check(turn: Round, liars: Iterable[int]) -> None:
    """What holds after every round in which only `liars` lie."""
    server, liars = turn.server, set(liars)
    assert set(server.faults.blamed) <= liars
    assert all(set(pair) & liars for pair in server.faults.disputes)
    if server.outcome is None:
        named = set(server.faults.blamed).union(*server.faults.disputes)
        assert named & liars
        return
    simulated = Simulated(server.outcome, Traffic())
    assert is_exact(turn.session, turn.vectors, simulated)
    assert set(turn.clients) - liars <= set(server.outcome.survivors)
    assert server.outcome.blamed == tuple(sorted(server.faults.blamed))


@pytest.mark.parametrize("shape", [FULL, RING], ids=["full", "ring"])
@pytest.mark.parametrize(
    ("phase", "lie"),
    [(phase, lie) for phase, lies in LIES.items() for lie in lies],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
@pytest.mark.parametrize("reach", ["one", "all"])
def test_every_lie_of_one_member_is_harmless_or_named(shape, phase, lie, reach) -> None:
    turn = Round(**shape)
    at = {1} if reach == "one" else set(turn.clients) - {2}
    carry(turn, {2: {phase: lie}}, at)
    check(turn, {2})
    named = {2} & set(turn.server.faults.blamed) or {
        one for pair in turn.server.faults.disputes for one in pair
    } & {2}
    # On the ring 1 may be no neighbour of 2; what nobody was told harms nobody.
    harmless = turn.server.outcome is not None and (shape is RING or lie is shares_of_nothing)
    assert named or (reach == "one" and harmless)


SHAPE = st.sampled_from([FULL, RING])


@given(
    SHAPE,
    st.dictionaries(
        st.integers(0, 6),
        st.fixed_dictionaries({p: st.sampled_from((None, *lies)) for p, lies in LIES.items()}),
        min_size=1,
        max_size=2,
    ),
    st.sets(st.integers(0, 8)),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_whatever_two_members_say_in_all_phases(shape, lies, at, drop) -> None:
    turn = Round(**shape)
    # Beside one liar another member may leave: two may be missing of both shapes.
    drop &= len(lies) == 1 and 6 not in lies
    gone = {(6, p) for p in Phase if p >= Phase.MASKED} if drop else set()
    carry(turn, lies, at, gone)
    check(turn, {*lies, 6} if gone else lies)
    if len(lies) == 1 and not gone:
        honest = set(turn.clients) - set(lies)
        assert all(turn.clients[one].stage is not Stage.REFUSED for one in honest)


def test_a_false_complaint_costs_its_maker_alone() -> None:
    """It names the pair, opens nothing more, and leaves the accused in the sum."""
    turn = Round(**FULL)
    carry(turn, {3: {Phase.REVEAL: false_doubts}}, {0, 1, 2})
    assert turn.server.outcome is not None
    assert turn.server.outcome.survivors == tuple(range(7))
    assert not turn.server.outcome.blamed
    assert set(turn.server.outcome.disputes) == {(0, 3), (1, 3), (2, 3)}
    reveals = turn.server._arrived.reveals
    opened = Counter(share.peer for reveal in reveals.values() for share in reveal.keys)
    assert not opened  # Nobody's mask key: an accused is not treated as dropped.


def test_more_accusers_than_may_be_corrupt_settle_it() -> None:
    turn = Round(**FULL)
    assert 2 * turn.session.threshold - len(turn.clients) - 1 == 2
    carry(turn, {5: {Phase.SHARES: rubbish}}, {0, 1})
    assert turn.server.outcome is not None
    assert not turn.server.outcome.blamed
    turn = Round(**(FULL | {"threshold": 4}))
    carry(turn, {5: {Phase.SHARES: rubbish}}, {0, 1, 2})
    assert turn.server.outcome is not None
    assert turn.server.outcome.blamed == (5,)
    assert turn.clients[0].doubts == (5,)


def test_a_key_that_two_members_show_keeps_the_second_out() -> None:
    turn = Round(**FULL)
    for member in turn.clients:
        turn.answer(member)
    turn.server.receive(0, turn.clients[0]._answered[1])
    copied = _said(turn.clients[0], m.Advert).keys.mask
    for kind in ("channel", "mask"):
        with pytest.raises(VerificationError, match="SQ-710"):
            turn.server.receive(1, _signed(turn.clients[1], **{kind: copied}))
    for member in range(2, 7):
        turn.server.receive(member, turn.clients[member]._answered[1])
    turn.outbox = turn.server.close()
    carry(turn, {}, set())
    assert turn.server.outcome is not None
    assert turn.server.outcome.survivors == (0, 2, 3, 4, 5, 6)
    assert turn.server.outcome.disputes == ((1, 0),)


def test_the_low_order_points_are_those_that_agree_on_zeros() -> None:
    from tests.secagg.test_known_answers import WYCHEPROOF

    private = crypto.X25519PrivateKey.from_private_bytes(b"p" * 32)
    for point in crypto._KNOWN_SECRET:
        for same in (point, point[:31] + bytes([point[31] | 0x80])):
            assert crypto.has_low_order(same)
            with pytest.raises(SequesterError, match="SQ-722"):
                crypto.agree(private, same)
    assert not crypto.has_low_order(private.public_key().public_bytes_raw())
    for row in WYCHEPROOF["x25519"]:
        public = bytes.fromhex(row[1])
        try:
            crypto.agree(private, public)
        except SequesterError:
            assert crypto.has_low_order(public)
        else:
            assert not crypto.has_low_order(public)
