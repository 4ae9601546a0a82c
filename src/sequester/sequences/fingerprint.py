"""A digest of content: the same for the same data, whatever the row order or the format."""

from __future__ import annotations

import hashlib
import hmac
import weakref
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.sequences.people import People

PEOPLE_AT_ONCE = 2_000  # only so many people's records are in memory at a time

# A run is named to itself and to its ledger under two keys: the records, which nobody can change,
# are read once for both.
_RECORDS: weakref.WeakKeyDictionary[People, dict[str, bytes]] = weakref.WeakKeyDictionary()


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
    if people not in _RECORDS:
        _RECORDS[people] = _records(people)
    each = _RECORDS[people]
    columns = sorted(set(each) - {""})
    whole: _Digest = hmac.new(key, digestmod=hashlib.sha256) if key else hashlib.sha256()
    whole.update(f"sequester people 1 {people.time_kind} {len(people)}".encode())
    _feed(whole, people._ids)  # noqa: SLF001  (one room, one secret)
    whole.update(people.offsets.astype("<i8").tobytes() + each[""])
    for name in columns:
        whole.update(f"|{len(name)}:{name}:{people.kinds[name]}".encode() + each[name])
    for name in sorted(set(people.columns) - set(columns)):
        whole.update(f"|static {len(name)}:{name}:{people.kinds[name]}".encode())
        _feed(whole, _plain(people.per_person(name)))
    if people.site_names:
        names = pa.array(people.site_names, pa.large_string())
        _feed(whole, names.take(pa.array(people.site)))
    return whole.digest().hex()


def _records(people: People) -> dict[str, bytes]:
    """Digests of the times (named "") and of each column of records, in an order of content."""
    columns = sorted(name for name in people.columns if not people.is_static(name))
    each = {name: hashlib.sha256() for name in ("", *columns)}
    for part in people.batches(PEOPLE_AT_ONCE):
        plain = {name: _plain(part.column(name)) for name in columns}
        order = _order(part, list(plain.values()))
        each[""].update((part.time if order is None else part.time[order]).astype("<i8").tobytes())
        for name, values in plain.items():
            _feed(each[name], values if order is None else values.take(pa.array(order)))
    return {name: digest.digest() for name, digest in each.items()}


def _plain(values: pa.Array) -> pa.Array:
    """Numbers with nulls instead of NaN, or plain texts."""
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    return values


def _order(part: People, values: list[pa.Array]) -> np.ndarray | None:
    """By person, time and content; None where persons and times alone have them in this order."""
    owner, time = part.owner, part.time
    later = (owner[1:] > owner[:-1]) | (owner[1:] == owner[:-1]) & (time[1:] > time[:-1])
    if later.all():
        return None
    return np.lexsort([_rank(v) for v in reversed(values)] + [time, owner])


def _rank(plain: pa.Array) -> np.ndarray:
    """A sort key for each value that depends on content alone."""
    coded = plain.dictionary_encode()
    place = np.argsort(pc.array_sort_indices(coded.dictionary).to_numpy())
    codes = coded.indices.fill_null(len(place)).to_numpy(zero_copy_only=False)
    rank: np.ndarray = np.append(place, -1)[codes]
    return rank


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
