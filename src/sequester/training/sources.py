"""Where a study's people come from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sequester.core.errors import UsageError
from sequester.sequences import People, datasets, mobility
from sequester.training.dataset import schema_of
from sequester.training.study import Data

BUILTIN = "builtin:randhie"
SIMULATED = "simulated:mobility"
STAYS = "simulated:stays"
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]*://|(duckdb|sqlite|postgres(ql)?):")


def read_people(data: Data, *, beside: Path | None = None) -> People:
    """Read the study's people.

    Args:
        data: The section that declares the source.
        beside: Folder that relative paths start from: the study file's.

    Raises:
        UsageError: SQ-1xx from reading; SQ-271 for a built-in source that does not exist.
    """
    if data.source == BUILTIN:
        return datasets.randhie()
    if data.source == SIMULATED:
        return mobility.simulate()
    if data.source == STAYS:
        return stays(mobility.simulate())
    if data.source.partition(":")[0] in ("builtin", "simulated"):
        raise UsageError(
            271,
            f"data.source must be a path, {BUILTIN!r}, {SIMULATED!r} or {STAYS!r}, got "
            f"{data.source!r}",
            where="data.source",
        )
    if _URL.match(data.source):  # not repeated: it may hold a password
        raise UsageError(
            271,
            "data.source cannot be an address or a query; export the rows to Parquet, or read them "
            "in Python: train(study, people=People.read(Query(sql, url), schema_of(study.data)))",
            where="data.source",
        )
    path = Path(data.source)
    if beside is not None and not path.is_absolute():
        path = beside / path
    try:
        return People.read(str(path), schema_of(data))
    except UsageError as problem:
        if problem.code != 101 or beside is not None or path.is_absolute():
            raise
        raise UsageError(
            101,
            f"{problem.message}. A relative data.source is looked for beside the study file, or "
            f"here in {Path.cwd()} where none is named: name it (STUDY --resume RUN)",
            where="data.source",
        ) from None


def stays(people: People) -> People:
    """The first record of each stay: those whose place is not that of the record before.

    Each person's records are judged by that person's own alone.
    """
    codes = people.codes("place", mobility.VOCABULARY)
    arrived = np.ones(people.records, dtype=bool)
    arrived[1:] = (codes[1:] != codes[:-1]) | (people.owner[1:] != people.owner[:-1])
    return people.keep_records(arrived)
