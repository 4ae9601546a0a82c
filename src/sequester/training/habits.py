"""What a person's own past says about what comes next: inputs, never parameters.

Everything here is a function of one person's earlier records, so it changes no sensitivity.
"""

from __future__ import annotations

import numpy as np


def followers(codes: np.ndarray, owner: np.ndarray, columns: int) -> np.ndarray:
    """What followed the present class before, in the same person's records.

    Args:
        codes: Class of each record, int64 `(records,)`, 0 where missing.
        owner: Person of each record, ascending, `(records,)`.
        columns: How many answers, at least 1.

    Returns:
        int64 `(records, columns)`: the class that followed most often so far (of equally many, the
        latest), then those that followed the last, second last, … time; 0 for none.
    """
    count = len(codes)
    found = np.zeros((count, columns), dtype=np.int64)
    # A transition is an event at its first record; the next record is where it is known.
    same = owner[1:] == owner[:-1]
    at = np.flatnonzero(same & (codes[1:] > 0) & (codes[:-1] > 0))
    if not len(at):
        return found
    classes = int(codes.max()) + 1
    group = owner.astype(np.int64) * classes + codes
    order = np.lexsort((at, group[at]))
    at = at[order]
    after, own = codes[at + 1], group[at]
    best = _commonest(own, after)
    # The latest event of the record's group that lies before the record.
    latest = np.searchsorted(own * count + at, group * count + np.arange(count)) - 1
    for column in range(columns):
        place = latest - max(0, column - 1)
        inside = (place >= 0) & (own[np.maximum(place, 0)] == group) & (codes > 0)
        source = best[np.maximum(place, 0)] if column == 0 else np.maximum(place, 0)
        found[:, column] = np.where(inside, after[source], 0)
    return found


def _commonest(group: np.ndarray, after: np.ndarray) -> np.ndarray:
    """For each event, the event of its group whose class is the commonest so far.

    Args:
        group: Ascending, `(events,)`; in time order within a group.
        after: The class that followed, `(events,)`.
    """
    count = len(group)
    events = np.arange(count)
    order = np.lexsort((events, after, group))
    starts = np.ones(count, dtype=bool)
    starts[1:] = (group[order][1:] != group[order][:-1]) | (after[order][1:] != after[order][:-1])
    first = np.maximum.accumulate(np.where(starts, events, 0))
    times = np.empty(count, dtype=np.int64)
    times[order] = events - first + 1
    # Groups ascend, so a running maximum over all events never reaches back into an earlier one.
    number = np.cumsum(np.concatenate([[0], group[1:] != group[:-1]]))
    level = times + number * (count + 1)
    leads = level == np.maximum.accumulate(level)
    return np.maximum.accumulate(np.where(leads, events, 0))
