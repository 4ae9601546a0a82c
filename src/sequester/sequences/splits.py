"""Parts of the people: by person, site, region or time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences import prf
from sequester.sequences.people import People


def split(
    people: People,
    by: str,
    held_out: float | Sequence[str] | str,
    *,
    column: str = "",
    key: bytes = prf.PUBLIC_KEY,
) -> tuple[People, People]:
    """The rest and the held-out part.

    - `person`: each person is held out with probability `held_out`, decided by a keyed hash of
      the identifier, so that nobody's side depends on who else is there.
    - `site`: the people of the sites named in `held_out`.
    - `region`: the people who are most often in the regions named in `held_out`, by the
      categorical `column`; all of a person's records go with them.
    - `time`: records from the moment `held_out` on (an ISO date, or a number for elapsed seconds
      or steps). Everybody is in both parts, with different records; a guarantee about people
      therefore spans both.

    Raises:
        UsageError: SQ-119 for anything that cannot be split so.
    """
    if by == "time":
        return _by_time(people, held_out)
    if by == "person":
        out = _hashed(people, held_out, key)
    elif by == "site":
        out = np.isin(people.site, _positions(people.site_names, _names(held_out), "site"))
    elif by == "region":
        out = _resident(people, column, _names(held_out))
    else:
        raise UsageError(119, f"people are split by person, site, region or time, not by {by!r}")
    return people.select(np.flatnonzero(~out)), people.select(np.flatnonzero(out))


def _hashed(people: People, share: float | Sequence[str] | str, key: bytes) -> np.ndarray:
    if not isinstance(share, int | float) or not 0.0 < share < 1.0:
        raise UsageError(119, "a split by person holds out a share between 0 and 1")
    hashes = people.keyed_hashes(key, "split")
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share


def _names(held_out: float | Sequence[str] | str) -> list[str]:
    if isinstance(held_out, str):
        return [held_out]
    if isinstance(held_out, int | float):
        raise UsageError(119, "name the sites or regions to hold out, as a list of texts")
    return list(held_out)


def _positions(names: Sequence[str], wanted: Sequence[str], what: str) -> list[int]:
    known = list(names)
    if missing := [name for name in wanted if name not in known]:
        listed = ", ".join(known) if known else "none; declare the column in the schema"
        raise UsageError(119, f"there is no {what} named {', '.join(missing)}; known: {listed}")
    return [known.index(name) for name in wanted]


def _resident(people: People, column: str, wanted: Sequence[str]) -> np.ndarray:
    """People whose most frequent word of `column` is wanted; the first in the alphabet wins ties.

    Regions are not listed in an error: which exist is private.
    """
    if not column:
        raise UsageError(119, "a split by region needs the categorical column of regions")
    codes = people.codes(column, sorted(set(wanted)))
    words = people.column(column)
    coded = words if pa.types.is_dictionary(words.type) else pc.dictionary_encode(words)
    alphabet = np.argsort(pc.array_sort_indices(coded.dictionary).to_numpy())
    present = np.flatnonzero(pc.is_valid(words).to_numpy(zero_copy_only=False))
    place = coded.indices.to_numpy(zero_copy_only=False)[present].astype(np.int64)
    owner = people.owner[present].astype(np.int64)
    pair, first, count = np.unique(
        owner * (len(alphabet) + 1) + alphabet[place], return_index=True, return_counts=True
    )
    order = np.lexsort((pair, -count, pair // (len(alphabet) + 1)))
    lead, at = np.unique(pair[order] // (len(alphabet) + 1), return_index=True)
    home = np.zeros(len(people), dtype=np.int64)
    home[lead] = codes[present[first[order[at]]]]
    result: np.ndarray = (home >= 1) & (home <= len(set(wanted)))
    return result


def _by_time(people: People, moment: float | Sequence[str] | str) -> tuple[People, People]:
    if people.time_kind == "absolute":
        if not isinstance(moment, str):
            raise UsageError(119, "a split of absolute times needs an ISO date as `held_out`")
        try:
            at = int(np.datetime64(moment, "us").astype(np.int64))
        except ValueError:
            raise UsageError(119, f"{moment!r} is not an ISO date such as 2024-05-01") from None
    elif isinstance(moment, int | float):
        at = int(moment) if people.time_kind == "step" else round(moment * 1e6)
    else:
        raise UsageError(119, "a split of elapsed times or steps needs a number as `held_out`")
    later = people.time >= at
    return people.keep_records(~later), people.keep_records(later)
