"""Events as canonical JSON: a closed schema, so that a ledger on disk can never run code.

`{"type": "poisson-sampled", "sampling_rate": 0.01, "event": {…}}`: every field is present,
none is extra, numbers are numbers. Unknown types are refused, never imported by name.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from sequester.accounting.events import VOCABULARY, Event
from sequester.core import canonical
from sequester.core.errors import UsageError

MAX_DEPTH = 32
MAX_CHARACTERS = 16_000_000


def to_json(event: Event) -> str:
    """The canonical JSON of an event; equal events give equal bytes."""
    return canonical.dumps(_encode(event))


def from_json(text: str) -> Event:
    """The event a canonical JSON text stands for.

    Raises:
        UsageError: SQ-212 for text that is not exactly an event; SQ-206 to SQ-211 for an
            event with numbers that mean nothing.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(212, f"event JSON is longer than {MAX_CHARACTERS} characters")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(212, f"not the JSON of an event: {error}") from None
    return _decode(value, 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _encode(value: Any) -> Any:
    if isinstance(value, Event):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": value.kind, **fields}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any, depth: int) -> Event:
    if depth > MAX_DEPTH:
        raise UsageError(212, f"event JSON is nested deeper than {MAX_DEPTH}")
    if not isinstance(value, dict):
        raise UsageError(212, f"an event is a JSON object with a type, got {value!r}")
    kind = value.get("type")
    cls = VOCABULARY.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise UsageError(
            212, f"unknown event type {kind!r}; known: {', '.join(sorted(VOCABULARY))}"
        )
    names = {f.name for f in dataclasses.fields(cls)}
    given = set(value) - {"type"}
    if given != names:
        raise UsageError(
            212, f"event {kind!r} has exactly the fields {sorted(names)}, got {sorted(given)}"
        )
    fields: dict[str, Any] = {}
    for name in names:
        item = value[name]
        if name == "event":
            item = _decode(item, depth + 1)
        elif name == "events":
            if not isinstance(item, list):
                raise UsageError(212, f"events must be a list, got {item!r}")
            item = tuple(_decode(part, depth + 1) for part in item)
        elif name == "shape" and item == "inf":
            item = math.inf
        fields[name] = item
    return cls(**fields)
