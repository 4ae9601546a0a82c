"""Parcels: the two shares that a member deals to a neighbour, sealed under the pair's key.

A parcel that its receiver cannot use, whatever the reason, is as good as none: the receiver goes
on without that share and says so when it reveals. Only what a dealer sealed for this receiver, in
this round, with these digests beside it, opens.
"""

from __future__ import annotations

from sequester.secagg import crypto
from sequester.secagg.context import KEY, SEED, Context
from sequester.secagg.messages import SHARE_BYTES, Parcel


def pack(context: Context, sealing: bytes, dealer: int, holder: int, share: bytes) -> Parcel:
    """The parcel in which `dealer` sends `share` (its seed's, then its key's) to `holder`."""
    seed_check = context.share_check(SEED, dealer, holder, share[:SHARE_BYTES])
    key_check = context.share_check(KEY, dealer, holder, share[SHARE_BYTES:])
    sealed = crypto.seal(
        sealing,
        upward=dealer < holder,
        plaintext=share,
        context=context.parcel_context(dealer, holder, seed_check + key_check),
    )
    return Parcel(holder, seed_check, key_check, sealed)


def unpack(context: Context, sealing: bytes, parcel: Parcel, holder: int) -> bytes | None:
    """The two shares in a parcel from `parcel.peer`; None if anything about it is untrue."""
    dealer = parcel.peer
    share = crypto.unseal(
        sealing,
        upward=dealer < holder,
        ciphertext=parcel.sealed,
        context=context.parcel_context(dealer, holder, parcel.seed_check + parcel.key_check),
    )
    if share is None:
        return None
    fits = context.share_check(SEED, dealer, holder, share[:SHARE_BYTES]) == parcel.seed_check
    fits &= context.share_check(KEY, dealer, holder, share[SHARE_BYTES:]) == parcel.key_check
    return share if fits else None
