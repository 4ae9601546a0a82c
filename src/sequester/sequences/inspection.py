"""What a data holder wants to see before training: counts, skew, gaps, how identifying.

All of it is computed from private records and stays with whoever holds them. Nothing here may
set a parameter of training: ranges, vocabularies and bounds are public or privatised. Records are
looked at in stretches, so that data larger than memory need no more of it than reading them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from sequester.sequences.gaps import Gaps
from sequester.sequences.people import People

FEW_PEOPLE = 1000  # below this a network cannot be trained under a person-level ε of about 1
SKEW = 20.0  # largest contribution over the median that calls for a bound
WHOLE_BINS = 24  # so many different whole numbers are shown one by one
NAMES_OF_ROWS = {"id", "index", "row", "uuid", "guid", "rowid", "record_id", "unnamed: 0", ""}


@dataclass(frozen=True)
class Histogram:
    """Counts of something positive, on a logarithmic scale or one bin for each whole number.

    Attributes:
        title: What is counted.
        edges: Bin edges, `bins + 1`.
        counts: Entries of each bin.
        unit: Of the edges.
        whole: Whether each bin holds just the whole number at its lower edge.
    """

    title: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    unit: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Inspection:
    """The picture of a data set.

    Attributes:
        persons: People, including those without a record.
        records: Records.
        per_person: `min`, `median`, `p95`, `max` of records a person.
        top_share: Share of all records that the 1 % with the most records hold.
        span: First and last time, ISO for dates; seconds or steps otherwise.
        gap: `median`, `p95`, `max` seconds (steps) between neighbouring records of a person.
        missing: Share of records without a value, by column.
        uniqueness: Share of draws of k points that single out one person, by k; None where
            nobody has k distinct points.
        point: What a point is, in words.
        sites: People at each site.
        rows: Rows read.
        dropped: Rows left out, by reason.
        masked: Values set to missing, by column and reason.
        warnings: What to think about, most serious first.
        histograms: Records a person, and gaps.
        notes: How the source was read.
    """

    persons: int
    records: int
    per_person: dict[str, float]
    top_share: float
    span: dict[str, str | float | None]
    gap: dict[str, float | None]
    missing: dict[str, float]
    uniqueness: dict[str, float | None]
    point: str
    sites: dict[str, int]
    rows: int
    dropped: dict[str, int]
    masked: dict[str, int]
    warnings: list[str] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inspect(
    people: People, uniqueness: Mapping[str, float | None], point: str = "a record"
) -> Inspection:
    """Look at people's records.

    Args:
        people: The data.
        uniqueness: Share of draws of k points that single out one person, by k.
        point: What a point is, in words.
    """
    counts = people.counts
    gaps = Gaps(people)
    top = np.sort(counts)[::-1][: max(1, len(counts) // 100)]
    sites = np.bincount(people.site, minlength=len(people.site_names))
    found = Inspection(
        persons=len(people),
        records=people.records,
        per_person={
            "min": int(counts.min()),
            "median": float(np.median(counts)),
            "p95": float(np.percentile(counts, 95)),
            "max": int(counts.max()),
        },
        top_share=float(top.sum() / max(people.records, 1)),
        span=_span(people),
        gap={"median": gaps.quantile(0.5), "p95": gaps.quantile(0.95), "max": gaps.most},
        missing={name: _missing(people, name) for name in people.columns},
        uniqueness=dict(uniqueness),
        point=point,
        sites={name: int(n) for name, n in zip(people.site_names, sites, strict=False)},
        rows=people.facts.rows,
        dropped=dict(people.facts.dropped),
        masked=dict(people.facts.masked),
        histograms=_histograms(counts, gaps, people.time_kind),
        notes=list(people.facts.notes),
    )
    found.warnings.extend(_warnings(people, found))
    return found


def _span(people: People) -> dict[str, str | float | None]:
    if not people.records:
        return {"first": None, "last": None, "kind": people.time_kind}
    ends = people.time.min(), people.time.max()
    if people.time_kind == "absolute":
        first, last = (str(np.datetime64(int(end), "us").astype("datetime64[s]")) for end in ends)
        return {"first": first, "last": last, "kind": "absolute"}
    unit = 1.0 if people.time_kind == "step" else 1e6
    return {"first": float(ends[0] / unit), "last": float(ends[1] / unit), "kind": people.time_kind}


def _missing(people: People, column: str) -> float:
    """Share of records without a value."""
    if people.is_static(column):
        absent = pc.is_null(people.per_person(column)).to_numpy(zero_copy_only=False)
        missing = int(people.counts[absent].sum())
    else:
        missing = people.column(column).null_count
    return missing / max(people.records, 1)


def _histograms(counts: np.ndarray, gaps: Gaps, kind: str) -> list[Histogram]:
    unit = "steps" if kind == "step" else "s"
    made = [
        _histogram("records a person", [counts], ""),
        _histogram("time between records", gaps, unit),
    ]
    return [histogram for histogram in made if histogram is not None]


def _histogram(
    title: str, stretches: Iterable[np.ndarray], unit: str, bins: int = 16
) -> Histogram | None:
    """Of the positive values among all stretches, which are gone through twice."""
    low, high, whole = math.inf, 0.0, True
    for values in stretches:
        if len(some := values[values > 0]):
            low, high = min(low, float(some.min())), max(high, float(some.max()))
            whole &= bool((some == np.rint(some)).all())
    if not high:
        return None
    if whole := whole and high - low < WHOLE_BINS:
        edges = np.arange(low, high + 2)
    else:
        edges = np.geomspace(low, high, bins + 1) if high > low else np.array([low, high])
        edges[0], edges[-1] = low, high  # the logarithm's rounding would lose the extremes
    borders = edges - 0.5 if whole else edges
    counts = np.sum([np.histogram(v[v > 0], borders)[0] for v in stretches], axis=0)
    return Histogram(title, tuple(map(float, edges)), tuple(map(int, counts)), unit, whole=whole)


def _warnings(people: People, found: Inspection) -> list[str]:
    """In words, most serious first; counts only."""
    words = []
    facts, half = people.facts, 0.5
    if facts.conflicted_people:
        words.append(
            f"people with repeated times and different values: {facts.conflicted_people} of "
            f"{found.persons}; two devices or two people under one identifier spoil results"
        )
    known = {k: share for k, share in found.uniqueness.items() if share is not None}
    if identifying := [k for k, share in known.items() if share > half]:
        k = identifying[0]
        words.append(
            f"knowing {k} point{'s' * (k != '1')} ({found.point}) picks out one person in "
            f"{100 * known[k]:.0f} % of draws: "
            "removing names does not make these data anonymous"
        )
    if found.persons < FEW_PEOPLE:
        words.append(
            f"{found.persons} people: noise for a person-level guarantee will drown a network; "
            f"think of {FEW_PEOPLE:,} or more, few parameters, or public pre-training"
        )
    median = max(found.per_person["median"], 1.0)
    if found.per_person["max"] > SKEW * median:
        words.append(
            f"contributions are skewed: the most is {found.per_person['max']:,.0f} records, the "
            f"median {median:g}; declare max_per_person"
        )
    if (empty := int((people.counts == 0).sum())) > 0:
        words.append(f"people without a record: {empty}")
    words += [
        f"column {name!r}: {100 * share:.0f} % missing"
        for name, share in found.missing.items()
        if share > half
    ]
    words += [
        f"column {name!r} looks like a row number or an identifier; it would leak people"
        for name in people.columns
        if name.strip().lower() in NAMES_OF_ROWS
    ]
    if facts.dropped:
        words.append(f"rows left out: {sum(facts.dropped.values())} of {facts.rows}")
    return words
