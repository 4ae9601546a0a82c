"""Public declarations about values: ranges and vocabularies.

They come from knowledge of the world (a heart rate lies between 20 and 300), from a code book,
or from a private estimate that was charged. They are never measured silently: nothing in this
package returns the smallest or largest value, the mean or the set of words of a column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sequester.core.errors import UsageError


@dataclass(frozen=True)
class Range:
    """Public bounds of a number; values are clipped to them and mapped onto [-1, 1].

    Attributes:
        lower: Smallest value that counts.
        upper: Largest value that counts.
        log: Map `log(1 + value - lower)` instead: for amounts that span decades.
    """

    lower: float
    upper: float
    log: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty or unbounded range.

        Raises:
            UsageError: SQ-117.
        """
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            raise UsageError(117, f"a range has finite bounds, got {self.lower} to {self.upper}")
        if not self.lower < self.upper:
            raise UsageError(117, f"a range goes upwards, got {self.lower} to {self.upper}")

    def scale(self, values: np.ndarray) -> np.ndarray:
        """Clip to the bounds and map onto [-1, 1]; NaN stays NaN; any shape, float64."""
        clipped = np.clip(values, self.lower, self.upper) - self.lower
        width = self.upper - self.lower
        part = np.log1p(clipped) / math.log1p(width) if self.log else clipped / width
        scaled: np.ndarray = 2.0 * part - 1.0
        return scaled


def check_vocabulary(column: str, vocabulary: Sequence[str]) -> tuple[str, ...]:
    """The vocabulary as a tuple of distinct words.

    Raises:
        UsageError: SQ-117 when it is empty or repeats a word.
    """
    known = tuple(vocabulary)
    if isinstance(vocabulary, str) or not known:
        raise UsageError(
            117, "a vocabulary is a non-empty list of words, declared publicly", where=column
        )
    if len(set(known)) != len(known):
        raise UsageError(
            117, f"a vocabulary repeats {len(known) - len(set(known))} words", where=column
        )
    return known
