"""Reading time: dates, durations, times of day, or plain order; never a guess."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.columns import is_text, looks_numeric, text_of
from sequester.sequences.facts import ReadFacts
from sequester.sequences.people import whole
from sequester.sequences.schema import Time

MICROSECONDS = {
    "ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "min": 60e6, "h": 3600e6, "d": 86400e6,
}  # fmt: skip
EPOCH_LIKE = 1e8  # whole numbers above this are stamps, whose unit must be declared


def read_time(column: pa.ChunkedArray, time: Time, facts: ReadFacts) -> tuple[np.ndarray, str]:
    """Microseconds (steps for `step`) of every row, and the kind that was read.

    Returns:
        int64 `(rows,)` with the smallest int64 where a row has no readable time; the kind.

    Raises:
        UsageError: SQ-110, 111, 112, 113 or 114.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return typed_stamps(column), "absolute"
    if looks_numeric(column) and not time.formats:
        return _numbers(column, time, facts)
    if is_text(kind):
        stamps = pc.cast(text_of(column), pa.timestamp("us"))
        return typed_stamps(pa.chunked_array([stamps])), "absolute"
    raise UsageError(110, f"time cannot be read from {kind}", where=f"column {time.column}")


def typed_stamps(column: pa.ChunkedArray) -> np.ndarray:
    """Microseconds of an Arrow column of dates or stamps."""
    stamps = whole(column).cast(pa.timestamp("us", getattr(column.type, "tz", None)))
    result: np.ndarray = stamps.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)
    return result


NOTHING = int(np.iinfo(np.int64).min)


def _numbers(column: pa.ChunkedArray, time: Time, facts: ReadFacts) -> tuple[np.ndarray, str]:
    values = whole(column).cast(pa.float64())
    numbers = values.to_numpy(zero_copy_only=False)
    there = np.isfinite(numbers)
    if time.unit:
        stamps = np.where(there, numbers, 0) * MICROSECONDS[time.unit]
        kind = "absolute" if time.kind == "absolute" else "elapsed"
    else:
        if np.abs(numbers[there]).max(initial=0) > EPOCH_LIKE and time.kind != "step":
            raise UsageError(
                113,
                "the time column holds numbers large enough to be stamps since 1970; declare its "
                "unit (s, ms, us or ns) and kind = absolute",
                where=f"column {time.column}",
            )
        if time.kind != "step":
            facts.note(
                "time is a number without a declared unit and is taken as order only; declare a "
                "unit for durations"
            )
        stamps, kind = np.where(there, numbers, 0), "step"
    return np.where(there, np.rint(stamps).astype(np.int64), NOTHING), kind
