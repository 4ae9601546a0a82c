"""The ten messages, as values and as bytes.

    offer ─▶ advert ─▶ peers ─▶ shares ─▶ sealed ─▶ masked
          ─▶ survivors ─▶ confirm ─▶ confirmed ─▶ reveal

The server speaks offer, peers, sealed, survivors and confirmed; a client answers each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Self

from sequester.core.errors import VerificationError
from sequester.secagg import field
from sequester.secagg.crypto import TAG_BYTES
from sequester.secagg.session import Session
from sequester.secagg.wire import Reader, Writer, malformed

MAGIC = b"SQSA"
VERSION = 4
SESSION_BYTES = 16
HEADER_BYTES = len(MAGIC) + 2 + SESSION_BYTES

KEY_BYTES = 32
NONCE_BYTES = 4
SIGNATURE_BYTES = 64
SEED_WORDS = KEY_BYTES // 2
SHARE_BYTES = field.share_bytes(SEED_WORDS)
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
CHECK_BYTES = 16


_ENTRY = struct.Struct(f"<I{NONCE_BYTES}s")
_KEYS = struct.Struct(f"<I{KEY_BYTES}s{KEY_BYTES}s{SIGNATURE_BYTES}s")
_PARCEL = struct.Struct(f"<I{CHECK_BYTES}s{CHECK_BYTES}s{SEALED_BYTES}s")
_DELIVERY = struct.Struct(f"<I{CHECK_BYTES}s{SEALED_BYTES}s")
_TAG = struct.Struct(f"<I{TAG_BYTES}s")
_SHARE = struct.Struct(f"<I{SHARE_BYTES}s")
_MEMBER = struct.Struct("<I")


class Entry(NamedTuple):
    """A member's nonce in the cohort list."""

    member: int
    nonce: bytes


class Keys(NamedTuple):
    """A member's public keys of this round, and its signature over them."""

    member: int
    channel: bytes
    mask: bytes
    signature: bytes


class Parcel(NamedTuple):
    """Two shares sealed for one peer, with a digest of each so that a false one is blamed."""

    peer: int
    seed_check: bytes
    key_check: bytes
    sealed: bytes


class Delivery(NamedTuple):
    """A parcel as its receiver gets it: one digest stands for both checks that the server keeps."""

    peer: int
    checks: bytes
    sealed: bytes


class Tag(NamedTuple):
    """One peer's confirmation of the survivor set."""

    peer: int
    tag: bytes


class Share(NamedTuple):
    """One revealed share of `peer`'s secret."""

    peer: int
    share: bytes

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"Share(peer={self.peer})"


@dataclass(frozen=True)
class Message:
    """What all messages but the offer share: a type, a session, a body."""

    type: ClassVar[int]
    session: bytes

    def encode(self) -> bytes:
        """The canonical bytes."""
        out = Writer().raw(MAGIC).u8(VERSION).u8(self.type)
        out.raw(self.session[:SESSION_BYTES], SESSION_BYTES)
        self._write(out)
        return out.bytes()

    @classmethod
    def decode(cls, data: bytes, session: Session) -> Self:
        """Read a message of this type in this session.

        Raises:
            VerificationError: SQ-701 malformed, SQ-702 of another session, SQ-703 of
                another type than the one that is due.
        """
        reader = open_message(data, cls.type)
        if reader.raw(SESSION_BYTES) != session.digest[:SESSION_BYTES]:
            raise VerificationError(
                702, "the message belongs to another round, model or configuration and is ignored"
            )
        message = cls._read(reader, session)
        reader.end()
        return message

    def _write(self, out: Writer) -> None:
        """Append the body."""

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        """Read the body."""
        return cls(session.digest)


def open_message(data: bytes, kind: int) -> Reader:
    """Check magic, version and type; the reader stands behind them."""
    reader = Reader(data)
    if reader.raw(len(MAGIC)) != MAGIC:
        raise malformed("it is not a secure-aggregation message")
    version = reader.u8()
    if version != VERSION:
        raise malformed(f"version {version}; this program speaks version {VERSION}")
    found = reader.u8()
    if found != kind:
        raise VerificationError(
            703, f"message {found} came where {kind} is due; the round's order cannot be changed"
        )
    return reader


@dataclass(frozen=True)
class Offer:
    """Server → all: the session's parameters in full."""

    session: Session
    type: ClassVar[int] = 1

    def encode(self) -> bytes:
        """The canonical bytes."""
        out = Writer().raw(MAGIC).u8(VERSION).u8(self.type).raw(bytes(SESSION_BYTES))
        return out.raw(self.session.encoded).bytes()

    @classmethod
    def decode(cls, data: bytes) -> Offer:
        """Read an offer; SQ-701 for bytes that no server may send."""
        reader = open_message(data, cls.type)
        if reader.raw(SESSION_BYTES) != bytes(SESSION_BYTES):
            raise malformed("an offer names no session in its header")
        session = Session.decode(reader)
        reader.end()
        return cls(session)


@dataclass(frozen=True)
class Advert(Message):
    """Client → server: fresh public keys and a nonce, signed."""

    keys: Keys
    nonce: bytes
    type: ClassVar[int] = 2

    def _write(self, out: Writer) -> None:
        out.raw(_KEYS.pack(*self.keys)).raw(self.nonce, NONCE_BYTES)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        keys = Keys._make(_KEYS.unpack(reader.raw(_KEYS.size)))
        return cls(session.digest, keys, reader.raw(NONCE_BYTES))


@dataclass(frozen=True)
class Peers(Message):
    """Server → client: the cohort with its nonces, and its neighbours' signed keys."""

    cohort: tuple[Entry, ...]
    keys: tuple[Keys, ...]
    type: ClassVar[int] = 3

    def _write(self, out: Writer) -> None:
        out.raw(_cohort_bytes(self.cohort)).records(_KEYS, self.keys)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        cohort = reader.records(_ENTRY, Entry._make)
        return cls(session.digest, cohort, reader.records(_KEYS, Keys._make))


@lru_cache(maxsize=4)
def _cohort_bytes(cohort: tuple[Entry, ...]) -> bytes:
    """Every client gets the same list, so it is written once."""
    return Writer().records(_ENTRY, cohort).bytes()


@dataclass(frozen=True)
class Shares(Message):
    """Client → server: a commitment to the self-mask's seed and a parcel for each neighbour."""

    member: int
    commitment: bytes
    own_check: bytes
    parcels: tuple[Parcel, ...]
    type: ClassVar[int] = 4

    def _write(self, out: Writer) -> None:
        out.u32(self.member).raw(self.commitment, KEY_BYTES).raw(self.own_check, CHECK_BYTES)
        out.records(_PARCEL, self.parcels)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        member, commitment = reader.u32(), reader.raw(KEY_BYTES)
        own_check = reader.raw(CHECK_BYTES)
        return cls(
            session.digest, member, commitment, own_check, reader.records(_PARCEL, Parcel._make)
        )


@dataclass(frozen=True)
class Sealed(Message):
    """Server → client: the parcels its neighbours sent it; `peer` is the sender."""

    parcels: tuple[Delivery, ...]
    type: ClassVar[int] = 5

    def _write(self, out: Writer) -> None:
        out.records(_DELIVERY, self.parcels)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        return cls(session.digest, reader.records(_DELIVERY, Delivery._make))


@dataclass(frozen=True)
class Masked(Message):
    """Client → server: the packed, masked vector."""

    member: int
    words: memoryview
    type: ClassVar[int] = 6

    def _write(self, out: Writer) -> None:
        out.u32(self.member).raw(self.words)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        return cls(session.digest, reader.u32(), reader.rest())


@dataclass(frozen=True)
class Survivors(Message):
    """Server → client: whose vectors arrived, one bit per cohort member."""

    bitmap: bytes
    type: ClassVar[int] = 7

    def _write(self, out: Writer) -> None:
        out.u32(len(self.bitmap)).raw(self.bitmap)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        return cls(session.digest, reader.raw(reader.count(1)))


@dataclass(frozen=True)
class Confirm(Message):
    """Client → server: a tag for each surviving neighbour that says "I was told the same"."""

    member: int
    tags: tuple[Tag, ...]
    type: ClassVar[int] = 8

    def _write(self, out: Writer) -> None:
        out.u32(self.member).records(_TAG, self.tags)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        return cls(session.digest, reader.u32(), reader.records(_TAG, Tag._make))


@dataclass(frozen=True)
class Confirmed(Message):
    """Server → client: its neighbours' tags."""

    tags: tuple[Tag, ...]
    type: ClassVar[int] = 9

    def _write(self, out: Writer) -> None:
        out.records(_TAG, self.tags)

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        return cls(session.digest, reader.records(_TAG, Tag._make))


def _first(row: tuple[int]) -> int:
    return row[0]


@dataclass(frozen=True)
class Reveal(Message):
    """Client → server: seed shares of survivors, key shares of the dropped; never both.

    Attributes:
        member: Who reveals.
        seeds: Shares of survivors' seeds.
        keys: Shares of dropped members' keys.
        doubts: Neighbours whose parcel did not open or whose tag did not fit.
    """

    member: int
    seeds: tuple[Share, ...]
    keys: tuple[Share, ...]
    doubts: tuple[int, ...] = ()
    type: ClassVar[int] = 10

    def _write(self, out: Writer) -> None:
        out.u32(self.member).records(_SHARE, self.seeds).records(_SHARE, self.keys)
        out.records(_MEMBER, [(member,) for member in self.doubts])

    @classmethod
    def _read(cls, reader: Reader, session: Session) -> Self:
        member, seeds = reader.u32(), reader.records(_SHARE, Share._make)
        keys = reader.records(_SHARE, Share._make)
        return cls(session.digest, member, seeds, keys, reader.records(_MEMBER, _first))
