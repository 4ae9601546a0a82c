"""A digest of content: the same for the same data, whatever the row order or the format."""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.sequences.people import People

PEOPLE_AT_ONCE = 2_000  # only so many people's records are in memory at a time


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


def fingerprint(people: People, key: bytes | None = None) -> str:
    """64 hexadecimal digits over every person, record, time, value and site.

    Records of a person with the same time are put in an order of their content, so the order of
    the source's rows does not matter.

    Args:
        people: The data.
        key: Publish only a keyed fingerprint: without one, who knows all records but one
            person's can confirm a guess about that person. None for public data.
    """
    columns = sorted(name for name in people.columns if not people.is_static(name))
    each = {name: hashlib.sha256() for name in ("", *columns)}
    for part in people.batches(PEOPLE_AT_ONCE):
        ranked = [_ranked(part.column(name)) for name in columns]
        order = np.lexsort([rank for rank, _ in reversed(ranked)] + [part.time, part.owner])
        each[""].update(part.time[order].astype("<i8").tobytes())
        for name, (_, values) in zip(columns, ranked, strict=True):
            _feed(each[name], values.take(pa.array(order)))
    whole: _Digest = hmac.new(key, digestmod=hashlib.sha256) if key else hashlib.sha256()
    whole.update(f"sequester people 1 {people.time_kind} {len(people)}".encode())
    _feed(whole, people._ids)  # noqa: SLF001  (one room, one secret)
    whole.update(people.offsets.astype("<i8").tobytes() + each[""].digest())
    for name in columns:
        whole.update(f"|{len(name)}:{name}:{people.kinds[name]}".encode() + each[name].digest())
    for name in sorted(set(people.columns) - set(columns)):
        whole.update(f"|static {len(name)}:{name}:{people.kinds[name]}".encode())
        _feed(whole, _plain(people.per_person(name)))
    if people.site_names:
        names = pa.array(people.site_names, pa.large_string())
        _feed(whole, names.take(pa.array(people.site)))
    return whole.digest().hex()


def _plain(values: pa.Array) -> pa.Array:
    """Numbers with nulls instead of NaN, or plain texts."""
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    return values


def _ranked(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """A sort key for each value that depends on content alone, and the plain values."""
    plain = _plain(values)
    coded = plain.dictionary_encode()
    place = np.argsort(pc.array_sort_indices(coded.dictionary).to_numpy())
    codes = coded.indices.fill_null(len(place)).to_numpy(zero_copy_only=False)
    return np.append(place, -1)[codes], plain


def _feed(digest: _Digest, values: pa.Array) -> None:
    """Validity, then content: numbers as little-endian doubles, texts framed by their lengths."""
    digest.update(pc.is_valid(values).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_floating(values.type):
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
        digest.update(numbers.astype("<f8").tobytes())
        return
    texts = values.cast(pa.large_string()).fill_null("")
    digest.update(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if data is not None and len(bounds):
        digest.update(memoryview(data)[int(bounds[0]) : int(bounds[-1])])
