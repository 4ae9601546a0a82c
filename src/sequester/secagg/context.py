"""Digests and keys that both sides compute once the cohort is known."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from sequester.secagg.crypto import LABEL, derive, digest
from sequester.secagg.graph import Graph
from sequester.secagg.masks import MASK_KEY_BYTES
from sequester.secagg.messages import CHECK_BYTES, Entry, Keys
from sequester.secagg.session import Session

_ONE, _TWO = struct.Struct("<I"), struct.Struct("<II")
SEED, KEY = b"\x00", b"\x01"  # The two kinds of share.


def id_bytes(*members: int) -> bytes:
    """Identifiers as four bytes each."""
    return (_ONE if len(members) == 1 else _TWO).pack(*members)


def signed_bytes(session: Session, keys: Keys, nonce: bytes) -> bytes:
    """What a member signs: the session, itself, its keys and its nonce."""
    head = LABEL + b"advert\x00" + session.digest + id_bytes(keys.member)
    return head + keys.channel + keys.mask + nonce


@dataclass(frozen=True)
class Context:
    """A session and the cohort that joined it."""

    session: Session
    cohort: tuple[Entry, ...]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the session and every (member, nonce): also the ring's beacon."""
        rows = (id_bytes(member) + nonce for member, nonce in self.cohort)
        return digest(b"cohort", self.session.digest, *rows)

    @cached_property
    def graph(self) -> Graph:
        """Who is whose neighbour."""
        members = tuple(entry.member for entry in self.cohort)
        return Graph(members, self.session.degree, self.digest)

    @property
    def most_corrupt(self) -> int:
        """The most holders of one secret that can be corrupt where this threshold protects it."""
        holders = self.session.degree or len(self.cohort)
        threshold = self.session.threshold
        return max(2 * threshold - holders - 1, 0) if self.session.active else threshold - 1

    def _pair(self, one: int, other: int) -> bytes:
        return self.digest + id_bytes(min(one, other), max(one, other))

    def channel_keys(self, secret: bytes, one: Keys, other: Keys) -> tuple[bytes, bytes]:
        """A pair's sealing key and confirmation key.

        Both members' public keys are in the derivation: whoever is shown another key than its
        peer made can neither open that peer's parcel nor confirm anything to it.
        """
        low, high = sorted((one, other))
        shown = low.channel + low.mask + high.channel + high.mask
        keys = derive(secret, b"channel", self._pair(one.member, other.member) + shown, 64)
        return keys[:32], keys[32:]

    def pair_key(self, secret: bytes, one: int, other: int) -> bytes:
        """The key of the mask that one of a pair adds and the other takes."""
        return derive(secret, b"pair mask", self._pair(one, other), MASK_KEY_BYTES)

    def self_key(self, seed: bytes, member: int) -> bytes:
        """The key of a member's own mask."""
        return derive(seed, b"self mask", self.digest + id_bytes(member), MASK_KEY_BYTES)

    def commitment(self, seed: bytes, member: int) -> bytes:
        """What a member publishes of its seed before anybody opens it."""
        return digest(b"commitment", self.digest, id_bytes(member), seed)

    def share_check(self, kind: bytes, dealer: int, holder: int, share: bytes) -> bytes:
        """A digest that lets the server tell a false share from the one that was dealt."""
        return digest(b"share", self.digest, kind, id_bytes(dealer, holder), share)[:CHECK_BYTES]

    def parcel_checks(self, dealer: int, holder: int, seed_check: bytes, key_check: bytes) -> bytes:
        """The digest that tells a holder which two checks the server was given."""
        ids = id_bytes(dealer, holder)
        return digest(b"checks", self.digest, ids, seed_check, key_check)[:CHECK_BYTES]

    def parcel_context(self, sender: int, receiver: int, checks: bytes) -> bytes:
        """What a sealed parcel authenticates beside its contents."""
        return self.digest + id_bytes(sender, receiver) + checks

    def survivor_digest(self, bitmap: bytes) -> bytes:
        """What members confirm to one another."""
        return digest(b"survivors", self.digest, bitmap)
