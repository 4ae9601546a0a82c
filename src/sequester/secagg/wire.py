"""Canonical bytes: one encoding for one value, bounded before anything is allocated.

Integers are little-endian. Lists of members rise strictly, unused bits are zero and nothing
may follow the last field, so two different byte strings never mean the same message.
`docs/secagg-spec.md` gives the layout byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from sequester.core.errors import VerificationError

MAX_MEMBERS = 1 << 16
Row = TypeVar("Row")


def malformed(what: str) -> VerificationError:
    """The refusal of bytes that no honest sender makes."""
    return VerificationError(
        701, f"malformed message: {what}; its sender or the transport is faulty"
    )


class Writer:
    """Collects fields."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def u8(self, value: int) -> Writer:
        """One byte."""
        return self._pack("<B", value)

    def u16(self, value: int) -> Writer:
        """Two bytes."""
        return self._pack("<H", value)

    def u32(self, value: int) -> Writer:
        """Four bytes."""
        return self._pack("<I", value)

    def u64(self, value: int) -> Writer:
        """Eight bytes."""
        return self._pack("<Q", value)

    def raw(self, value: bytes | memoryview, count: int | None = None) -> Writer:
        """Bytes of a length the reader knows; `count` checks it."""
        if count is not None and len(value) != count:
            raise malformed(f"a field of {count} bytes has {len(value)}")
        self._parts.append(value)
        return self

    def records(self, form: struct.Struct, rows: Sequence[tuple[Any, ...]]) -> Writer:
        """Their number, then records of one form that begin with a member, rising."""
        self.u32(len(rows))
        self._parts += [form.pack(*row) for row in rows]
        return self

    def _pack(self, form: str, value: int) -> Writer:
        try:
            self._parts.append(struct.pack(form, value))
        except struct.error:
            raise malformed(f"the integer {value} does not fit its field") from None
        return self

    def bytes(self) -> bytes:
        """Everything written so far."""
        return b"".join(self._parts)


class Reader:
    """Takes fields off a message; every refusal is SQ-701."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def raw(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self._at + count
        if end > len(self._data):
            raise malformed("it ends too early")
        part = self._data[self._at : end]
        self._at = end
        return bytes(part)

    def u8(self) -> int:
        """One byte."""
        return self.raw(1)[0]

    def u16(self) -> int:
        """Two bytes."""
        return int.from_bytes(self.raw(2), "little")

    def u32(self) -> int:
        """Four bytes."""
        return int.from_bytes(self.raw(4), "little")

    def u64(self) -> int:
        """Eight bytes."""
        return int.from_bytes(self.raw(8), "little")

    def flag(self) -> bool:
        """One byte that is 0 or 1."""
        value = self.u8()
        if value > 1:
            raise malformed(f"a flag is 0 or 1, not {value}")
        return value == 1

    def count(self, record_bytes: int) -> int:
        """A number of records, checked against the bytes that are left."""
        value = self.u32()
        if value > MAX_MEMBERS or value * record_bytes > len(self._data) - self._at:
            raise malformed(f"it announces {value} records and does not hold them")
        return value

    def records(
        self, form: struct.Struct, make: Callable[[tuple[Any, ...]], Row]
    ) -> tuple[Row, ...]:
        """The inverse of `Writer.records`; members must rise strictly."""
        rows = list(form.iter_unpack(self.raw(form.size * self.count(form.size))))
        rising([row[0] for row in rows])
        return tuple(map(make, rows))

    def rest(self) -> memoryview:
        """Everything that is left, without a copy."""
        part = self._data[self._at :]
        self._at = len(self._data)
        return part

    def end(self) -> None:
        """Refuse trailing bytes."""
        if self._at != len(self._data):
            raise malformed(f"{len(self._data) - self._at} bytes follow its end")


def rising(members: Sequence[int]) -> None:
    """Refuse identifiers that do not rise strictly: a duplicate, or a second encoding."""
    for last, member in pairwise(members):
        if member <= last:
            raise malformed(f"member {member} is out of order or listed twice")


def to_bitmap(flags: Iterable[bool]) -> bytes:
    """Bits in order, the first in the lowest bit of the first byte."""
    bits = 0
    count = 0
    for count, flag in enumerate(flags, start=1):
        bits |= int(flag) << (count - 1)
    return bits.to_bytes((count + 7) // 8, "little")


def from_bitmap(data: bytes, count: int) -> list[bool]:
    """The inverse of `to_bitmap`; unused bits must be zero."""
    bits = int.from_bytes(data, "little")
    if len(data) != (count + 7) // 8 or bits >> count:
        raise malformed(f"a bitmap of {count} members has stray bits or the wrong length")
    return [bool(bits >> position & 1) for position in range(count)]
