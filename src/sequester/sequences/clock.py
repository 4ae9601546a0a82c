"""Reading the time column: dates, durations, times of day, or plain order; never a guess."""

from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.columns import is_text, looks_numeric, text_of
from sequester.sequences.dates import NOTHING, Stamps, by_form, by_formats, by_iso
from sequester.sequences.facts import ReadFacts
from sequester.sequences.parts import whole
from sequester.sequences.persons import Remembered
from sequester.sequences.schema import Time

MICROSECONDS = {
    "ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "min": 60e6, "h": 3600e6, "d": 86400e6,
}  # fmt: skip
EPOCH_LIKE = 1e7  # whole numbers above this are stamps or dates, whose form must be declared
DAY = 86_400_000_000
WALL = "times are wall-clock times: no zone is declared, summer time is not undone"
_DURATION = re.compile(r"(\d{1,6}):([0-5]?\d)(?::([0-5]?\d)(\.\d{1,6})?)?")


class TimeReader:
    """Reads the time column, at once or stretch by stretch.

    Attributes:
        kind: What time turned out to be, once something was read; `step` before.
    """

    def __init__(self, time: Time, facts: ReadFacts, *, whole_column: bool) -> None:
        """As declared; `whole_column` says that everything comes in one stretch."""
        self.kind = "step"
        self._time = time
        self._facts = facts
        self._whole = whole_column
        self._seen = False
        self._offsets: set[bool] = set()  # whether times named their offset from UTC
        self._last = Remembered(NOTHING)
        self._days = Remembered(0)

    def read(self, column: pa.ChunkedArray) -> np.ndarray:
        """Microseconds (whole numbers for `step`) of every row.

        Returns:
            int64 `(rows,)`, NOTHING where a row has no readable time. For `clock` the time since
            midnight: `unwrap` adds the days once people are known.

        Raises:
            UsageError: SQ-110 to 114; SQ-124 where a stretch is read otherwise than another.
        """
        micros, kind = self._read(column)
        if column.null_count < len(column):
            if self._seen and kind != self.kind:
                raise self._undeclared(f"one stretch reads as {self.kind} times, another as {kind}")
            self.kind, self._seen = kind, True
        return micros

    def _undeclared(self, why: str) -> UsageError:
        return UsageError(
            124,
            f"data larger than memory are read in stretches, and {why}; declare time.formats or "
            "time.unit",
            where=f"column {self._time.column}",
        )

    def _read(self, column: pa.ChunkedArray) -> tuple[np.ndarray, str]:
        kind, time = column.type, self._time
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            micros = _bounded(_typed(whole(column)), time)
            if getattr(kind, "tz", None) is None:
                if time.zone != "wall":
                    micros = _to_utc(micros, time.zone)
                else:
                    self._facts.note(WALL)
            return micros, "absolute"
        if pa.types.is_time(kind):
            micros = whole(column).cast(pa.time64("us"), safe=False).cast(pa.int64())
            return micros.fill_null(NOTHING).to_numpy(zero_copy_only=False), "clock"
        if pa.types.is_duration(kind):
            micros = whole(column).cast(pa.duration("us"), safe=False).cast(pa.int64())
            return _elapsed(micros.fill_null(NOTHING).to_numpy(zero_copy_only=False)), "elapsed"
        if time.kind in {"elapsed", "clock"} and is_text(kind) and not looks_numeric(column):
            return _durations(column, time)
        numbers = bool(time.unit) or time.kind == "step" or looks_numeric(column)
        if numbers and not time.formats:
            return _numbers(column, time, self._facts)
        if not (time.formats or self._whole):
            raise self._undeclared("the form of dates is told from all of them")
        if not is_text(kind):
            column = pa.chunked_array([whole(column).cast(pa.large_string())])
        return _dates(column, time, self._facts, self._offsets), "absolute"

    def order(self, person: np.ndarray, people: int) -> np.ndarray:
        """0, 1, 2, … for the rows of each person in the source's order, int64 `(rows,)`."""
        so_far = self._days.of(people)
        order = np.argsort(person, kind="stable")
        starts = np.flatnonzero(np.diff(person[order], prepend=-1))
        lengths = np.diff(np.append(starts, len(order)))
        turn = np.empty(len(order), dtype=np.int64)
        turn[order] = np.arange(len(order)) - np.repeat(starts, lengths)
        turn += so_far[person]
        so_far += np.bincount(person, minlength=people)
        return turn

    def unwrap(
        self, time: np.ndarray, person: np.ndarray, people: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a day to a clock each time that it passes midnight, in the source's order.

        Args:
            time: Microseconds since midnight, int64 `(rows,)`; NOTHING is carried through.
            person: Code of each row's person, `(rows,)`.
            people: How many people there are so far.

        Returns:
            Microseconds since the person's first midnight, and which rows stepped back by less
            than half a day: no midnight explains those.
        """
        result, backwards = time.copy(), np.zeros(len(time), dtype=bool)
        known = np.flatnonzero(time != NOTHING)
        order = known[np.argsort(person[known], kind="stable")]
        if not len(order):
            return result, backwards
        last, days = self._last.of(people), self._days.of(people)
        mine, clock = person[order], time[order]
        first = np.diff(mine, prepend=-1) != 0
        before = np.where(first, last[mine], np.roll(clock, 1))
        step = np.where(before == NOTHING, 0, clock - before)
        wraps = step < -DAY // 2
        passed = np.cumsum(wraps)
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(order)))
        base: np.ndarray = np.repeat(passed[starts] - wraps[starts], lengths)
        day = passed - base + days[mine]
        result[order] = clock + day * DAY
        backwards[order[(step < 0) & ~wraps]] = True
        ends = np.append(starts[1:], len(order)) - 1
        last[mine[ends]], days[mine[ends]] = clock[ends], day[ends]
        return result, backwards


# ---------------------------------------------------------------------- dates


def _typed(stamps: pa.Array) -> np.ndarray:
    """Microseconds of Arrow dates and stamps; NOTHING for what int64 microseconds cannot hold."""
    kind = stamps.type
    if pa.types.is_date(kind):
        unit, numbers = (
            ("d", stamps.cast(pa.int32()))
            if pa.types.is_date32(kind)
            else ("ms", stamps.cast(pa.int64()))
        )
    else:
        unit, numbers = kind.unit, stamps.cast(pa.int64())
    raw = numbers.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)
    scale = MICROSECONDS[unit]
    if scale < 1:
        return np.where(raw == NOTHING, NOTHING, raw // 1000)
    fits = (raw != NOTHING) & (np.abs(np.where(raw == NOTHING, 0, raw)) < 2**62 // int(scale))
    return np.where(fits, np.where(fits, raw, 0) * int(scale), NOTHING)


def _dates(column: pa.ChunkedArray, time: Time, facts: ReadFacts, offsets: set[bool]) -> np.ndarray:
    texts = text_of(column)
    if (plain := by_iso(texts, time.formats)) is not None:
        facts.note(f"times read as {plain.reading}")
        return _bounded(_one_zone(plain, time, facts, offsets), time)
    coded = texts.dictionary_encode()
    words = coded.dictionary
    codes = coded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    rows = np.bincount(codes, minlength=len(words) + 1)[: len(words)]
    if time.formats:
        stamps = by_formats(words, time.formats)
    elif pc.all(pc.match_substring_regex(words, r"^\d{1,3}:\d{2}(:\d{2}(\.\d+)?)?$")).as_py():
        raise UsageError(
            113,
            "the time column holds hours and minutes without a date; declare time.kind = "
            "'clock' (time of day) or 'elapsed' (since the person's start)",
            where=f"column {time.column}",
        )
    else:
        stamps = by_form(words, rows)
    facts.note(f"times read as {stamps.reading}")
    micros = _bounded(_one_zone(stamps, time, facts, offsets), time)
    result: np.ndarray = np.append(micros, NOTHING)[codes]
    return result


def _one_zone(stamps: Stamps, time: Time, facts: ReadFacts, offsets: set[bool]) -> np.ndarray:
    """UTC where offsets or a zone are given, the wall clock otherwise; never both.

    Raises:
        UsageError: SQ-112 for stamps with and without an offset in one column.
    """
    read = stamps.micros != NOTHING
    offsets.update(map(bool, np.unique(stamps.zoned[read])))
    if len(offsets) > 1:
        raise UsageError(
            112,
            "some times carry an offset from UTC and some do not, so their order is unknown; give "
            "all of them one, or none",
            where=f"column {time.column}",
        )
    if True in offsets:
        return stamps.micros
    if time.zone == "wall":
        facts.note(WALL)
        return stamps.micros
    return _to_utc(stamps.micros, time.zone)


def _to_utc(micros: np.ndarray, zone: str) -> np.ndarray:
    """UTC of wall-clock times; NOTHING in the hours that clocks skip or live twice.

    Raises:
        UsageError: SQ-112 for an unknown zone.
    """
    naive = pa.array(micros, pa.timestamp("us"), mask=micros == NOTHING)
    try:
        early = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest")
        late = pc.assume_timezone(naive, zone, ambiguous="latest", nonexistent="latest")
    except pa.ArrowInvalid:
        raise UsageError(
            112, f"{zone!r} is not an IANA time zone such as 'Europe/Berlin', 'UTC' or 'wall'"
        ) from None
    first, second = (
        edge.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)
        for edge in (early, late)
    )
    return np.where(first == second, first, NOTHING)


def _bounded(micros: np.ndarray, time: Time) -> np.ndarray:
    """NOTHING outside the public bounds.

    Raises:
        UsageError: SQ-114 for bounds that are no dates.
    """
    try:
        low, high = (
            int(np.datetime64(bound, "us").astype(np.int64))
            for bound in (time.earliest, time.latest)
        )
    except ValueError:
        raise UsageError(
            114, f"time bounds are ISO dates, got {time.earliest!r} and {time.latest!r}"
        ) from None
    return np.where((micros >= low) & (micros < high), micros, NOTHING)


# ---------------------------------------------------------------------- durations and numbers


def _durations(column: pa.ChunkedArray, time: Time) -> tuple[np.ndarray, str]:
    """`H:M`, `H:M:S` or `H:M:S.f` since the start, or since midnight."""
    coded = text_of(column).dictionary_encode()
    most = DAY if time.kind == "clock" else None
    meaning = [_duration(word, most) for word in coded.dictionary.to_pylist()]
    codes = coded.indices.fill_null(len(meaning)).to_numpy(zero_copy_only=False)
    return np.array([*meaning, NOTHING], dtype=np.int64)[codes], time.kind


def _duration(word: str, most: int | None) -> int:
    if not (fits := _DURATION.fullmatch(word)):
        return NOTHING
    hours, minutes, seconds = int(fits[1]), int(fits[2]), int(fits[3] or 0)
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    micros += round(float(fits[4] or 0) * 1e6)
    return NOTHING if most is not None and micros >= most else micros


def _numbers(column: pa.ChunkedArray, time: Time, facts: ReadFacts) -> tuple[np.ndarray, str]:
    exact, numbers, there = _exact(column)
    if time.unit:
        return _with_unit(exact, numbers, there, time)
    if np.abs(numbers[there]).max(initial=0) > EPOCH_LIKE and time.kind != "step":
        raise UsageError(
            113,
            "the time column holds numbers large enough to be stamps since 1970 or dates without "
            "separators; declare time.unit (s, ms, us or ns) with kind = 'absolute', or "
            "time.formats, for instance '%Y%m%d'",
            where=f"column {time.column}",
        )
    if time.kind == "absolute":
        raise UsageError(113, "absolute times that are numbers need time.unit", where=time.column)
    if time.kind != "step":
        facts.note(
            "time is a number without a declared unit and is taken as order only; declare "
            "time.unit for durations"
        )
    whole_number = there & (exact == np.where(there, numbers, 0))
    return np.where(whole_number, exact, NOTHING), "step"


def _exact(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers as int64 (rounded), as float64, and whether they are there and finite.

    Whole numbers never pass through floating point: nanoseconds since 1970 would not survive.
    """
    if is_text(column.type):
        coded = text_of(column).dictionary_encode()
        pairs = [_number(word) for word in coded.dictionary.to_pylist()] + [(0, math.nan)]
        codes = coded.indices.fill_null(len(pairs) - 1).to_numpy(zero_copy_only=False)
        exact = np.array([pair[0] for pair in pairs], dtype=np.int64)[codes]
        numbers = np.array([pair[1] for pair in pairs])[codes]
        return exact, numbers, np.isfinite(numbers)
    array = whole(column)
    if pa.types.is_integer(array.type) and not pa.types.is_uint64(array.type):
        exact = array.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)
        return exact, exact.astype(np.float64), exact != NOTHING
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    there = np.isfinite(numbers)
    small = there & (np.abs(np.where(there, numbers, 0)) < 2**62)
    return np.rint(np.where(small, numbers, 0)).astype(np.int64), numbers, there


def _number(word: str) -> tuple[int, float]:
    """A text as a rounded int64 and a float64; NaN where it is no number."""
    try:
        number = float(word) if "_" not in word else math.nan
        exact = int(word) if word.lstrip("+-").isdecimal() else round(number)
    except (ValueError, OverflowError):  # no number, or an infinite one
        return 0, math.nan
    return (exact if abs(exact) < 2**62 else 0), number


def _with_unit(
    exact: np.ndarray, numbers: np.ndarray, there: np.ndarray, time: Time
) -> tuple[np.ndarray, str]:
    """Numbers of a declared unit as microseconds; NOTHING beyond about 290,000 years."""
    scale = MICROSECONDS[time.unit]
    fits = there & (np.abs(np.where(there, numbers, 0)) * scale < 2**62)
    integral = fits & (exact == np.where(there, numbers, 0))
    if scale >= 1:
        micros = np.where(integral, np.where(integral, exact, 0) * int(scale), 0)
        rest = fits & ~integral
        micros[rest] = np.rint(numbers[rest] * scale).astype(np.int64)
    else:
        micros = exact // 1000
    micros = np.where(fits, micros, NOTHING)
    if time.kind == "absolute":
        return _bounded(micros, time), "absolute"
    return _elapsed(micros), "elapsed"


def _elapsed(micros: np.ndarray) -> np.ndarray:
    """NOTHING for a duration below zero: nothing happens before the start."""
    return np.where(micros < 0, NOTHING, micros)
