"""The primitives, all from `cryptography`: key agreement, signatures, sealing, derivation.

Every derived key and every digest starts with a label of its own, so that a value made for
one purpose can serve no other. Sources: RFC 7748 (X25519), RFC 8032 (Ed25519), RFC 5869
(HKDF), NIST SP 800-38D (AES-GCM).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sequester.core.errors import SequesterError, VerificationError
from sequester.core.rng import fresh_key

LABEL = b"sequester secagg v4 "
TAG_BYTES = 16


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the label and the parts; callers give parts of fixed or prefixed length."""
    return hashlib.sha256(LABEL + label + b"\x00" + b"".join(parts)).digest()


def derive(secret: bytes, label: bytes, context: bytes, count: int = 32) -> bytes:
    """HKDF-SHA256 with an empty salt; `context` binds the key to a round and its members."""
    info = LABEL + label + b"\x00" + context
    return HKDF(SHA256(), count, None, info).derive(secret)


# u-coordinates of the points whose order divides 8 and of their twist, with the two encodings above
# the prime: whoever agrees on a key with one of them agrees on zeros.
_KNOWN_SECRET = {
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
}


def has_low_order(public: bytes) -> bool:
    """Whether everybody knows the secret that any key agrees on with this X25519 key."""
    return public[:31] + bytes([public[31] & 0x7F]) in _KNOWN_SECRET


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The shared secret of two X25519 keys.

    Raises:
        VerificationError: SQ-722 for a point of low order, whose secret everybody knows.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise VerificationError(
            722,
            "a peer's public key has low order, so its secret is known; the peer is refused",
        ) from None


def public_of(private: bytes) -> bytes:
    """The X25519 public key of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal(key: bytes, *, upward: bool, plaintext: bytes, context: bytes) -> bytes:
    """AES-256-GCM under a key that one pair of peers uses once per direction.

    Args:
        key: 32 bytes, fresh in every round.
        upward: True from the lower to the higher identifier; it is the nonce, so the two
            directions never share one and a ciphertext cannot be reflected.
        plaintext: What to hide.
        context: What to authenticate beside it.
    """
    return AESGCM(key).encrypt(_nonce(upward), plaintext, context)


def unseal(key: bytes, *, upward: bool, ciphertext: bytes, context: bytes) -> bytes | None:
    """The plaintext, or None when anything about it is not as its sender made it."""
    try:
        return AESGCM(key).decrypt(_nonce(upward), ciphertext, context)
    except InvalidTag:
        return None


def _nonce(upward: bool) -> bytes:
    return bytes(11) + (b"\x01" if upward else b"\x02")


def tag(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 cut to 16 bytes."""
    return hmac.digest(key, b"".join(parts), "sha256")[:TAG_BYTES]


def same(left: bytes, right: bytes) -> bool:
    """Equality in constant time."""
    return hmac.compare_digest(left, right)


@dataclass(frozen=True)
class Identity:
    """A member's long-lived Ed25519 key, enrolled before any round.

    Attributes:
        member: The number under which it is enrolled, 0 to 2³²−1.
        key: 32 private bytes; never logged, excluded from `repr`.
    """

    member: int
    key: bytes = field(repr=False, default_factory=fresh_key)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.key)

    @cached_property
    def public(self) -> bytes:
        """The 32 bytes to enrol."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of `message`."""
        return self._private.sign(message)


# y-coordinates of the points of order 1, 2, 4 and 8, with the two encodings above the prime:
# under such a key one signature fits many messages, and OpenSSL accepts it.
_LOW_ORDER = {
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
}


def can_be_enrolled(public: bytes) -> bool:
    """Whether these are 32 bytes that are no Ed25519 key of low order."""
    return len(public) == 32 and public[:31] + bytes([public[31] & 0x7F]) not in _LOW_ORDER


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the holder of the enrolled key signed `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def healthy_secret() -> bytes:
    """32 fresh bytes, after a check that the system's generator is not stuck.

    Raises:
        SequesterError: SQ-721 when two draws agree or a draw is constant.
    """
    first, second = fresh_key(), fresh_key()
    if first == second or len(set(first)) < 2:
        raise SequesterError(
            721, "the operating system's random generator repeats itself; no key is made from it"
        )
    return second
