"""What this process has parsed and found intact before, found again by comparing texts.

Only pure functions of a text are remembered: a stored text that differs in one byte is parsed
and checked anew, so that nothing is trusted that was not read in this very transaction.
"""

from __future__ import annotations

from sequester.core.errors import VerificationError
from sequester.ledger.budgets import Budget
from sequester.ledger.rows import Row


class Known:
    """Balances by their text, and the newest row."""

    def __init__(self) -> None:
        self._budgets: dict[str, tuple[str, Budget]] = {}
        self._newest: tuple[Row, int] | None = None

    def budget(self, name: str, text: str) -> Budget:
        """The budget that `text` describes.

        Raises:
            VerificationError: SQ-332 if its seal does not match.
        """
        seen = self._budgets.get(name)
        if seen is None or seen[0] != text:
            seen = self._budgets[name] = text, Budget.from_text(name, text)
        return seen[1]

    def text(self, budget: Budget) -> str:
        """As `budget` is stored."""
        text = budget.to_text()
        self._budgets[budget.name] = text, budget
        return text

    def time_of(self, newest: Row | None) -> int:
        """When the newest row was written, if it is intact; milliseconds since 1970.

        Raises:
            VerificationError: SQ-330 if it is missing or was changed.
        """
        seen = self._newest
        if seen is not None and seen[0] is newest:  # chained, or checked, by this very process
            return seen[1]
        if newest is None or not newest.well_typed():
            raise _changed(newest)
        if seen is None or seen[0] != newest:
            if newest.hash != newest.digest():
                raise _changed(newest)
            seen = self._newest = newest, newest.fields()["time_ms"]
        return seen[1]

    def appended(self, row: Row, time_ms: int) -> None:
        """Note a row that this process has just chained."""
        self._newest = row, time_ms


def _changed(row: Row | None) -> VerificationError:
    return VerificationError(330, f"row {row.seq if row else 1} was changed; nothing was charged")
