"""Every refusal of the house, each with a stable number.

A message says what was given, what is allowed and what to do about it; `where` names the
file, line or column. It never holds a value that came from a person's record.

    SequesterError           exit code 1
    ├── UsageError           2   wrong usage or bad input
    ├── LedgerRefusal        3   the budget, or a data holder's policy, says no
    └── VerificationError    4   an audit, a signature or a hash chain does not hold

Numbers are grouped by room: 1xx sequences, 2xx plans, accounting and studies, 3xx ledger,
4xx gradients, 5xx training and run folders, 6xx federated, 7xx secure aggregation,
8xx audits, 9xx reports and the command line. `docs/errors.md` explains each one.
"""

from __future__ import annotations


class SequesterError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1

    def __init__(self, code: int, message: str, *, where: str | None = None) -> None:
        """Keep the parts; `str()` joins them as `SQ-214 message (where)`."""
        self.code = code
        self.message = message
        self.where = where
        super().__init__(str(self))

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"SQ-{self.code} {self.message}{place}"

    def at(self, where: str) -> SequesterError:
        """The same error, naming the place it was found in."""
        return type(self)(self.code, self.message, where=where)


class UsageError(SequesterError):
    """Something given to sequester is wrong: an argument, a study, a file."""

    exit_code = 2


class LedgerRefusal(SequesterError):
    """The ledger, or a data holder's policy, does not allow this charge."""

    exit_code = 3


class VerificationError(SequesterError):
    """Evidence contradicts a claim."""

    exit_code = 4
