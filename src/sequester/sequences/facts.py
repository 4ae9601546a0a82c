"""What reading found: counts by reason, for the data holder's eyes; no value, no identifier."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ReadFacts:
    """Counts of one reading; shown to whoever holds the data, never released.

    Attributes:
        rows: Rows found in the source.
        dropped: Rows left out, by reason.
        masked: Values set to missing, by column and reason.
        conflicted_people: People with repeated times whose values differ.
        repeated_records: Records that share person and time with another one.
        notes: What a reader should know, in words.
    """

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    conflicted_people: int = 0
    repeated_records: int = 0
    notes: list[str] = field(default_factory=list)

    def drop(self, reason: str, rows: int) -> None:
        """Count `rows` left out for `reason`."""
        if rows:
            self.dropped[reason] += int(rows)

    def mask(self, column: str, reason: str, values: int) -> None:
        """Count `values` of `column` set to missing for `reason`."""
        if values:
            self.masked[f"{column}: {reason}"] += int(values)

    def note(self, words: str) -> None:
        """Add a remark once."""
        if words not in self.notes:
            self.notes.append(words)
