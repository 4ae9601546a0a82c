"""Frames in Flower's records, and settings out of its configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from sequester.core.errors import UsageError

RECORD = "sequester"
"""Name of the record that holds a frame, as one array of bytes: Flower cuts arrays into chunks."""


def packed(body: bytes) -> RecordDict:
    """A frame as a message's content."""
    return RecordDict({RECORD: ArrayRecord([np.frombuffer(body, dtype=np.uint8)])})


def unpacked(content: RecordDict) -> bytes:
    """The frame in a message's content; empty if there is none, which no frame is."""
    record = content.get(RECORD)
    if not isinstance(record, ArrayRecord):
        return b""
    arrays = record.to_numpy_ndarrays()
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        return b""
    return bytes(arrays[0].tobytes())


def setting(settings: Any, name: str) -> Any:
    """One setting.

    Raises:
        UsageError: SQ-643 if it is missing or empty.
    """
    if name not in settings or settings[name] == "":
        raise UsageError(
            643,
            f"the setting {name!r} is missing or empty; docs/flower.md lists the settings of both "
            "sides",
        )
    return settings[name]


def mebibytes(value: Any) -> int:
    """The setting `limit-mb` in bytes.

    Raises:
        UsageError: SQ-643 for anything but a whole number of 1 or more.
    """
    if not str(value).isdecimal() or not str(value).isascii() or int(value) < 1:
        raise UsageError(643, f"limit-mb is a whole number of MiB, 1 or more, got {value!r}")
    return int(value) << 20
