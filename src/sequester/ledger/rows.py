"""One row of the ledger: a fact that is never changed, chained to the one before by its hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

BEFORE_FIRST = "0" * 64

LEDGER, POLICY, BUDGET, GRANT = "ledger", "policy", "budget", "grant"
RESERVE, BEGIN, COMMIT, VOID, CORRECT = "reserve", "begin", "commit", "void", "correct"
KINDS = (LEDGER, POLICY, BUDGET, GRANT, RESERVE, BEGIN, COMMIT, VOID, CORRECT)


class Row(NamedTuple):
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
        columns = seq, draft.key, draft.kind, draft.budget, draft.ref, draft.body, prev
        return cls._make((*columns, digest(columns)))

    def digest(self) -> str:
        """What its hash must be."""
        return digest(self[:7])

    def well_typed(self) -> bool:
        """Whether every column has its type; a flipped bit can turn text into a blob."""
        return tuple(map(type, self)) in _TYPES

    def fields(self) -> dict[str, Any]:
        """The body, parsed."""
        value: dict[str, Any] = json.loads(self.body)
        return value


_TYPES = {
    (int, key, str, str, ref, str, str, str)
    for key in (str, type(None))
    for ref in (int, type(None))
}


class Draft(NamedTuple):
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


def digest(columns: tuple[int, str | None, str, str, int | None, str, str]) -> str:
    """SHA-256 over every column but the hash, framed so that none can run into the next."""
    seq, key, kind, budget, ref, body, prev = columns
    framed = (
        f"sequester row 1|{prev}|{seq}|{'-' if key is None else f'{len(key)}:{key}'}|"
        f"{len(kind)}:{kind}|{len(budget)}:{budget}|{'-' if ref is None else ref}|{body}"
    )
    return hashlib.sha256(framed.encode("utf-8", "surrogateescape")).hexdigest()


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def compact(value: Any) -> str:
    """Canonical JSON of a value whose numbers are finite, five times faster.

    Raises:
        ValueError: on NaN and infinities, which no row holds.
    """
    return _ENCODER.encode(value)
