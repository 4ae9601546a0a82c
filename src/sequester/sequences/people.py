"""People: records in order of (person, time), and for each record the person who owns it.

Everything about privacy follows from that one vector, `owner`. Identifiers never leave this
object: outside, a person is a position, or a keyed hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.core.errors import UsageError
from sequester.sequences import prf
from sequester.sequences.declare import Range, check_vocabulary
from sequester.sequences.facts import ReadFacts
from sequester.sequences.naming import quoted
from sequester.sequences.parts import whole

if TYPE_CHECKING:
    from sequester.sequences.schema import Schema
    from sequester.sequences.windows import Features, Target, Windows

Kind = Literal["numeric", "categorical", "text"]


@dataclass(frozen=True, eq=False, repr=False)
class People:
    """An immutable set of people and their records, sorted by (person, time).

    Build it with `People.read` or `People.from_columns`; what is read is described by a Schema.

    Attributes:
        offsets: Where each person's records begin, int64 `(people + 1,)`.
        time: int64 `(records,)`: microseconds since 1970 (UTC or wall clock) for `absolute`,
            microseconds for `elapsed` and `clock`, a whole number for `step`.
        time_kind: One of `absolute`, `elapsed`, `clock`, `step`.
        kinds: Every feature column and what it is.
        site_names: Names of the sites, ascending; empty when no site was declared.
        site: Position in `site_names` of each person's site, int32 `(people,)`.
        facts: What reading found; for the data holder only.
    """

    _ids: pa.Array
    _records: pa.Table
    _static: pa.Table
    offsets: np.ndarray
    time: np.ndarray
    time_kind: str
    kinds: Mapping[str, Kind]
    site_names: tuple[str, ...]
    site: np.ndarray
    facts: ReadFacts = field(default_factory=ReadFacts)

    def __post_init__(self) -> None:
        """Lock what is shown: nobody changes a person's records, or whose they are."""
        for name in ("offsets", "time", "site"):
            object.__setattr__(self, name, _locked(getattr(self, name)))
        object.__setattr__(self, "kinds", MappingProxyType(dict(self.kinds)))

    # ------------------------------------------------------------------ making one

    @classmethod
    def read(
        cls,
        source: Any,
        schema: Schema | None = None,
        *,
        person: str = "person",
        time: str = "time",
        static: Any = None,
        memory: int | None = None,
        spill: str | Path | None = None,
    ) -> People:
        """Read people's records from nearly anything.

        Args:
            source: A path to CSV, Parquet, Arrow, JSON lines; a path with `{person}`, `{site}`
                or `*` for a folder of files; a pandas, polars or Arrow frame; or a `Query`.
            schema: What each column is; without one, `person` and `time` name the two columns
                that matter and every other column is a feature.
            person: Column that names the person, when no schema is given.
            time: Column of time, when no schema is given; `""` where records are only in order.
            static: A second source with one row a person, joined on its person column.
            memory: Bytes to read with, 256 MiB or more, where the data are larger than memory:
                they are sorted on disk and mapped. None reads everything into memory.
            spill: Folder on a disk with room for them, where a private folder is made; the
                system's place for temporary files (not a disk everywhere) if None.

        Raises:
            UsageError: SQ-1xx: what is wrong, where and what to do; never a value.
        """
        from sequester.sequences.reading import read_people
        from sequester.sequences.schema import Schema, Time

        chosen = schema or Schema(person=person, time=Time(column=time))
        return read_people(source, chosen, static=static, memory=memory, spill=spill)

    # ------------------------------------------------------------------ size and ownership

    def __len__(self) -> int:
        """The number of people, including those without a record."""
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        """Size and columns; no value and no identifier."""
        columns = ", ".join(f"{name} ({kind})" for name, kind in self.kinds.items())
        return f"People({len(self)} people, {self.records} records; {columns})"

    @property
    def records(self) -> int:
        """The number of records of all people."""
        return int(self.offsets[-1])

    @property
    def counts(self) -> np.ndarray:
        """Records of each person, int64 `(people,)`."""
        return _locked(np.diff(self.offsets))

    @property
    def owner(self) -> np.ndarray:
        """The person of each record, int32 `(records,)`, ascending."""
        return _locked(np.repeat(np.arange(len(self), dtype=np.int32), self.counts))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the feature columns."""
        return tuple(self.kinds)

    def require(self, minimum: int) -> People:
        """These people, if there are at least `minimum` (a public number).

        Raises:
            UsageError: SQ-122: too few people to hide among, or to report on.
        """
        if len(self) < minimum:
            raise UsageError(
                122,
                f"the data hold fewer than {minimum} people, the declared minimum; too few to "
                "train or report on: join more people, or declare a smaller minimum publicly",
            )
        return self

    # ------------------------------------------------------------------ values

    def values(self, columns: Sequence[str] | Mapping[str, Range]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of every record, and which of them were measured.

        Args:
            columns: Names for the numbers as they are; a mapping to public ranges for numbers
                clipped to them and mapped onto [-1, 1].

        Returns:
            Values, float64 `(records, columns)`, 0 where missing; mask, bool, same shape, True
            where a finite value is there.

        Raises:
            UsageError: SQ-102 for an unknown column, SQ-125 for one that is not numeric.
        """
        names = list(columns)
        values = np.zeros((self.records, len(names)))
        for j, name in enumerate(names):
            self._check(name, "numeric")
            values[:, j] = self._per_record(name).to_numpy(zero_copy_only=False)
        mask = np.isfinite(values)
        if isinstance(columns, Mapping):
            for j, name in enumerate(names):
                values[:, j] = columns[name].scale(values[:, j])
        values[~mask] = 0.0
        return values, mask

    def codes(self, column: str, vocabulary: Sequence[str]) -> np.ndarray:
        """Words of every record as codes of a public vocabulary, int32 `(records,)`.

        0 is a missing word, `1 + i` is `vocabulary[i]`, `len(vocabulary) + 1` is any other word:
        a word outside the public list must not show that somebody used it.

        Raises:
            UsageError: SQ-102, SQ-125 as for `values`; SQ-117 for a repeated word.
        """
        known = check_vocabulary(column, vocabulary)
        self._check(column, "categorical", "text")
        words = self._per_record(column)
        if not pa.types.is_dictionary(words.type):
            words = pc.dictionary_encode(words)
        spelled = words.dictionary.cast(pa.large_string())
        found = pc.index_in(spelled, value_set=pa.array(known, pa.large_string()))
        table = found.fill_null(len(known)).to_numpy(zero_copy_only=False) + 1
        at = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        codes: np.ndarray = np.append(table, 0).astype(np.int32)[at]
        return codes

    def text(self, column: str) -> pa.Array:
        """The texts of every record, Arrow `large_string` `(records,)`; private as they are."""
        self._check(column, "categorical", "text")
        return self._per_record(column).cast(pa.large_string())

    def is_static(self, column: str) -> bool:
        """Whether the column holds one value a person."""
        return column in self._static.column_names

    def column(self, column: str) -> pa.Array:
        """A column of every record as Arrow, `(records,)`; private values as they are."""
        self._check(column, "numeric", "categorical", "text")
        return self._per_record(column)

    def _check(self, column: str, *kinds: str) -> None:
        kind = self.kinds.get(column)
        if kind is None:
            raise UsageError(
                102,
                f"there is no feature column {column!r}; the columns are {quoted([*self.kinds])}",
            )
        if kind not in kinds:
            raise UsageError(
                125, f"column {column!r} is {kind}, where {' or '.join(kinds)} is needed"
            )

    def _per_record(self, column: str) -> pa.Array:
        if self.is_static(column):
            return whole(self._static[column]).take(pa.array(self.owner))
        return whole(self._records[column])

    def per_person(self, column: str) -> pa.Array:
        """A static column, one value a person, Arrow `(people,)`.

        Raises:
            UsageError: SQ-125 for a column that is not static.
        """
        if not self.is_static(column):
            raise UsageError(125, f"column {column!r} is not static; declare it in `static`")
        return whole(self._static[column])

    # ------------------------------------------------------------------ parts

    def select(self, positions: np.ndarray) -> People:
        """The people at `positions` (ascending, each once), with all their records."""
        chosen = np.asarray(positions, dtype=np.int64)
        if len(chosen) and (
            chosen[0] < 0 or chosen[-1] >= len(self) or bool((np.diff(chosen) <= 0).any())
        ):
            raise UsageError(
                119, f"positions of people must ascend within 0..{len(self) - 1}, each once"
            )
        if len(chosen) and len(chosen) == chosen[-1] - chosen[0] + 1:
            return self._stretch(int(chosen[0]), int(chosen[-1]) + 1)
        counts = self.counts[chosen]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        first = np.repeat(self.offsets[:-1][chosen] - offsets[:-1], counts)
        rows = first + np.arange(offsets[-1])
        return self._part(chosen, rows, offsets)

    def keep_records(self, keep: np.ndarray) -> People:
        """All people with only the records where `keep`, bool `(records,)`, is True."""
        rows = np.flatnonzero(keep)
        kept = np.bincount(self.owner[rows], minlength=len(self))
        offsets = np.concatenate([[0], np.cumsum(kept)])
        return self._part(np.arange(len(self)), rows, offsets)

    def batches(self, people: int) -> Iterator[People]:
        """Consecutive parts of `people` people each, for data that does not fit in memory."""
        for start in range(0, len(self), people):
            yield self.select(np.arange(start, min(start + people, len(self))))

    def stretches(self, records: int) -> Iterator[People]:
        """Consecutive parts of whole people, of at most `records` records or of one person."""
        start = 0
        while start < len(self):
            most = self.offsets[start] + records
            stop = max(int(np.searchsorted(self.offsets, most, side="right")) - 1, start + 1)
            yield self._stretch(start, stop)
            start = stop

    def bounded(self, max_per_person: int, key: bytes) -> People:
        """At most `max_per_person` records of each person, chosen uniformly by a keyed PRF.

        The choice of one person depends on nobody else.

        Raises:
            UsageError: SQ-118 for a bound under 1 or a short key.
        """
        if max_per_person < 1:
            raise UsageError(118, f"max_per_person must be ≥ 1, got {max_per_person}")
        prf.check_key(key)
        keep = np.ones(self.records, dtype=bool)
        for at in np.flatnonzero(self.counts > max_per_person):
            start, stop = self.offsets[at], self.offsets[at + 1]
            chosen = prf.choose(
                key, "records", self._ids[int(at)].as_py(), int(stop - start), max_per_person
            )
            keep[start:stop] = False
            keep[start + chosen] = True
        return self.keep_records(keep)

    def _stretch(self, start: int, stop: int) -> People:
        """People `start..stop-1`, as a view: nothing is copied."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        return replace(
            self,
            _ids=self._ids.slice(start, stop - start),
            _records=self._records.slice(first, last - first),
            _static=self._static.slice(start, stop - start),
            offsets=self.offsets[start : stop + 1] - first,
            time=self.time[first:last],
            site=self.site[start:stop],
        )

    def _part(self, people: np.ndarray, rows: np.ndarray, offsets: np.ndarray) -> People:
        return replace(
            self,
            _ids=self._ids.take(pa.array(people)),
            _records=self._records.take(pa.array(rows)),
            _static=self._static.take(pa.array(people)),
            offsets=offsets.astype(np.int64),
            time=self.time[rows],
            site=self.site[people],
        )

    def keyed_hashes(self, key: bytes, purpose: str) -> np.ndarray:
        """One uint64 a person, `(people,)`, that only the holder of `key` can link to a person.

        Raises:
            UsageError: SQ-118 for a key under 16 bytes.
        """
        hashes = [prf.words(key, purpose, name.as_py(), 1)[0] for name in self._ids]
        return np.array(hashes, dtype=np.uint64)

    # ------------------------------------------------------------------ what others build on it

    def windows(
        self,
        length: int,
        stride: int | None = None,
        max_per_person: int | None = None,
        *,
        features: Features | None = None,
        target: Target | None = None,
        key: bytes | None = None,
    ) -> Windows:
        """Cut each person's records into windows; see `sequences.windows.cut`."""
        from sequester.sequences.windows import Features, cut

        return cut(
            self,
            length,
            stride or length,
            max_per_person,
            features=features or Features(),
            target=target,
            key=key,
        )

    def split(
        self,
        by: Literal["person", "site", "region", "time"] = "person",
        *,
        held_out: float | Sequence[str] | str = 0.2,
        column: str = "",
        key: bytes = prf.PUBLIC_KEY,
    ) -> tuple[People, People]:
        """Two parts, the rest and the held-out one; see `sequences.splits.split`."""
        from sequester.sequences.splits import split

        return split(self, by, held_out, column=column, key=key)

    def fingerprint(self, key: bytes | None = None) -> str:
        """A digest of the content; see `sequences.fingerprint.fingerprint`."""
        from sequester.sequences.fingerprint import fingerprint

        return fingerprint(self, key)


def _locked(array: np.ndarray) -> np.ndarray:
    """A view that cannot be unlocked, because what it looks at is locked too."""
    array.setflags(write=False)
    return array.view()
