"""Who is in the raw data: how few points single out a person.

These figures are exact statements about private people: they stay with whoever holds the data
and charge nothing because they are not released. Printing them outside needs a privatised count.
"""

from sequester.audit.uniqueness.places import Points, grid, hexagons
from sequester.audit.uniqueness.share import Share, uniqueness, worst_case
from sequester.audit.uniqueness.surface import (
    Cell,
    Difference,
    Linkage,
    Trajectories,
    difference,
    linkage,
    surface,
)

__all__ = [
    "Cell",
    "Difference",
    "Linkage",
    "Points",
    "Share",
    "Trajectories",
    "difference",
    "grid",
    "hexagons",
    "linkage",
    "surface",
    "uniqueness",
    "worst_case",
]
