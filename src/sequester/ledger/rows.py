"""One row of the ledger: a fact that is never changed, chained to the one before by its hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

BEFORE_FIRST = "0" * 64

LEDGER, POLICY, BUDGET, GRANT = "ledger", "policy", "budget", "grant"
RESERVE, BEGIN, COMMIT, VOID, CORRECT = "reserve", "begin", "commit", "void", "correct"
KINDS = (LEDGER, POLICY, BUDGET, GRANT, RESERVE, BEGIN, COMMIT, VOID, CORRECT)


@dataclass(frozen=True)
class Row:
    """A row as stored.

    Attributes:
        seq: 1, 2, 3, … without a gap; the only order there is (clocks are data).
        key: The caller's idempotency key, where the row answers a request.
        kind: One of `KINDS`.
        budget: The budget it concerns, or "".
        ref: The reservation that it begins or settles.
        body: Everything else, as canonical JSON.
        prev: Hash of the row before, 64 hexadecimal digits.
        hash: Hash of this row.
    """

    seq: int
    key: str | None
    kind: str
    budget: str
    ref: int | None
    body: str
    prev: str
    hash: str

    @classmethod
    def after(cls, last: Row | None, draft: Draft) -> Row:
        """The row that `draft` becomes behind `last`."""
        seq, prev = (last.seq + 1, last.hash) if last else (1, BEFORE_FIRST)
        row = cls(seq, draft.key, draft.kind, draft.budget, draft.ref, draft.body, prev, "")
        return cls(seq, row.key, row.kind, row.budget, row.ref, row.body, prev, row.digest())

    def digest(self) -> str:
        """SHA-256 over every other column; columns are framed, so none can run into the next."""
        key = "-" if self.key is None else f"{len(self.key)}:{self.key}"
        ref = "-" if self.ref is None else str(self.ref)
        framed = (
            f"sequester row 1|{self.prev}|{self.seq}|{key}|{len(self.kind)}:{self.kind}|"
            f"{len(self.budget)}:{self.budget}|{ref}|{self.body}"
        )
        return hashlib.sha256(framed.encode("utf-8", "surrogateescape")).hexdigest()

    def well_typed(self) -> bool:
        """Whether every column has its type; a flipped bit can turn text into a blob."""
        texts = (self.kind, self.budget, self.body, self.prev, self.hash)
        return (
            type(self.seq) is int
            and all(type(text) is str for text in texts)
            and (self.key is None or type(self.key) is str)
            and (self.ref is None or type(self.ref) is int)
        )

    def fields(self) -> dict[str, Any]:
        """The body, parsed."""
        value: dict[str, Any] = json.loads(self.body)
        return value


@dataclass(frozen=True)
class Draft:
    """A row before it has a place in the chain."""

    kind: str
    budget: str
    body: str
    key: str | None = None
    ref: int | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        fields: dict[str, Any],
        *,
        budget: str = "",
        key: str | None = None,
        ref: int | None = None,
    ) -> Draft:
        """A draft whose body is the canonical JSON of `fields`."""
        return cls(kind, budget, compact(fields), key, ref)


def compact(value: Any) -> str:
    """Canonical JSON of a value whose numbers are finite, five times faster.

    Raises:
        ValueError: on NaN and infinities, which no row holds.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
