"""People who asked to be erased, and whose records must not come back with the next export.

The register holds keyed hashes, one a line, never names: without the key nobody can try a list of
names against it. A new key is a new space of hashes; register everybody anew under it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from sequester.core.errors import UsageError
from sequester.sequences import identifiers, prf

_PURPOSE = "erasure"
_DIGITS = 32  # hexadecimal; 128 bits, so that no two people share a line


def lines_of(names: Iterable[str], key: bytes, *, fold_case: bool) -> Iterator[str]:
    """What the register holds for each normalised identifier: a hash of its plainest form.

    Whoever was erased as `1` is found as a full-width `１`, and the other way round.

    Raises:
        UsageError: SQ-118 for a key under 16 bytes.
    """
    for name in names:
        plain = identifiers.plainest(name, fold_case=fold_case)
        yield prf.words(key, _PURPOSE, plain, 2).tobytes().hex()


def read_key(path: str | Path) -> bytes:
    """The key, of a file that only its owner can read.

    Raises:
        UsageError: SQ-121 where it is missing, short, or open to others.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        raise UsageError(121, "the key of the erased people's register cannot be opened") from None
    with os.fdopen(handle, "rb") as stream:
        if os.fstat(stream.fileno()).st_mode & 0o077:
            raise UsageError(
                121, "the key of the erased people's register is open to others; chmod 600 it"
            )
        key = stream.read(1 << 12)
    if len(key) < 16:
        raise UsageError(121, "the key of the erased people's register has under 16 bytes")
    return key


def register(
    path: str | Path, key: bytes, names: Sequence[str], *, fold_case: bool = False
) -> None:
    """Add people to the register, which is made if need be; identifiers are normalised first.

    Args:
        path: The register.
        key: Its key.
        names: Who was erased.
        fold_case: As the schema of the sources says.

    Raises:
        UsageError: SQ-108 for what is no identifier.
    """
    words, at = identifiers.coded(pa.array(names, pa.large_string()), fold_case=fold_case)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        erased = lines_of([words[i] for i in at], key, fold_case=fold_case)
        stream.writelines(f"{line}\n" for line in erased)


def read_register(path: str | Path) -> list[str]:
    """The register's lines.

    Raises:
        UsageError: SQ-121 for a register that is missing or damaged.
    """
    try:
        listed = Path(path).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        raise UsageError(121, "the register of erased people cannot be read") from None
    if any(len(line) != _DIGITS or set(line) - set("0123456789abcdef") for line in listed):
        raise UsageError(121, "the register of erased people is damaged: a line is no hash")
    return listed


def refuse_erased(
    names: Iterable[str], path: str | Path, key: bytes, *, fold_case: bool = False
) -> None:
    """Refuse a source in which somebody who was erased has come back.

    Args:
        names: Normalised identifiers of everybody in the source.
        path: The register.
        key: Its key.
        fold_case: As the names were made with.

    Raises:
        UsageError: SQ-121 with their number, never their names; or for a register that is
            missing or damaged.
    """
    listed = read_register(path)
    back = 0
    if listed:
        back = int(np.isin(list(lines_of(names, key, fold_case=fold_case)), listed).sum())
    if back:
        raise UsageError(
            121,
            f"{back} people of the source were erased and must not be read again; have the "
            "source's keeper delete their rows",
        )
