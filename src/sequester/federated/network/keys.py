"""Whose keys a node masks with: its own, and those that its holder wrote down beforehand.

A server that may choose the members' keys can play all the other members itself, and opens the
sum of one site. Only a list that did not come from the server keeps it from that.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from sequester import secagg
from sequester.core.errors import UsageError
from sequester.federated.network.memory import node_key

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


def identity_of(key: bytes, member: int) -> secagg.Identity:
    """The node's signing key in secure sums: one for all runs, so that it can be exchanged.

    What it signs names run and round (`secagg.context.signed_bytes`).

    Args:
        key: The node's.
        member: Its place in a run.
    """
    label = b"secagg identity"
    return secagg.Identity(member, hashlib.blake2b(label, key=key, digest_size=32).digest())


def public_key(folder: Path) -> str:
    """The node's public key in secure sums, hexadecimal; makes the node's key if there is none.

    Raises:
        UsageError: SQ-637 if the key was altered.
    """
    return identity_of(node_key(folder), 0).public.hex()


def read_members(file: str) -> frozenset[str] | None:
    """The public keys that the holder wrote down, `site = "hexadecimal"`; None without a file.

    Raises:
        UsageError: SQ-650 for a file that is missing, or holds anything else.
    """
    if not file:
        return None
    try:
        listed = tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(650, "the node's list of members' keys cannot be read") from None
    keys = [key for key in listed.values() if isinstance(key, str) and _PUBLIC_KEY.fullmatch(key)]
    if not keys or len({*keys}) != len(listed):
        raise UsageError(
            650,
            "the node's list of members' keys is not lines of site = \"key\", each with another "
            "key of 64 hexadecimal digits as 'sequester flower key' prints it",
        )
    return frozenset(keys)


def check_members(members: Iterable[str], listed: frozenset[str] | None, own: str) -> None:
    """Refuse members whom the holder does not know.

    Args:
        members: Public keys, as the server gave them.
        listed: The holder's; None accepts the server's.
        own: The node's.

    Raises:
        UsageError: SQ-651.
    """
    if listed is not None and not set(members) <= listed | {own}:
        raise UsageError(
            651, "a member of this secure sum has a key that is not on this node's own list"
        )
