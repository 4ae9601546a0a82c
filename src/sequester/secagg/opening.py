"""Taking the masks off: survivors' own masks, and what dropped members left in the others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sequester.core.errors import VerificationError
from sequester.secagg import crypto, masks
from sequester.secagg.context import KEY, SEED, Context
from sequester.secagg.faults import Faults
from sequester.secagg.field import from_bytes, recover
from sequester.secagg.masks import Words
from sequester.secagg.messages import SEED_WORDS, Advert, Reveal, Shares


@dataclass
class Opening:
    """The evidence of one round; whoever is caught lying is noted in `faults`."""

    context: Context
    adverts: Mapping[int, Advert]
    dealt: Mapping[int, Shares]
    reveals: Mapping[int, Reveal]
    faults: Faults

    @cached_property
    def _revealed(self) -> dict[bytes, dict[int, dict[int, bytes]]]:
        """Kind → holder → dealer → share."""
        return {
            SEED: {holder: dict(each.seeds) for holder, each in self.reveals.items()},
            KEY: {holder: dict(each.keys) for holder, each in self.reveals.items()},
        }

    def unmask(self, total: Words, survivors: Sequence[int]) -> int:
        """Take every mask off `total`, in place.

        Returns:
            How many masks that were.

        Raises:
            VerificationError: SQ-714 too few shares, SQ-716 a dealer whose shares do not open
                what it committed to. `total` is untouched then.
        """
        arrived = set(survivors)
        plus: list[bytes] = []
        minus = [self.context.self_key(self._seed(member), member) for member in survivors]
        for member in sorted(set(self.dealt) - arrived):
            left = [n for n in self.context.graph.neighbours(member) if n in arrived]
            if not left:
                continue
            private = X25519PrivateKey.from_private_bytes(self._key(member))
            for other in left:
                secret = crypto.agree(private, self.adverts[other].keys.mask)
                key = self.context.pair_key(secret, member, other)
                # The lower of a pair added this mask, so the server takes it; and conversely.
                (minus if other < member else plus).append(key)
        masks.apply(total, plus, minus)
        return len(plus) + len(minus)

    def _seed(self, member: int) -> bytes:
        seed = self._secret(member, SEED)
        if self.context.commitment(seed, member) != self.dealt[member].commitment:
            raise self._false_dealer(member)
        return seed

    def _key(self, member: int) -> bytes:
        key = self._secret(member, KEY)
        if crypto.public_of(key) != self.adverts[member].keys.mask:
            raise self._false_dealer(member)
        return key

    def _false_dealer(self, member: int) -> VerificationError:
        self.faults.blame(member, 716)
        return VerificationError(
            716,
            f"member {member} dealt shares that do not open what it committed to; the round ends, "
            "leave that member out of the next",
        )

    def _secret(self, dealer: int, kind: bytes) -> bytes:
        """Recover one secret from the first t shares that are as they were dealt."""
        threshold = self.context.session.threshold
        points: list[int] = []
        shares: list[np.ndarray] = []
        for point, holder in enumerate(self.context.graph.holders(dealer), start=1):
            share = self._revealed[kind].get(holder, {}).get(dealer)
            if share is None:
                continue
            check = self.context.share_check(kind, dealer, holder, share)
            if check != self._expected(kind, dealer, holder):
                self.faults.blame(holder, 716)
                continue
            points.append(point)
            try:
                # As announced, so what is wrong with it is the dealer's doing.
                shares.append(from_bytes(share, SEED_WORDS))
                if len(points) == threshold:
                    return recover(tuple(points), np.stack(shares))
            except VerificationError:
                raise self._false_dealer(dealer) from None
        raise VerificationError(
            714,
            f"{len(points)} shares of member {dealer}'s secret came back, {threshold} open it; "
            "the round ends and opens nothing",
        )

    @cached_property
    def _checks(self) -> dict[int, dict[int, tuple[bytes, bytes]]]:
        """Dealer → holder → the digests of the two shares it dealt."""
        return {
            dealer: {parcel.peer: (parcel.seed_check, parcel.key_check) for parcel in each.parcels}
            | {dealer: (each.own_check, b"")}
            for dealer, each in self.dealt.items()
        }

    def _expected(self, kind: bytes, dealer: int, holder: int) -> bytes:
        seed_check, key_check = self._checks[dealer][holder]
        return seed_check if kind == SEED else key_check
