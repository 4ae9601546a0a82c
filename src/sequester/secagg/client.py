"""The client: a state machine from bytes to bytes, without I/O, clock or global randomness.

It answers each message once. The same bytes again get the same answer; other bytes in the
same place are refused, so no server obtains two answers about one peer. A refusal other than a
malformed, foreign or untimely message ends the client's part in the round and its secrets.
What a single peer may have spoilt (its parcel, its confirmation) ends nothing: the client goes on
without it and names the peer when it reveals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sequester.core.errors import SequesterError, UsageError, VerificationError
from sequester.core.rng import Keystream
from sequester.secagg import crypto, field, masks, parcels
from sequester.secagg.context import SEED, Context, id_bytes, signed_bytes
from sequester.secagg.masks import Words
from sequester.secagg.messages import (
    NONCE_BYTES,
    SEED_WORDS,
    SHARE_BYTES,
    Advert,
    Confirm,
    Confirmed,
    Keys,
    Masked,
    Offer,
    Parcel,
    Peers,
    Reveal,
    Sealed,
    Share,
    Shares,
    Survivors,
    Tag,
)
from sequester.secagg.policy import Policy
from sequester.secagg.session import Roster, Session
from sequester.secagg.wire import from_bitmap

HARMLESS = (701, 702, 703)  # Refusals that leave the client where it was.


class Stage(IntEnum):
    """What the client waits for: the type of the message that is due."""

    OFFER = 1
    PEERS = 3
    SEALED = 5
    SURVIVORS = 7
    CONFIRMED = 9
    DONE = 100
    REFUSED = 101


class Channel(NamedTuple):
    """What a pair of peers shares in one round."""

    sealing: bytes
    confirming: bytes
    mask_key: bytes  # The peer's public mask key.

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"Channel(mask_key={self.mask_key!r})"


class Client:
    """One member's part in one round."""

    def __init__(
        self,
        identity: crypto.Identity,
        roster: Roster,
        policy: Policy,
        *,
        model: bytes,
        config: bytes,
        secret: bytes | None = None,
    ) -> None:
        """Prepare for one round.

        Args:
            identity: The member's enrolled key.
            roster: All enrolled members, as this client knows them.
            policy: What this client insists on.
            model: SHA-256 of the model this client received.
            config: SHA-256 of the configuration this client works under.
            secret: 32 bytes from which all keys of the round are derived; fresh when not
                given. Only published transcripts and tests give one.
        """
        self.member = identity.member
        self.stage = Stage.OFFER
        self._identity = identity
        self._roster = roster
        self._policy = policy
        self._model = model
        self._config = config
        self._secret = crypto.healthy_secret() if secret is None else secret
        self._answered: tuple[bytes, bytes] | None = None
        self._session: Session | None = None
        self._channels: dict[int, Channel] = {}
        self._held: dict[int, bytes] = {}  # Dealer → its two shares, seed first.
        self._doubts: set[int] = set()
        self._retracing = False
        self._dropped: tuple[int, ...] = ()
        self._surviving: tuple[int, ...] = ()

    def answer(self, message: bytes, words: Words | None = None) -> bytes:
        """Answer the server's message.

        Args:
            message: What the server sent.
            words: This member's vector; needed for the answer to `sealed`, copied there.

        Raises:
            VerificationError: the message contradicts the protocol or its own evidence.
            LedgerRefusal: this client's policy does not allow it.
            UsageError: SQ-713 when `words` does not fit the session.
        """
        fingerprint = hashlib.sha256(message).digest()
        if self._answered and self._answered[0] == fingerprint:
            return self._answered[1]
        try:
            reply = self._dispatch(message, words)
        except SequesterError as refusal:
            if refusal.code not in HARMLESS and not isinstance(refusal, UsageError):
                self._forget(Stage.REFUSED)
            raise
        self._answered = (fingerprint, reply)
        return reply

    def retrace(self, message: bytes, answer: bytes) -> None:
        """Come where this member was after an answer that another process of it gave.

        Args:
            message: Was answered by a client of the same secret, which checked it.
            answer: That answer: it counts, so no signature is checked again and nothing masked.

        Raises:
            SequesterError: the message cannot have been answered so.
        """
        self._retracing = True
        try:
            self._dispatch(message, None)
        finally:
            self._retracing = False
        self._answered = (hashlib.sha256(message).digest(), answer)

    def _dispatch(self, message: bytes, words: Words | None) -> bytes:
        if self.stage is Stage.OFFER:
            return self._join(message)
        if self.stage is Stage.PEERS:
            return self._deal(message)
        if self.stage is Stage.SEALED:
            return self._mask(message, words)
        if self.stage is Stage.SURVIVORS:
            return self._confirm(message)
        if self.stage is Stage.CONFIRMED:
            return self._reveal(message)
        raise VerificationError(
            703, f"member {self.member} is {self.stage.name.lower()} and answers nothing more"
        )

    @property
    def doubts(self) -> tuple[int, ...]:
        """Neighbours whose parcel or confirmation did not fit: they lie, or the server does."""
        return tuple(sorted(self._doubts))

    @property
    def session(self) -> Session:
        """The session this client joined."""
        if self._session is None:
            raise UsageError(725, "the client has not joined a round yet")
        return self._session

    def _join(self, message: bytes) -> bytes:
        session = Offer.decode(message).session
        self._policy.check_offer(
            session, model=self._model, config=self._config, roster=self._roster.digest
        )
        if self._roster.keys.get(self.member) != self._identity.public:
            raise UsageError(
                723, f"member {self.member} is not enrolled with this key; enrol it before a round"
            )
        private = [
            X25519PrivateKey.from_private_bytes(crypto.derive(self._secret, label, session.digest))
            for label in (b"channel key", b"mask key")
        ]
        self._channel_private, self._mask_private = private
        channel, mask = (key.public_key().public_bytes_raw() for key in private)
        nonce = crypto.derive(self._secret, b"nonce", session.digest, NONCE_BYTES)
        keys = Keys(self.member, channel, mask, b"")
        signature = (
            self._identity.sign(signed_bytes(session, keys, nonce)) if session.active else bytes(64)
        )
        self._mine = keys._replace(signature=signature)
        self._nonce = nonce
        self._session, self.stage = session, Stage.PEERS
        return Advert(session.digest, self._mine, nonce).encode()

    def _deal(self, message: bytes) -> bytes:
        peers = Peers.decode(message, self.session)
        context = Context(self.session, peers.cohort)
        self._policy.check_cohort(self.session, len(peers.cohort))
        self._check_peers(context, peers)
        self._context = context
        self._seed = crypto.derive(self._secret, b"self mask", context.digest)
        holders = context.graph.holders(self.member)
        shares = self._split(len(holders))
        for keys in peers.keys:
            secret = crypto.agree(self._channel_private, keys.channel)
            pair = context.channel_keys(secret, self._mine, keys)
            self._channels[keys.member] = Channel(*pair, keys.mask)
        dealt: list[Parcel] = []
        own_check = bytes(16)
        for holder, share in zip(holders, shares, strict=True):
            if holder == self.member:
                self._held[holder] = share
                own_check = context.share_check(SEED, holder, holder, share[:SHARE_BYTES])
            else:
                sealing = self._channels[holder].sealing
                dealt.append(parcels.pack(context, sealing, self.member, holder, share))
        commitment = context.commitment(self._seed, self.member)
        self.stage = Stage.SEALED
        return Shares(
            self.session.digest, self.member, commitment, own_check, tuple(dealt)
        ).encode()

    def _check_peers(self, context: Context, peers: Peers) -> None:
        nonces = dict(peers.cohort)
        if nonces.get(self.member) != self._nonce:
            raise VerificationError(
                709, "the cohort does not hold this client's own nonce; the server altered it"
            )
        if not nonces.keys() <= self._roster.keys.keys():
            raise VerificationError(709, "the cohort holds a member who is not enrolled")
        expected = context.graph.neighbours(self.member)
        if tuple(keys.member for keys in peers.keys) != expected:
            raise VerificationError(
                709, "the neighbours are not those that the cohort's nonces determine"
            )
        seen = {self._mine.channel, self._mine.mask}
        for keys in peers.keys:
            enrolled = self._roster.keys[keys.member]
            signed = signed_bytes(self.session, keys, nonces[keys.member])
            checks = self.session.active and not self._retracing
            if checks and not crypto.is_signed(enrolled, keys.signature, signed):
                raise VerificationError(
                    709, f"member {keys.member} did not sign these keys for this round"
                )
            seen |= {keys.channel, keys.mask}
        if len(seen) != 2 + 2 * len(peers.keys):
            raise VerificationError(
                710, "two members show the same public key: a stuck generator or a double"
            )

    def _split(self, count: int) -> list[bytes]:
        """For each holder, its share of the seed and its share of the mask key."""
        key = crypto.derive(self._secret, b"shares", self._context.digest)
        secret = self._seed + self._mask_private.private_bytes_raw()
        threshold = self.session.threshold
        random = Keystream(key, run="", purpose="secagg shares").bytes(
            0, field.randomness_bytes(len(secret), threshold)
        )
        shares = field.split(secret, count, threshold, random)
        halves = field.to_bytes(shares.reshape(2 * count, SEED_WORDS))
        return [seed + key for seed, key in zip(halves[::2], halves[1::2], strict=True)]

    def _mask(self, message: bytes, words: Words | None) -> bytes:
        sealed = Sealed.decode(message, self.session)
        session = self.session
        if not self._retracing:
            masks.check(words, session.length, session.wide, session.bits)
        for parcel in sealed.parcels:
            if parcel.peer not in self._channels:
                raise VerificationError(711, f"member {parcel.peer} is no neighbour of this client")
        dealers = {parcel.peer for parcel in sealed.parcels}
        if len(dealers) + self._shares_itself < self.session.threshold:
            raise VerificationError(
                714,
                f"{len(dealers)} neighbours dealt shares, too few for the threshold "
                f"{self.session.threshold}; this client sends no vector",
            )
        for parcel in sealed.parcels:
            sealing = self._channels[parcel.peer].sealing
            share = parcels.unpack(self._context, sealing, parcel, self.member)
            if share is None:
                self._doubts.add(parcel.peer)
            else:
                self._held[parcel.peer] = share
        reply = self._masked(words, dealers) if words else b""
        self._dealers = dealers
        self.stage = Stage.SURVIVORS
        return reply

    def _masked(self, vector: Words, dealers: Collection[int]) -> bytes:
        """The vector under its own mask and those shared with `dealers`."""
        plus = [self._context.self_key(self._seed, self.member)]
        minus: list[bytes] = []
        for peer in dealers:
            secret = crypto.agree(self._mask_private, self._channels[peer].mask_key)
            key = self._context.pair_key(secret, self.member, peer)
            (plus if self.member < peer else minus).append(key)
        head = Masked(self.session.digest, self.member, memoryview(b"")).encode()
        return masks.masked(vector, plus, minus, self.session.bits, head)

    @property
    def _shares_itself(self) -> bool:
        """On the full graph a member holds a share of its own, and confirms to itself."""
        return self._context.graph.is_full

    def _confirm(self, message: bytes) -> bytes:
        bitmap = Survivors.decode(message, self.session).bitmap
        members = self._context.graph.members
        arrived = from_bitmap(bitmap, len(members))
        surviving = {member for member, here in zip(members, arrived, strict=True) if here}
        self._policy.check_survivors(self.session, len(members), len(surviving))
        if self.member not in surviving:
            raise VerificationError(
                715, "the server says this client's vector did not arrive, yet asks for its help"
            )
        neighbours = self._context.graph.neighbours(self.member)
        unknown = [n for n in neighbours if n in surviving and n not in self._dealers]
        if unknown:
            raise VerificationError(
                715, f"member {unknown[0]} dealt no shares, yet its vector is said to have arrived"
            )
        sharing = self._dealers | ({self.member} if self._shares_itself else set())
        self._surviving = tuple(sorted(sharing & surviving))
        self._dropped = tuple(sorted(sharing - surviving))
        if len(self._surviving) < self.session.threshold:
            raise VerificationError(
                714,
                "fewer survivors than the threshold: nothing opens, nothing is revealed",
            )
        if not self.session.active:
            return self._revealed()
        self._statement = self._context.survivor_digest(bitmap)
        tags = [
            Tag(peer, self._tag(peer, sender=self.member, receiver=peer))
            for peer in self._surviving
            if peer != self.member
        ]
        self.stage = Stage.CONFIRMED
        return Confirm(self.session.digest, self.member, tuple(tags)).encode()

    def _tag(self, peer: int, *, sender: int, receiver: int) -> bytes:
        key = self._channels[peer].confirming
        return crypto.tag(key, b"confirm\x00", self._statement, id_bytes(sender, receiver))

    def _reveal(self, message: bytes) -> bytes:
        confirmed = Confirmed.decode(message, self.session)
        agreeing = int(self._shares_itself)
        for peer, given in confirmed.tags:
            if peer not in self._surviving or peer == self.member:
                raise VerificationError(715, f"member {peer} cannot confirm this survivor set")
            if crypto.same(given, self._tag(peer, sender=peer, receiver=self.member)):
                agreeing += 1
            else:
                self._doubts.add(peer)
        if agreeing < self.session.threshold:
            # Two survivor sets are about, or too few are left: no share leaves, only the names.
            reply = Reveal(self.session.digest, self.member, (), (), self.doubts).encode()
            self._forget(Stage.REFUSED)
            return reply
        return self._revealed()

    def _revealed(self) -> bytes:
        """One kind of share for each peer: the seed of a survivor, the key of a dropped one."""
        held = self._held
        seeds = tuple(Share(m, held[m][:SHARE_BYTES]) for m in self._surviving if m in held)
        keys = tuple(Share(m, held[m][SHARE_BYTES:]) for m in self._dropped if m in held)
        reply = Reveal(self.session.digest, self.member, seeds, keys, self.doubts).encode()
        self._forget(Stage.DONE)
        return reply

    def _forget(self, stage: Stage) -> None:
        """Drop every secret; what was answered stays, so that a repeat is answered alike."""
        self.stage = stage
        self._secret = self._seed = b""
        for key in ("_mask_private", "_channel_private"):
            self.__dict__.pop(key, None)
        self._channels.clear()
        self._held.clear()
        if stage is Stage.REFUSED:
            self._answered = None
