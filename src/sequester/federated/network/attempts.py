"""Studies under which a node's people could not be read: few, and then the holder has to look."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic

MOST = 3
"""Studies that may fail on a node's people before its holder has to look."""
FILE = "unread.json"


def unread(folder: Path, attempt: str) -> list[str]:
    """Attempts that failed before, but for this one.

    Whether the people can be read under a study is an exact answer, which no noise covers. So
    after `MOST` such answers there are no more, until the holder has seen them.

    Args:
        folder: The node's.
        attempt: What is to be read, by the server's words: the run, its study and decisions.

    Raises:
        UsageError: SQ-657 after so many, SQ-637 for a damaged count.
    """
    file, mark = folder / FILE, hashlib.sha256(attempt.encode()).hexdigest()
    try:
        failed = msgspec.json.decode(file.read_bytes(), type=list[str]) if file.exists() else []
    except msgspec.MsgspecError:
        raise UsageError(637, f"this node's {FILE} is damaged") from None
    others = [other for other in failed if other != mark]
    if len(others) >= MOST:
        raise UsageError(
            657,
            f"{MOST} studies could not be read here; this node takes no more until its holder "
            f"has read its log and deleted {FILE} in its folder",
        )
    return others


@contextmanager
def reading(folder: Path, attempt: str) -> Iterator[None]:
    """Count an attempt to read the people that fails or is killed, not one that succeeds.

    Raises:
        UsageError: as `unread` does.
    """
    file, mark = folder / FILE, hashlib.sha256(attempt.encode()).hexdigest()
    others = unread(folder, attempt)
    write_atomic(file, msgspec.json.encode([*others, mark]), private=True)
    yield
    if others:
        write_atomic(file, msgspec.json.encode(others), private=True)
    else:
        file.unlink()
