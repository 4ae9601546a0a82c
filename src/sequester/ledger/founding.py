"""A ledger's first row, and the key that signs its checkpoints."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sequester import __version__
from sequester.core.rng import fresh_key
from sequester.ledger import rows
from sequester.ledger.charges import ORDERS
from sequester.ledger.desk import FORMAT, seal_state
from sequester.ledger.policy import Granter, Policy
from sequester.ledger.rows import Draft, Row
from sequester.ledger.signing import make_key, public_hex, read_key
from sequester.ledger.store import Store


def key_beside(url: str) -> Path | None:
    """Where an SQLite ledger's private key lies; None for a server."""
    if not url.startswith("sqlite:///"):
        return None
    path = Path(url.removeprefix("sqlite:///"))
    return path.with_name(path.name + ".key")


def found(store: Store, policy: Policy, key: Path, now_ms: int) -> None:
    """Write the first row: ladder, policy, and the public half of the key at `key`.

    Raises:
        UsageError: SQ-341 for a policy that means nothing, SQ-344 for a key that is none.
    """
    held = policy.checked()
    signer = read_key(key) if key.exists() else make_key(key)
    secret = fresh_key().hex()
    fields = {
        "fingerprint_key_hash": hashlib.sha256(secret.encode()).hexdigest(),
        "format": FORMAT,
        # Two ledgers never share an id, even if made with one key in one millisecond.
        "nonce": fresh_key().hex(),
        "orders": list(ORDERS),
        "policy": _granted(held, signer).to_fields(),
        "public_key": public_hex(signer),
        "time_ms": now_ms,
        "version": __version__,
    }
    with store.writing() as transaction:
        transaction.append(Row.after(None, Draft.of(rows.LEDGER, fields)))
        transaction.put_balance("", seal_state(1, secret))


def _granted(policy: Policy, signer: Ed25519PrivateKey) -> Policy:
    """`policy`, with the ledger's own key as granter if it names none."""
    if policy.granters:
        return policy
    own = Granter("whoever holds the ledger's key", public_hex(signer))
    return msgspec.structs.replace(policy, granters=(own,))
