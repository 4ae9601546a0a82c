"""Refuse to read into memory what cannot fit, before the system kills the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sequester.core.errors import UsageError
from sequester.sequences.parts import Part

GROWTH = 3  # typing and sorting take 3.8 times the raw rows and more
_SYSTEM = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup/memory.max")


def fitting(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts of a source, for as long as all of them together can be held in memory.

    Raises:
        UsageError: SQ-130 as soon as they cannot.
    """
    room, taken = available(), 0
    for part in parts:
        taken += part.table.nbytes
        if room is not None and GROWTH * taken > room:
            raise UsageError(
                130,
                f"the source needs more than {GROWTH * taken >> 20:,} MiB of memory and "
                f"{room >> 20:,} are free; read it through the disk: People.read(…, "
                "memory=512 << 20), or sequester inspect --memory 512",
            )
        yield part


def available() -> int | None:
    """Bytes that are free, or all that a container may hold if that is less; None: unknown."""
    found = []
    try:
        lines = dict(line.split(":", 1) for line in _SYSTEM.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) << 10)
    except (OSError, KeyError, ValueError):
        pass
    try:
        found.append(int(_GROUP.read_text()))
    except (OSError, ValueError):  # no group, or "max": no limit
        pass
    return min(found, default=None)
