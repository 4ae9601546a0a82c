"""Dates as text: read in the one way that they can be read, or refused with the ways they can.

Day and month are never guessed. A column whose rows come in several forms is judged form by
form, because two writers may have had two habits: 161 rows of `12/04/2016 12:00 AM` (12 April)
beside 252 of `4/13/2016 12:00:00 AM` all parse as month/day, and a third of them wrongly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences.parts import buffers

NOTHING = int(np.iinfo(np.int64).min)  # no readable time

_CLOCK = (
    r"(?:[ T]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?P<fraction>\.\d{1,9})?)?"
    r"\s*(?P<half>[AaPp][Mm])?)?"
)
_ZONE = r"\s*(?P<zone>Z|[+-]\d{2}:?\d{2})?$"
_YEAR_FIRST = r"^(?P<a>\d{4})[-/.](?P<b>\d{1,2})[-/.](?P<c>\d{1,2})" + _CLOCK + _ZONE
_YEAR_LAST = r"^(?P<a>\d{1,2})[-/.](?P<b>\d{1,2})[-/.](?P<c>\d{4})" + _CLOCK + _ZONE
_MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


@dataclass(frozen=True)
class Stamps:
    """What texts mean.

    Attributes:
        micros: int64 `(texts,)`, microseconds since 1970, NOTHING where a text has no meaning.
        zoned: bool `(texts,)`, whether the text named its offset from UTC.
        reading: How the texts were read, in words.
    """

    micros: np.ndarray
    zoned: np.ndarray
    reading: str


def by_iso(texts: pa.Array, formats: tuple[str, ...]) -> Stamps | None:
    """Texts that are all `2024-05-01 10:00:00`, or all with a T there, read at once.

    Args:
        texts: Texts, with repetitions.
        formats: Those declared; none, or just this one.

    Returns:
        None where they are anything else, or a date cannot be: `by_formats` and `by_form` then
        say which.
    """
    if len(formats) > 1 or texts.null_count or not len(texts):
        return None
    starts, data = buffers(texts)
    if not (np.diff(starts) == 19).all():
        return None
    tenth = data[starts[0] + 10 : starts[-1] : 19]
    between = chr(tenth[0])
    form = f"%Y-%m-%d{between}%H:%M:%S"
    if between not in " T" or (formats and formats[0] != form) or (tenth != tenth[0]).any():
        return None
    try:
        micros = texts.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    reading = f"formats {form}" if formats else "year-month-day"
    return Stamps(micros, np.zeros(len(texts), dtype=bool), reading)


def by_formats(texts: pa.Array, formats: tuple[str, ...]) -> Stamps:
    """Each text read by the first of the declared `strptime` formats that fits."""
    micros = np.full(len(texts), NOTHING)
    zoned = np.zeros(len(texts), dtype=bool)
    with duckdb.connect() as database:
        database.register("texts_table", pa.table({"x": texts}))
        for form in formats:
            try:
                # DuckDB wants the format as a literal; a quote in it is doubled.
                spelled = form.replace("'", "''")
                found = database.execute(
                    f"SELECT epoch_us(try_strptime(x, '{spelled}')) AS t FROM texts_table"  # noqa: S608
                ).fetchnumpy()["t"]
            except duckdb.Error:
                raise UsageError(
                    110, f"{form!r} is not a strptime format such as '%d/%m/%Y %H:%M'"
                ) from None
            values = np.ma.filled(found, NOTHING).astype(np.int64)
            new = (micros == NOTHING) & (values != NOTHING)
            micros[new] = values[new]
            zoned[new] = "%z" in form
    return Stamps(micros, zoned, f"formats {', '.join(formats)}")


def by_form(texts: pa.Array, rows: np.ndarray) -> Stamps:
    """Each text read in the only way that it, and all others of its form, can be read.

    Args:
        texts: Distinct texts.
        rows: How many rows hold each, for the shares in a refusal.

    Raises:
        UsageError: SQ-111 for a form that has two readings, SQ-110 for one that has none.
    """
    first = _fields(texts, _YEAR_FIRST)
    last = _fields(texts, _YEAR_LAST)
    micros = _micros(first, first["a"], first["b"], first["c"])
    reading = "year-month-day"
    zoned = first["zoned"] | last["zoned"]
    if last["there"].any():
        months, days = _readings(texts, last, rows)
        micros = np.where(last["there"], months if days is None else days, micros)
        reading = "month/day/year" if days is None else "day/month/year"
    if not (first["there"].any() or last["there"].any()):
        raise UsageError(
            110,
            "the texts of the time column have no form that is known; declare time.formats, for "
            "instance '%d %b %Y %H:%M'",
        )
    return Stamps(micros, zoned, reading)


def _readings(
    texts: pa.Array, fields: dict[str, np.ndarray], rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Month-first stamps, and day-first ones where that is the reading.

    Raises:
        UsageError: SQ-111 with both readings and the share of rows that each one reads.
    """
    months = _micros(fields, fields["c"], fields["a"], fields["b"])
    days = _micros(fields, fields["c"], fields["b"], fields["a"])
    forms = _forms(texts, fields)
    verdicts = set()
    for form in np.unique(forms[fields["there"]]):
        mine = fields["there"] & (forms == form)
        month_first = bool((months[mine] != NOTHING).all())
        day_first = bool((days[mine] != NOTHING).all())
        if month_first and day_first and bool((months[mine] == days[mine]).all()):
            continue  # 05/05/2016 means the same either way
        verdicts.add(
            "both"
            if month_first and day_first
            else "month"
            if month_first
            else "day"
            if day_first
            else "none"
        )
    if len(verdicts) > 1 or verdicts & {"both", "none"}:
        raise _ambiguous(fields, rows, months, days, forms)
    return months, days if verdicts == {"day"} else None


def _ambiguous(
    fields: dict[str, np.ndarray],
    rows: np.ndarray,
    months: np.ndarray,
    days: np.ndarray,
    forms: np.ndarray,
) -> UsageError:
    """Both readings with shares, over the whole column and in each form."""
    total = rows.sum()

    def share(mine: np.ndarray, stamps: np.ndarray) -> str:
        return f"{100 * rows[mine & (stamps != NOTHING)].sum() / rows[mine].sum():.1f} %"

    there = fields["there"]
    lines = [
        f"as month/day/year {share(there, months)} of rows parse, as day/month/year "
        f"{share(there, days)}"
    ]
    shapes = np.unique(forms[there])
    if len(shapes) > 1:
        for form in shapes:
            mine = there & (forms == form)
            lines.append(
                f"form {form} ({100 * rows[mine].sum() / total:.1f} % of rows): month/day "
                f"{share(mine, months)}, day/month {share(mine, days)}"
            )
    return UsageError(
        111,
        "day and month cannot be told apart in the time column: " + "; ".join(lines) + "; declare "
        "time.formats, '%m/%d/%Y …' or '%d/%m/%Y …', one for each form, if you know who wrote it",
    )


def _forms(texts: pa.Array, fields: dict[str, np.ndarray]) -> np.ndarray:
    """The form of each text: padding, clock, halves of the day, zone.

    A text that does not show whether days and months are padded (`10/12/2016`) takes the habit
    of the others of its form, unless they have both.
    """
    pad = np.where(fields["padded"], "0", np.where(fields["bare"], "1", "?")).astype("U12")
    clock = np.where(fields["hour"] < 0, "", np.where(fields["second"] < 0, " H:M", " H:M:S"))
    half = np.where(fields["half"] > 0, " AM/PM", "")
    zone = np.where(fields["zoned"], " zone", "")
    rest = np.char.add(np.char.add(clock, half), zone)
    for tail in np.unique(rest):
        mine = rest == tail
        seen = set(np.unique(pad[mine])) - {"?"}
        if len(seen) == 1:
            pad[mine] = seen.pop()
    shape = np.select([pad == "0", pad == "1"], ["0x/0x/yyyy", "x/x/yyyy"], "xx/xx/yyyy")
    forms: np.ndarray = np.char.add(shape, rest)
    return forms


def _fields(texts: pa.Array, pattern: str) -> dict[str, np.ndarray]:
    """Numbers in each text; -1 where a field, or the whole form, is absent."""
    # RE2 needs every group named and gives "" for an optional one that is absent.
    found = pc.extract_regex(texts, pattern)
    there = pc.is_valid(found).to_numpy(zero_copy_only=False)
    parts = {field.name: found.field(i) for i, field in enumerate(found.type)}

    def number(name: str) -> np.ndarray:
        text = pc.if_else(pc.equal(parts[name], ""), None, parts[name])
        numbers: np.ndarray = text.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        return numbers

    def begins(name: str, *letters: str) -> np.ndarray:
        head = pc.utf8_lower(pc.utf8_slice_codeunits(parts[name], 0, 1)).fill_null("")
        hit = pc.is_in(head, value_set=pa.array(letters, head.type))
        return np.asarray(hit.to_numpy(zero_copy_only=False), dtype=bool)

    fraction = pc.if_else(pc.equal(parts["fraction"], ""), "0", parts["fraction"])
    micros = np.rint(fraction.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) * 1e6)
    zone = parts["zone"].fill_null("").to_pylist()
    fields = {name: number(name) for name in ("a", "b", "c", "hour", "minute", "second")}
    short = {
        name: pc.equal(pc.utf8_length(parts[name]), 1)
        .fill_null(False)
        .to_numpy(zero_copy_only=False)
        for name in "ab"
    }
    return fields | {
        "there": there,
        "micros": micros.astype(np.int64),
        "half": np.where(begins("half", "a"), 1, np.where(begins("half", "p"), 2, 0)),
        "zoned": np.array([bool(z) for z in zone], dtype=bool),
        "offset": np.array([_offset(z) for z in zone], dtype=np.int64),
        "padded": begins("a", "0") | begins("b", "0"),
        "bare": short["a"] | short["b"],
    }


def _offset(zone: str) -> int:
    """Microseconds east of UTC that `+02:00` stands for."""
    if not (fits := re.fullmatch(r"([+-])(\d{2}):?(\d{2})", zone)):
        return 0
    size = (int(fits[2]) * 60 + int(fits[3])) * 60_000_000
    return size if fits[1] == "+" else -size


def _micros(
    fields: dict[str, np.ndarray], year: np.ndarray, month: np.ndarray, day: np.ndarray
) -> np.ndarray:
    """Microseconds since 1970 (UTC where zoned); NOTHING for a date or time that cannot be."""
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good = fields["there"] & (month >= 1) & (month <= 12)
    longest = _MONTH_DAYS[np.where(good, month, 0)] - ((month == 2) & ~leap)
    good &= (day >= 1) & (day <= longest)
    hour, half = fields["hour"], fields["half"]
    good &= np.where(half > 0, (hour >= 1) & (hour <= 12), hour <= 23)
    good &= (fields["minute"] <= 59) & (fields["second"] <= 59)
    hour = np.where(half > 0, hour % 12 + 12 * (half == 2), np.maximum(hour, 0))
    months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + day - 1
    seconds = (days * 24 + hour) * 60 + np.maximum(fields["minute"], 0)
    seconds = seconds * 60 + np.maximum(fields["second"], 0)
    micros = seconds * 1_000_000 + fields["micros"] - fields["offset"]
    return np.where(good, micros, NOTHING)
