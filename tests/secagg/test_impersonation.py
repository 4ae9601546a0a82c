"""A stolen enrolled key makes its holder no peer of the victim's (key-compromise impersonation).

The thief holds the victim's enrolled key and runs the server; the others' enrolled keys are safe.
It may speak as the victim. It may not make the victim believe that it speaks with its peers, for
then it would hold every share of the victim and every mask, and read the vector in clear.
"""

from __future__ import annotations

import pytest

from sequester import secagg
from sequester.core.errors import VerificationError
from sequester.secagg import crypto
from sequester.secagg import messages as m
from sequester.secagg.context import Context, signed_bytes
from sequester.secagg.simulator import enrol, roster_of

MEMBERS, VICTIM = 10, 0


def _joined():
    """A victim that has sent its advert, the session, and all enrolled identities."""
    plan = secagg.plan(MEMBERS, 33, noise_multiplier=1.0, dropout=0.1, corrupt=0.1)
    identities = enrol(range(MEMBERS))
    roster = roster_of(identities)
    session = plan.session("run", 0, model=bytes(32), roster=roster.digest)
    victim = secagg.Client(
        identities[VICTIM], roster, plan.policy(), model=session.model, config=session.config
    )
    advert = m.Advert.decode(victim.answer(m.Offer(session).encode()), session)
    return victim, session, identities, advert


def _played(session, advert, signer) -> tuple[bytes, dict[int, m.Keys]]:
    """Fresh keys that the server made for all peers, signed by whomever `signer` returns."""
    nonce, peers = b"abcd", {}
    for j in range(1, MEMBERS):
        fresh = (crypto.public_of(bytes([j]) * 32), crypto.public_of(bytes([100 + j]) * 32))
        keys = m.Keys(j, *fresh, b"")
        signature = signer(j).sign(signed_bytes(session, keys, nonce))
        peers[j] = keys._replace(signature=signature)
    entries = (m.Entry(VICTIM, advert.nonce), *(m.Entry(j, nonce) for j in peers))
    graph = Context(session, entries).graph
    shown = tuple(peers[j] for j in graph.neighbours(VICTIM))
    return m.Peers(session.digest, entries, shown).encode(), peers


def test_the_thief_of_the_victims_key_cannot_play_its_peers() -> None:
    victim, session, identities, advert = _joined()
    stolen = crypto.Identity(VICTIM, identities[VICTIM].key)
    message, _ = _played(session, advert, lambda _: stolen)
    with pytest.raises(VerificationError, match="SQ-709 member 1 did not sign"):
        victim.answer(message)
    # Nothing secret was made for the forged peers, and nothing is left to answer with.
    assert victim._channels == {}
    assert victim._held == {}
    with pytest.raises(VerificationError, match="SQ-703"):
        victim.answer(message)


@pytest.mark.parametrize("peer", range(1, MEMBERS))
def test_every_single_peer_is_checked(peer: int) -> None:
    # All others are honest (or corrupt themselves): one forged signature is enough to stop.
    victim, session, identities, advert = _joined()
    message, _ = _played(
        session, advert, lambda j: identities[VICTIM] if j == peer else identities[j]
    )
    with pytest.raises(VerificationError, match=f"SQ-709 member {peer} did not sign"):
        victim.answer(message)


def test_the_same_peers_with_their_own_signatures_are_dealt_to() -> None:
    # The attack above fails for the signatures and nothing else.
    victim, session, identities, advert = _joined()
    message, peers = _played(session, advert, lambda j: identities[j])
    dealt = m.Shares.decode(victim.answer(message), session)
    assert {parcel.peer for parcel in dealt.parcels} == set(peers)
