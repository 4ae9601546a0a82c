"""Writing files so that a crash, a full disk or a hostile name loses nothing."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from sequester.core.errors import UsageError

_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_PARTIAL = ".partial"
"""Ends the name of a file that is not finished; see `sweep`."""


WRITING = "while writing in "
"""Begins the note on an error of the system that names the folder."""


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace `path` by `data` in one step, on disk before it is visible.

    Args:
        path: The file; its folder must exist.
        data: What it shall hold; text is written as UTF-8.
        private: Readable by the owner alone (mode 0600).
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o600 if private else 0o644)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as failure:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(failure, OSError):
            failure.add_note(f"{WRITING}{path.parent}")  # a full disk does not say which
        raise


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal, as `sha256sum` prints it; "" where there is none."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def sweep(folder: Path) -> None:
    """Remove what `write_atomic` left unfinished in `folder` when its process was killed.

    Such a file may be as private as the one it was to replace, and nobody else knows its name. For
    folders in which nobody else is writing: the caller holds a lock.
    """
    left = [
        entry.path
        for entry in (os.scandir(folder) if folder.is_dir() else ())
        if entry.name.startswith(".") and entry.name.endswith(_PARTIAL)
    ]
    for path in left:
        os.unlink(path)
    if left:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_name(name: str, what: str) -> str:
    """Return `name` if it is safe as one part of a path.

    Raises:
        UsageError: SQ-901 for anything that could leave the folder.
    """
    if not _SAFE_NAME.match(name):
        raise UsageError(
            901,
            f"{what} must be 1 to 100 letters, digits, dots, dashes or underscores and start "
            f"with a letter or digit, got {name!r}",
        )
    return name
