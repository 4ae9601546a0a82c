"""Rows that cannot be used: found, counted by reason, and treated as declared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sequester.core.errors import UsageError
from sequester.sequences.facts import ReadFacts
from sequester.sequences.schema import BadValues


class Sieve:
    """Collects what is wrong with which rows; `keep` then applies the declared rule once."""

    def __init__(self, rows: int) -> None:
        """For `rows` rows."""
        self._rows = rows
        self._found: list[tuple[int, str, str, np.ndarray, bool]] = []

    def add(self, code: int, column: str, reason: str, bad: np.ndarray, *, maskable: bool) -> None:
        """Rows, bool `(rows,)`, that are wrong in one column for one reason.

        Args:
            code: Error number if the rule is to refuse.
            column: The column.
            reason: In words, without any value.
            bad: Which rows.
            maskable: Whether the rest of the row can be used without this value.
        """
        if bad.any():
            self._found.append((code, column, reason, bad, maskable))

    def keep(
        self, rule: BadValues, gone: np.ndarray, where: Callable[[int], str], facts: ReadFacts
    ) -> np.ndarray:
        """Which rows stay, bool `(rows,)`.

        Args:
            rule: What to do about what was found.
            gone: Receives, under `drop-person`, which rows name a person to be left out,
                bool `(rows,)`.
            where: Names a row's place in the source.
            facts: Receives the counts.

        Raises:
            UsageError: Under `refuse`, the first thing that was found.
        """
        stays = np.ones(self._rows, dtype=bool)
        for code, column, reason, bad, maskable in self._found:
            if rule == "refuse":
                first = int(np.argmax(bad))
                raise UsageError(
                    code,
                    f"column {column!r}: {reason} in {int(bad.sum())} rows; repair them, or "
                    "declare bad_values = 'mask', 'drop-row' or 'drop-person'",
                    where=f"first in {where(first)}",
                )
            if rule == "mask" and maskable:
                facts.mask(column, reason, int((bad & stays).sum()))
            else:
                facts.drop(f"{column}: {reason}", int((bad & stays).sum()))
                stays &= ~bad
        if rule == "drop-person":
            gone |= ~stays
        return stays
