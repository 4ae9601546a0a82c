"""Real data that come with the package."""

from __future__ import annotations

import hashlib
import io
from importlib import resources

import pyarrow.parquet as pq

from sequester.core.errors import SequesterError
from sequester.sequences.declare import Range
from sequester.sequences.people import People
from sequester.sequences.schema import Schema, Time

RANDHIE_SHA256 = "22b3daa031394139bd69e33609cff1cdb911a842710096145bb8c9a4b050ee12"

# From the codebook of the experiment and common knowledge, not from the records.
RANDHIE_RANGES = {
    "coins": Range(0, 100),
    "income": Range(0, 30_000),
    "xage": Range(0, 65),
    "female": Range(0, 1),
    "black": Range(0, 1),
    "educdec": Range(0, 25),
    "mhi": Range(0, 100),
    "disea": Range(0, 60),
    "physlm": Range(0, 1),
    "ghindx": Range(0, 100),
    "num": Range(1, 15),
    "child": Range(0, 1),
    "mdvis": Range(0, 100, log=True),
    "notmdvis": Range(0, 100, log=True),
    "mentvis": Range(0, 100, log=True),
    "totadm": Range(0, 10, log=True),
    "meddol": Range(0, 40_000, log=True),
}

RANDHIE_SCHEMA = Schema(
    person="person",
    time=Time(column="time", kind="step"),
    numeric=(*RANDHIE_RANGES, "label"),
    site="site",
    ignore=("plan",),
)


def randhie() -> People:
    """RAND Health Insurance Experiment: yearly care of 5,912 people at 6 sites, public domain.

    The column `label` is 1 where the person has three or more doctor visits in the following
    year, and missing in a person's last year. `RANDHIE_RANGES` holds public ranges.

    Raises:
        SequesterError: SQ-116 when the packaged file is not the one that was published.
    """
    file = resources.files("sequester.sequences") / "data" / "randhie.parquet"
    raw = file.read_bytes()
    if hashlib.sha256(raw).hexdigest() != RANDHIE_SHA256:
        raise SequesterError(
            116, "the packaged data set randhie is damaged: its checksum differs; reinstall"
        )
    return People.read(pq.read_table(io.BytesIO(raw)), RANDHIE_SCHEMA)
