"""Ed25519 keys, and documents that carry a signature.

Signed bytes are a purpose, a zero byte and canonical JSON, so that no signature made for one
purpose can serve another.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sequester.core import canonical
from sequester.core.errors import UsageError, VerificationError
from sequester.core.files import write_atomic

MAX_DOCUMENT_BYTES = 65_536


@dataclass(frozen=True)
class Signed:
    """A document and who signed it.

    Attributes:
        purpose: What it is for, part of the signed bytes.
        document: What was signed.
        signer: Public key, 64 hexadecimal digits.
        signature: 128 hexadecimal digits.
    """

    purpose: str
    document: dict[str, Any]
    signer: str
    signature: str

    @classmethod
    def by(cls, key: Ed25519PrivateKey, purpose: str, document: dict[str, Any]) -> Signed:
        """Sign `document`."""
        # What is kept is what was signed: the document as it reads back from its own bytes.
        document = json.loads(canonical.dumps(document))
        signature = key.sign(_message(purpose, document)).hex()
        return cls(purpose, document, public_hex(key), signature)

    def holds(self) -> bool:
        """Whether the signature is its signer's."""
        try:
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.signer))
            public.verify(bytes.fromhex(self.signature), _message(self.purpose, self.document))
        except (ValueError, InvalidSignature):
            return False
        return True

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "document": self.document,
            "purpose": self.purpose,
            "signature": self.signature,
            "signer": self.signer,
        }

    @classmethod
    def from_json(cls, value: Any, purpose: str) -> Signed:
        """The inverse of `to_json`, for one purpose.

        Raises:
            VerificationError: SQ-334 for anything else.
        """
        names = {"document", "purpose", "signature", "signer"}
        if (
            not isinstance(value, dict)
            or set(value) != names
            or not all(type(value[name]) is str for name in names - {"document"})
            or type(value["document"]) is not dict
            or value["purpose"] != purpose
        ):
            raise VerificationError(334, f"this is not a signed {purpose} of a ledger")
        return cls(**value)

    def write(self, path: Path) -> None:
        """Write it to a file that anyone may read."""
        write_atomic(path, canonical.dumps(self.to_json()) + "\n")

    @classmethod
    def read(cls, path: Path, purpose: str) -> Signed:
        """Read it back; the signature is not checked here.

        Raises:
            VerificationError: SQ-334 if the file holds anything else.
        """
        try:
            raw = path.read_bytes()[: MAX_DOCUMENT_BYTES + 1]
            value = json.loads(raw) if len(raw) <= MAX_DOCUMENT_BYTES else None
        except (OSError, ValueError, RecursionError):
            value = None
        try:
            return cls.from_json(value, purpose)
        except VerificationError as error:
            raise error.at(str(path)) from None


def make_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and keep it at `path`, readable by its owner alone.

    Raises:
        UsageError: SQ-344 if there is a file already.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise UsageError(344, f"no key was made: {error.strerror}", where=str(path)) from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(pem)
        stream.flush()
        os.fsync(stream.fileno())
    return key


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Raises:
        UsageError: SQ-344 if there is none, or if others may read it.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise UsageError(
                344, "others may read this private key; 'chmod 600' it first", where=str(path)
            )
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        raise UsageError(
            344, "no Ed25519 private key here; 'sequester ledger key' makes one", where=str(path)
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(344, "a ledger's keys are Ed25519 keys", where=str(path))
    return key


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public half, as 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def _message(purpose: str, document: dict[str, Any]) -> bytes:
    return f"sequester {purpose} 1\0{canonical.dumps(document)}".encode()
