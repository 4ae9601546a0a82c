"""Parcels: the two shares that a member deals to a neighbour, sealed under the pair's key.

A parcel that its receiver cannot use, whatever the reason, is as good as none: the receiver goes
on without that share and says so when it reveals. Only what a dealer sealed for this receiver, in
this round, opens, and only beside the checks that the server holds against its receiver.
"""

from __future__ import annotations

from sequester.secagg import crypto
from sequester.secagg.context import KEY, SEED, Context
from sequester.secagg.messages import SHARE_BYTES, Delivery, Parcel


def pack(context: Context, sealing: bytes, dealer: int, holder: int, share: bytes) -> Parcel:
    """The parcel in which `dealer` sends `share` (its seed's, then its key's) to `holder`."""
    checks = _share_checks(context, dealer, holder, share)
    sealed = crypto.seal(
        sealing,
        upward=dealer < holder,
        plaintext=share,
        context=context.parcel_context(
            dealer, holder, context.parcel_checks(dealer, holder, *checks)
        ),
    )
    return Parcel(holder, *checks, sealed)


def deliver(context: Context, dealer: int, parcel: Parcel) -> Delivery:
    """What the server passes on of a parcel; it keeps the checks."""
    checks = context.parcel_checks(dealer, parcel.peer, parcel.seed_check, parcel.key_check)
    return Delivery(dealer, checks, parcel.sealed)


def unpack(context: Context, sealing: bytes, parcel: Delivery, holder: int) -> bytes | None:
    """The two shares in a parcel from `parcel.peer`; None if anything about it is untrue."""
    dealer = parcel.peer
    share = crypto.unseal(
        sealing,
        upward=dealer < holder,
        ciphertext=parcel.sealed,
        context=context.parcel_context(dealer, holder, parcel.checks),
    )
    if share is None:
        return None
    checks = _share_checks(context, dealer, holder, share)
    return share if context.parcel_checks(dealer, holder, *checks) == parcel.checks else None


def _share_checks(context: Context, dealer: int, holder: int, share: bytes) -> tuple[bytes, bytes]:
    seed, key = share[:SHARE_BYTES], share[SHARE_BYTES:]
    return (
        context.share_check(SEED, dealer, holder, seed),
        context.share_check(KEY, dealer, holder, key),
    )
