"""Canonical JSON: one byte string for one value, so that hashes and signatures are stable."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """Serialise with sorted keys, no spaces and shortest round-trip floats.

    Infinity is written as the string "inf", because JSON has no such number and a claim of
    ε = ∞ must survive; NaN is refused: it is never a fact.

    Raises:
        ValueError: on NaN.
        TypeError: on a value that JSON cannot hold.
    """
    return json.dumps(
        _plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("canonical JSON: NaN is not a fact")
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
