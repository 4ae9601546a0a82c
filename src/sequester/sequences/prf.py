"""Keyed choices about people, the same for one person whoever else is in the data.

A choice that depended on a person's position would change for everybody when one person
leaves; a keyed hash of the person's own identifier does not. SHAKE-256 over a length-framed
key is a pseudo-random function (FIPS 202; a sponge needs no HMAC nesting).
"""

from __future__ import annotations

import hashlib

import numpy as np

from sequester.core.errors import UsageError

# Splits need no secret: anyone may know the rule that put a person in the test part.
PUBLIC_KEY = hashlib.sha256(b"sequester public choices").digest()


def check_key(key: bytes) -> None:
    """Refuse a key that could be guessed, whether or not a choice will be made with it.

    Raises:
        UsageError: SQ-118 for a key under 16 bytes.
    """
    if len(key) < 16:
        raise UsageError(118, f"a key of people's choices has at least 16 bytes, got {len(key)}")


def words(key: bytes, purpose: str, person: str, count: int) -> np.ndarray:
    """`count` uint64 words that belong to this key, purpose and person.

    Raises:
        UsageError: SQ-118 for a key under 16 bytes.
    """
    check_key(key)
    state = hashlib.shake_256()
    for part in (key, purpose.encode(), person.encode()):
        state.update(len(part).to_bytes(8, "little") + part)
    return np.frombuffer(state.digest(8 * count), dtype="<u8").astype(np.uint64)


def uniform(key: bytes, purpose: str, person: str) -> float:
    """One number on [0, 1) for this key, purpose and person."""
    return float(words(key, purpose, person, 1)[0] >> np.uint64(11)) * 2.0**-53


def choose(key: bytes, purpose: str, person: str, items: int, keep: int) -> np.ndarray:
    """`keep` of `items` positions, uniformly, ascending; all of them where that is fewer."""
    if items <= keep:
        return np.arange(items)
    rank = words(key, purpose, person, items)
    return np.sort(np.argpartition(rank, keep)[:keep])
