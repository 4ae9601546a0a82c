"""Masks: AES-128 keystreams added to, or taken from, a vector of words modulo 2¹⁶ or 2³².

A chunk of the vector stays in cache while every peer's keystream passes over it. The stream
is AES in counter mode starting at block 2, which is also what AES-GCM encrypts with: where a
processor's widest vector units are reached only through GCM (AVX-512), that path is faster in
spite of its tag, elsewhere plain counter mode is. Both give the same bytes, so the choice is
made by a measurement at first use.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from sequester.core.errors import UsageError

MASK_KEY_BYTES = 16
CHUNK_BYTES = 1 << 17
GCM_FROM_BYTES = 1 << 15
_ZEROS = bytes(CHUNK_BYTES)
# GCM with a 96-bit nonce of zeros encrypts its first block under counter 2 (SP 800-38D, 7.1).
_AS_GCM, _AS_CTR = modes.GCM(bytes(12)), modes.CTR(bytes(15) + b"\x02")


@dataclass
class Words:
    """What is masked: a long lane of narrow words and a short lane of 32-bit words.

    The wide lane carries counts, weights and checksums, whose sums must not wrap.

    Attributes:
        narrow: uint16 or uint32, shape `(length,)`.
        wide: uint32, shape `(wide,)`, `wide` a multiple of 4 so the narrow lane starts on
            an AES block.
    """

    narrow: NDArray[np.unsignedinteger[Any]]
    wide: NDArray[np.uint32]

    def __repr__(self) -> str:
        """Shapes only: before they are masked, words are a member's update."""
        return f"Words({self.narrow.dtype}[{self.narrow.size}], wide[{self.wide.size}])"

    @classmethod
    def zeros(cls, length: int, wide: int, bits: int) -> Words:
        """A sum of nothing."""
        return cls(np.zeros(length, word_type(bits)), np.zeros(wide, np.uint32))

    def copy(self) -> Words:
        """An independent copy."""
        return Words(self.narrow.copy(), self.wide.copy())

    def add(self, other: Words) -> None:
        """Add in place, modulo the words' width."""
        np.add(self.narrow, other.narrow, out=self.narrow)
        np.add(self.wide, other.wide, out=self.wide)


def check(words: Words | None, length: int, wide: int, bits: int) -> None:
    """Refuse what a round of this shape cannot mask.

    Raises:
        UsageError: SQ-713.
    """
    if words is None:
        raise UsageError(713, "the answer to 'sealed' needs this member's vector")
    kinds = (
        ("narrow", words.narrow, length, np.dtype(word_type(bits))),
        ("wide", words.wide, wide, np.dtype(np.uint32)),
    )
    for name, given, size, dtype in kinds:
        if given.shape != (size,) or given.dtype != dtype:
            found = f"{given.dtype} of shape {given.shape}"
            raise UsageError(
                713, f"the {name} words are {found}; this round takes {dtype} of ({size},)"
            )


def word_type(bits: int) -> type[np.uint16] | type[np.uint32]:
    """The word that arithmetic modulo 2^bits is done in."""
    return np.uint16 if bits == 16 else np.uint32


def _stream(key: bytes, *, as_gcm: bool) -> CipherContext:
    cipher = algorithms.AES128(key)
    return Cipher(cipher, _AS_GCM if as_gcm else _AS_CTR).encryptor()


@cache
def _gcm_is_faster() -> bool:
    """Which of two paths to the same bytes this machine runs faster."""
    buffer = np.empty(CHUNK_BYTES + 32, np.uint8).data
    seconds: dict[bool, float] = {}
    for as_gcm in (False, True):
        stream = _stream(bytes(MASK_KEY_BYTES), as_gcm=as_gcm)
        laps = []
        for _ in range(4):
            start = time.perf_counter()
            stream.update_into(_ZEROS, buffer)
            laps.append(time.perf_counter() - start)
        seconds[as_gcm] = min(laps)
    return seconds[True] < seconds[False]


def apply(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the streams of the keys in `plus` to `words` and take those of `minus`, in place."""
    streams = _Streams(words.narrow.nbytes, plus, minus)
    streams.onto(words.wide, words.wide)
    step = CHUNK_BYTES // words.narrow.itemsize
    for start in range(0, words.narrow.size, step):
        part = words.narrow[start : start + step]
        streams.onto(part, part)


def masked(
    words: Words, plus: Sequence[bytes], minus: Sequence[bytes], bits: int, head: bytes
) -> bytes:
    """`pack` of what `apply` makes, without touching `words` or holding a second vector.

    A chunk is masked and packed while it is in cache; the message's buffer is made once, at its
    full size, because a fresh megabyte costs as much as a mask.
    """
    narrow, wide = words.narrow, words.wide.copy()
    streams = _Streams(narrow.nbytes, plus, minus)
    streams.onto(wide, wide)
    message = io.BytesIO()
    message.seek(len(head) + packed_bytes(narrow.size, wide.size, bits) - 1)
    message.write(b"\x00")
    message.seek(0)
    message.write(head)
    step = CHUNK_BYTES // narrow.itemsize
    scratch = np.empty(step, narrow.dtype)
    for start in range(0, narrow.size, step):
        part = narrow[start : start + step]
        streams.onto(part, scratch[: part.size])
        for piece in _packed(scratch[: part.size], bits):
            message.write(piece)
    message.write(wide.astype("<u4").data)
    return message.getvalue()


class _Streams:
    """The keystreams of one vector, side by side."""

    def __init__(self, size: int, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
        # Setting up GCM costs a few microseconds, which a short vector does not earn back.
        as_gcm = size >= GCM_FROM_BYTES and _gcm_is_faster()
        signed = [*((key, np.add) for key in plus), *((key, np.subtract) for key in minus)]
        self._signed = [(_stream(key, as_gcm=as_gcm).update_into, sign) for key, sign in signed]
        self._buffer = np.empty(CHUNK_BYTES + 32, np.uint8)
        self._zeros = memoryview(_ZEROS)

    def onto(
        self, part: NDArray[np.unsignedinteger[Any]], out: NDArray[np.unsignedinteger[Any]]
    ) -> None:
        """The next words of all streams added to `part`, into `out` (which may be `part`)."""
        view, zeros = self._buffer.data, self._zeros[: part.nbytes]
        mask = self._buffer[: part.nbytes].view(part.dtype)
        source = part
        for update_into, sign in self._signed:
            update_into(zeros, view)
            sign(source, mask, out=out)
            source = out
        if source is part and out is not part:
            np.copyto(out, part)


def _packed(narrow: NDArray[Any], bits: int) -> Iterable[Any]:
    """Buffers that hold the words modulo 2^bits, little-endian.

    With 20 bits two words share five bytes and a last odd word takes three.
    """
    if bits in (16, 32):
        yield narrow.astype(f"<u{bits // 8}", copy=False).data
        return
    if bits == 24:
        octets = narrow.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
        yield octets[:, :3].copy().data
        return
    low = narrow & np.uint32(0xFFFFF)
    pairs = low[: low.size // 2 * 2].astype(np.uint64).reshape(-1, 2)
    joined = (pairs[:, 0] | (pairs[:, 1] << np.uint64(20))).astype("<u8")
    yield joined.view(np.uint8).reshape(-1, 8)[:, :5].copy().data
    if low.size % 2:
        yield int(low[-1]).to_bytes(3, "little")


def pack(words: Words, bits: int, head: bytes = b"") -> bytes:
    """`head`, the words modulo 2^bits as `bits / 8` bytes each, then the wide lane."""
    return b"".join((head, *_packed(words.narrow, bits), words.wide.astype("<u4").data))


def packed_bytes(length: int, wide: int, bits: int) -> int:
    """The length of `pack`."""
    return (length * bits + 7) // 8 + 4 * wide


def unpack(data: memoryview, length: int, wide: int, bits: int) -> Words:
    """The inverse of `pack`; `data` has `packed_bytes(length, wide, bits)` bytes."""
    body = len(data) - 4 * wide
    tail = np.frombuffer(data, "<u4", offset=body).astype(np.uint32)
    octets = np.frombuffer(data, np.uint8, body)
    if bits in (16, 32):
        narrow = np.frombuffer(data, f"<u{bits // 8}", length)
        return Words(narrow.astype(word_type(bits), copy=False), tail)
    if bits == 24:
        full = np.zeros((length, 4), np.uint8)
        full[:, :3] = octets.reshape(-1, 3)
        return Words(full.view("<u4").ravel().astype(np.uint32), tail)
    joined = np.zeros((length // 2, 8), np.uint8)
    joined[:, :5] = octets[: 5 * (length // 2)].reshape(-1, 5)
    pairs = joined.view("<u8").ravel()
    narrow = np.empty(length, np.uint32)
    narrow[0 : length // 2 * 2 : 2] = pairs & np.uint64(0xFFFFF)
    narrow[1 : length // 2 * 2 : 2] = (pairs >> np.uint64(20)) & np.uint64(0xFFFFF)
    if length % 2:
        narrow[-1] = int.from_bytes(data[body - 3 : body], "little")
    return Words(narrow, tail)
