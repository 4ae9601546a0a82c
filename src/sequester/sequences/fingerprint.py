"""A digest of content: the same for the same data, whatever the row order or the format."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.sequences.people import People


def fingerprint(people: People, key: bytes | None = None) -> str:
    """64 hexadecimal digits over every person, record, time, value and site.

    Args:
        people: The data.
        key: Publish only a keyed fingerprint: without one, who knows all records but one
            person's can confirm a guess about that person. None for public data.
    """
    digest = hmac.new(key, digestmod=hashlib.sha256) if key else hashlib.sha256()
    digest.update(f"sequester people 1 {people.time_kind} {len(people)}".encode())
    columns = sorted(name for name in people.columns if not people.is_static(name))
    ranked = [_ranked(people.column(name)) for name in columns]
    keys = [rank for rank, _ in reversed(ranked)] + [people.time, people.owner]
    order = np.lexsort(keys)
    _feed(digest, pa.array(people._ids))  # noqa: SLF001  (one room, one secret)
    digest.update(people.offsets.astype("<i8").tobytes())
    digest.update(people.time[order].astype("<i8").tobytes())
    for name, (_, values) in zip(columns, ranked, strict=True):
        digest.update(f"|{len(name)}:{name}:{people.kinds[name]}".encode())
        _feed(digest, values.take(pa.array(order)))
    for name in sorted(set(people.columns) - set(columns)):
        digest.update(f"|static {len(name)}:{name}:{people.kinds[name]}".encode())
        _feed(digest, _plain(people.per_person(name)))
    if people.site_names:
        names = pa.array(people.site_names, pa.large_string())
        _feed(digest, names.take(pa.array(people.site)))
    return digest.hexdigest()


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _ranked(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """A sort key for each value that depends on content alone, and the plain values."""
    plain = _plain(values)
    coded = plain.dictionary_encode()
    rank = np.argsort(pc.array_sort_indices(coded.dictionary).to_numpy())
    codes = coded.indices.fill_null(len(rank)).to_numpy(zero_copy_only=False)
    return np.append(rank, -1)[codes], plain


def _feed(digest: hashlib._Hash | hmac.HMAC, values: pa.Array) -> None:
    """Validity, then content: numbers as little-endian doubles, texts framed by their lengths."""
    digest.update(np.packbits(pc.is_valid(values).to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_floating(values.type):
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
        digest.update(numbers.astype("<f8").tobytes())
        return
    texts = values.fill_null("")
    digest.update(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
    digest.update("".join(texts.to_pylist()).encode())
