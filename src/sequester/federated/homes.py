"""Each person's one site, before a run relies on it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences import People
from sequester.training.dataset import is_site
from sequester.training.study import Study


def check_homes(study: Study, people: People) -> None:
    """Refuse people at several sites, or at none, where sites are clients.

    A claim takes for granted that each person's records lie at one site. A source that declares
    its site column was checked when it was read; any other column is checked here.

    Raises:
        UsageError: SQ-654, with how many people there are of either kind.
    """
    column = study.data.group
    silo = (study.federated or {}).get("placement") == "cross-silo"
    if not (silo and column) or is_site(people, column, study.data.read.get("site", "site")):
        return
    if people.is_static(column):
        several, none = 0, people.per_person(column).null_count
    else:
        several, none = _counts(people, people.text(column))
    if several or none:
        raise UsageError(
            654,
            f"{several} people have records at several sites and {none} have records at none, and "
            "each person belongs to one site; correct the records, or leave these people out",
            where="data.group",
        )


def _counts(people: People, words: pa.Array | pa.ChunkedArray) -> tuple[int, int]:
    """People with several values, and people with a missing one."""
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    codes = pc.fill_null(pc.dictionary_encode(words).indices, -1).to_numpy(zero_copy_only=False)
    first = people.offsets[:-1][people.counts > 0]
    if not len(first):
        return 0, 0
    least, most = np.minimum.reduceat(codes, first), np.maximum.reduceat(codes, first)
    missing = least < 0
    return int(((least != most) & ~missing).sum()), int(missing.sum())
