"""What the user declares about a source: which column is what, and how its text is to be read.

Everything here is public: it is written by a person who knows the data's form, never learnt
from the records. Frozen and free of functions, so that a study file can hold it.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sequester.core.errors import UsageError

TimeKind = Literal["auto", "absolute", "elapsed", "clock", "step"]
TimeUnit = Literal["", "ns", "us", "ms", "s", "min", "h", "d"]
Repeats = Literal["keep", "first", "last", "mean", "refuse"]
BadValues = Literal["refuse", "mask", "drop-row", "drop-person"]


@dataclass(frozen=True)
class Layout:
    """How a text file is laid out.

    Attributes:
        form: `delimited`; `whitespace` for columns padded with blanks; `speakers` for paragraphs
            whose first line is `NAME:` and gives the person (columns `person` and `text`).
        delimiter: One character, of the form `delimited`.
        header: Whether the first line names the columns; otherwise `names` must.
        names: The columns' names where the file has none.
        skip_lines: Lines before the header, or before the rows.
        encoding: The text's encoding; a byte-order mark of UTF-8 is skipped.
        ragged: What a row with too few or too many fields does: refuse the file, or be dropped
            and counted.
        multiline: Whether quoted fields may span lines; otherwise such a field is refused,
            because a forgotten quote looks the same and swallows rows.
    """

    form: Literal["delimited", "whitespace", "speakers"] = "delimited"
    delimiter: str = ","
    header: bool = True
    names: tuple[str, ...] = ()
    skip_lines: int = 0
    encoding: str = "utf-8"
    ragged: Literal["refuse", "drop-row"] = "refuse"
    multiline: bool = False

    def __post_init__(self) -> None:
        """Refuse a layout that cannot be.

        Raises:
            UsageError: SQ-124.
        """
        if self.form == "delimited" and len(self.delimiter) != 1:
            raise UsageError(
                124,
                f"layout.delimiter is one character, got {self.delimiter!r}; for columns "
                "padded with blanks declare layout.form = 'whitespace'",
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise UsageError(
                124, f"layout.encoding {self.encoding!r} is not known; 'utf-8', 'latin-1' … are"
            ) from None
        if self.skip_lines < 0:
            raise UsageError(124, f"layout.skip_lines must be ≥ 0, got {self.skip_lines}")


@dataclass(frozen=True)
class Time:
    """How the time column is read.

    Attributes:
        column: Its name; `""` where records are in order and have no time.
        clock_column: A second column with the time of day, where date and clock are apart.
        kind: `absolute` (a date), `elapsed` (a duration `H:M[:S]` or a number of `unit`),
            `clock` (a time of day without a date; a wrap past midnight begins the next day),
            `step` (a whole number that only orders), or `auto`: told from the column's form.
        formats: `strptime` formats, each value read by the first that fits; empty: ISO 8601,
            or one form that reads every value in only one way.
        unit: Of numbers: an epoch for `absolute`, a duration for `elapsed`.
        zone: IANA zone of stamps without an offset; `"wall"` keeps the clock as written.
        earliest: Public bound, inclusive, ISO date; only for absolute times.
        latest: Public bound, exclusive, ISO date.
    """

    column: str = "time"
    clock_column: str = ""
    kind: TimeKind = "auto"
    formats: tuple[str, ...] = ()
    unit: TimeUnit = ""
    zone: str = "wall"
    earliest: str = "1900-01-01"
    latest: str = "2200-01-01"


@dataclass(frozen=True)
class Wide:
    """A table with one column a moment, to be turned into one row a moment.

    Attributes:
        columns: The moments' columns, in order.
        value: The name that their values get.
    """

    columns: tuple[str, ...]
    value: str = "value"


@dataclass(frozen=True)
class Schema:
    """Which column is what.

    A column that is neither declared nor listed in `ignore` is refused, once any feature is
    declared; with no feature declared every column is taken, and its type is told from its form.

    Attributes:
        person: The column, or the `{…}` of a path, that names the person.
        time: How time is read.
        numeric: Columns of numbers.
        categorical: Columns of words.
        text: Columns of free text.
        static: Those of the columns above that hold one value a person.
        site: The column, or `{…}` of a path, that names the site; `""` for none.
        parameter: In a long table, the column that names what was measured; the measured names
            are then declared in `numeric`.
        value: In a long table, the column with the measured number.
        wide: For a wide table.
        ignore: Columns that are left out; `("*",)` for all undeclared ones.
        missing: Texts that stand for a missing value, by column (`"*"`: every column). A blank
            always does. For numbers they are compared as numbers.
        replace: Numbers that stand for words, by column, for instance `Low` → 40.
        layout: Of text files.
        bad_values: What a value that is not a number, an infinite number or an unreadable time
            does. `drop-person` keeps the person, without records.
        repeats: What records of one person with the same time do.
        fold_case: Whether identifiers that differ only in case are one person.
        erased: Register of people who must not be read again; `""` for none. See
            `sequences.erased`.
        erased_key: File of the register's key, readable by its owner alone.
    """

    person: str = "person"
    time: Time = field(default_factory=Time)
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    site: str = ""
    parameter: str = ""
    value: str = ""
    wide: Wide | None = None
    ignore: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replace: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    bad_values: BadValues = "refuse"
    repeats: Repeats = "keep"
    fold_case: bool = False
    erased: str = ""
    erased_key: str = ""

    def __post_init__(self) -> None:
        """Refuse declarations that contradict each other.

        Raises:
            UsageError: SQ-124.
        """
        features = [*self.numeric, *self.categorical, *self.text]
        twice = sorted({name for name in features if features.count(name) > 1})
        if twice:
            raise UsageError(
                124, f"columns {', '.join(twice)} are declared twice; give each one kind"
            )
        if bool(self.erased) != bool(self.erased_key):
            raise UsageError(124, "`erased` and `erased_key` are declared together, or neither")
        if bool(self.parameter) != bool(self.value):
            raise UsageError(124, "a long table needs both `parameter` and `value`, or neither")
        if self.parameter and not self.numeric:
            raise UsageError(
                124,
                "a long table needs the names of its measurements in `numeric`: they are public, "
                "and are not taken from the records",
            )
        roles = {self.person, self.time.column, self.site} - {""}
        if overlap := sorted(roles & set(features)):
            raise UsageError(
                124,
                f"{', '.join(overlap)} cannot be a feature as well as the person, time or site",
            )

    @property
    def features(self) -> tuple[str, ...]:
        """All declared feature columns, in the declared order."""
        return (*self.numeric, *self.categorical, *self.text)
