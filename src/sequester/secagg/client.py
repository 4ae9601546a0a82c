"""The client: a state machine from bytes to bytes, without I/O, clock or global randomness.

It answers each message once. The same bytes again get the same answer; other bytes in the
same place are refused, so no server obtains two answers about one peer. A refusal other than a
malformed, foreign or untimely message ends the client's part in the round and its secrets.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sequester.core.errors import SequesterError, UsageError, VerificationError
from sequester.core.rng import Keystream
from sequester.secagg import crypto, field, masks
from sequester.secagg.context import KEY, SEED, Context, id_bytes, signed_bytes
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
        parcels: list[Parcel] = []
        own_check = bytes(16)
        for holder, share in zip(holders, shares, strict=True):
            if holder == self.member:
                self._held[holder] = share
                own_check = context.share_check(SEED, holder, holder, share[:SHARE_BYTES])
            else:
                parcels.append(self._parcel(holder, share))
        commitment = context.commitment(self._seed, self.member)
        self.stage = Stage.SEALED
        return Shares(
            self.session.digest, self.member, commitment, own_check, tuple(parcels)
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
            if self.session.active and not crypto.is_signed(enrolled, keys.signature, signed):
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

    def _parcel(self, holder: int, share: bytes) -> Parcel:
        context = self._context
        seed_check = context.share_check(SEED, self.member, holder, share[:SHARE_BYTES])
        key_check = context.share_check(KEY, self.member, holder, share[SHARE_BYTES:])
        sealed = crypto.seal(
            self._channels[holder].sealing,
            upward=self.member < holder,
            plaintext=share,
            context=context.parcel_context(self.member, holder, seed_check + key_check),
        )
        return Parcel(holder, seed_check, key_check, sealed)

    def _mask(self, message: bytes, words: Words | None) -> bytes:
        sealed = Sealed.decode(message, self.session)
        vector = self._checked(words)
        held = dict(self._held)
        for parcel in sealed.parcels:
            held[parcel.peer] = self._opened(parcel)
        if len(held) < self.session.threshold:
            raise VerificationError(
                714,
                f"{len(held)} members dealt shares, fewer than the threshold "
                f"{self.session.threshold}; this client sends no vector",
            )
        plus = [self._context.self_key(self._seed, self.member)]
        minus: list[bytes] = []
        for parcel in sealed.parcels:
            secret = crypto.agree(self._mask_private, self._channels[parcel.peer].mask_key)
            key = self._context.pair_key(secret, self.member, parcel.peer)
            (plus if self.member < parcel.peer else minus).append(key)
        self._held = held
        self._dealers = frozenset(parcel.peer for parcel in sealed.parcels)
        self.stage = Stage.SURVIVORS
        head = Masked(self.session.digest, self.member, memoryview(b"")).encode()
        return masks.masked(vector, plus, minus, self.session.bits, head)

    def _opened(self, parcel: Parcel) -> bytes:
        """The two shares in a parcel; anything untrue about it ends the round."""
        channel = self._channels.get(parcel.peer)
        if channel is None:
            raise VerificationError(711, f"member {parcel.peer} is no neighbour of this client")
        checks = parcel.seed_check + parcel.key_check
        share = crypto.unseal(
            channel.sealing,
            upward=parcel.peer < self.member,
            ciphertext=parcel.sealed,
            context=self._context.parcel_context(parcel.peer, self.member, checks),
        )
        if share is None:
            raise VerificationError(
                711, f"the parcel from member {parcel.peer} is not as that member sealed it"
            )
        for kind, part, check in (
            (SEED, share[:SHARE_BYTES], parcel.seed_check),
            (KEY, share[SHARE_BYTES:], parcel.key_check),
        ):
            if self._context.share_check(kind, parcel.peer, self.member, part) != check:
                told = f"member {parcel.peer} dealt a share that is not the one it announced"
                raise VerificationError(712, told)
        return share

    def _checked(self, words: Words | None) -> Words:
        session = self.session
        if words is None:
            raise UsageError(713, "the answer to 'sealed' needs this member's vector")
        kinds = {
            "narrow": (session.length, np.dtype(masks.word_type(session.bits))),
            "wide": (session.wide, np.dtype(np.uint32)),
        }
        for name, (size, dtype) in kinds.items():
            given = getattr(words, name)
            if given.shape != (size,) or given.dtype != dtype:
                found = f"{given.dtype} of shape {given.shape}"
                raise UsageError(
                    713, f"the {name} words are {found}; this round takes {dtype} of ({size},)"
                )
        return words

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
        self._surviving = tuple(m for m in sorted(self._held) if m in surviving)
        self._dropped = tuple(m for m in sorted(self._held) if m not in surviving)
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
        agreeing = int(self.member in self._held)
        for peer, given in confirmed.tags:
            if peer not in self._surviving or peer == self.member:
                raise VerificationError(715, f"member {peer} cannot confirm this survivor set")
            if not crypto.same(given, self._tag(peer, sender=peer, receiver=self.member)):
                raise VerificationError(
                    715, f"member {peer} was told of other survivors: the server shows two faces"
                )
            agreeing += 1
        if agreeing < self.session.threshold:
            raise VerificationError(
                715,
                f"{agreeing} members confirm the survivors, {self.session.threshold} must; "
                "nothing is revealed",
            )
        return self._revealed()

    def _revealed(self) -> bytes:
        """One kind of share for each peer: the seed of a survivor, the key of a dropped one."""
        seeds = tuple(Share(m, self._held[m][:SHARE_BYTES]) for m in self._surviving)
        keys = tuple(Share(m, self._held[m][SHARE_BYTES:]) for m in self._dropped)
        reply = Reveal(self.session.digest, self.member, seeds, keys).encode()
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
