"""What an outsider may know of a record, at a chosen coarseness: the parts of a point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.people import People

HOUR = 3_600_000_000  # microseconds
CLOCKS = ("hour-of-week", "hour-of-day", "hour", "exact", "none")
_PERIODS = {"hour-of-day": 24, "hour-of-week": 168}


def point_keys(
    people: People, cells: Mapping[str, float], clock: str = "hour-of-week"
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Owners and the parts of a point, for records that have all parts.

    Args:
        people: Whose records.
        cells: Columns of a point; for numbers the width of a cell (0.01 degrees of latitude are
            about a kilometre), 0 for the number itself; for words it does not matter.
        clock: How time enters: one of `CLOCKS`; a `step` time always enters as it is.

    Returns:
        Owner, int64 `(points,)`, ascending; for each part whole numbers, int64 `(points,)`, that
        are equal where the parts are.

    Raises:
        UsageError: SQ-128 for a negative width, an unknown clock, or a point without parts.
    """
    keys: list[np.ndarray] = []
    there = np.ones(people.records, dtype=bool)
    for name, width in cells.items():
        if width < 0:
            raise UsageError(128, f"the cell of {name!r} must be ≥ 0 wide, got {width}")
        if people.kinds.get(name) == "numeric":
            values, mask = people.values([name])
            cell = np.floor(values[:, 0] / width) if width else values[:, 0]
            keys.append(np.unique(cell, return_inverse=True)[1].astype(np.int64))
            there &= mask[:, 0]
        else:
            words = people.column(name)
            coded = words if pa.types.is_dictionary(words.type) else pc.dictionary_encode(words)
            codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            keys.append(codes)
            there &= codes >= 0
    if clock not in CLOCKS:
        raise UsageError(128, f"clock is one of {', '.join(CLOCKS)}, got {clock!r}")
    if clock != "none":
        keys.append(_moment(people, clock))
    if not keys:
        raise UsageError(128, "a point needs a column or a clock; nothing is known otherwise")
    return people.owner[there].astype(np.int64), [key[there] for key in keys]


def _moment(people: People, clock: str) -> np.ndarray:
    if people.time_kind == "step" or clock == "exact":
        return people.time
    # 1970-01-01 was a Thursday: 72 hours later, weeks begin on Monday.
    hours: np.ndarray = people.time // HOUR + 72
    return hours % _PERIODS[clock] if clock in _PERIODS else hours


def in_words(people: People, cells: Mapping[str, float], clock: str) -> str:
    """What a point is, for a reader."""
    parts = [
        f"{name} in cells of {width:g}" if width and people.kinds[name] == "numeric" else name
        for name, width in cells.items()
    ]
    if clock != "none":
        parts.append("step" if people.time_kind == "step" else clock.replace("-", " "))
    return " × ".join(parts)
