"""People and their records: reading, ownership, windows, splits, fingerprints."""

from sequester.sequences.declare import Range
from sequester.sequences.people import People
from sequester.sequences.schema import Layout, Schema, Time, Wide
from sequester.sequences.sources import Query
from sequester.sequences.windows import Features, Target, Windows

__all__ = [
    "Features",
    "Layout",
    "People",
    "Query",
    "Range",
    "Schema",
    "Target",
    "Time",
    "Wide",
    "Windows",
]
