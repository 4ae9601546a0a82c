"""Windows: what a network sees at once, cut from one person's records.

A window holds up to `length` consecutive records of one person and never of two. Steps are
filled from the start; a step without a record is masked out and holds zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from sequester.core.errors import UsageError
from sequester.sequences import prf, room
from sequester.sequences.declare import Range, check_vocabulary

if TYPE_CHECKING:
    from sequester.sequences.people import People


@dataclass(frozen=True)
class Features:
    """What of each record a window carries, with the public declarations that scale it.

    Attributes:
        numeric: Columns and their public ranges; mapped onto [-1, 1].
        categorical: Columns and their public vocabularies; coded as `People.codes` says.
        missing_flags: Add to each numeric column a second one: 1 where it was measured.
        gap: Public range, in seconds (or steps), of the time since the record before; adds one
            feature, -1 at a person's first record. None for no such feature.
    """

    numeric: Mapping[str, Range] = field(default_factory=dict)
    categorical: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing_flags: bool = False
    gap: Range | None = None

    def __post_init__(self) -> None:
        """Refuse a feature without its public declaration: nothing would bound what it shows.

        Raises:
            UsageError: SQ-117.
        """
        ranges = list(self.numeric.items()) if isinstance(self.numeric, Mapping) else [("", None)]
        ranges += [("gap", self.gap)] if self.gap is not None else []
        for name, bounds in ranges:
            if not isinstance(bounds, Range):
                raise UsageError(
                    117, "a numeric feature is declared with its public Range", where=name or None
                )
        if not isinstance(self.categorical, Mapping):
            raise UsageError(117, "a categorical feature is declared with its public vocabulary")
        for name, vocabulary in self.categorical.items():
            check_vocabulary(name, vocabulary)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numeric features, in the order of `Windows.x`'s last axis."""
        flags = tuple(f"{name} measured" for name in self.numeric) if self.missing_flags else ()
        return (*self.numeric, *flags, *(("gap",) if self.gap else ()))


@dataclass(frozen=True)
class Target:
    """What is to be predicted from a window.

    Attributes:
        column: Where the answer stands.
        kind: `number` (float32), `word` (a code of `vocabulary`, int64).
        ahead: How many records after the one it is predicted from; 0 for a label that stands
            in the record itself (or is static).
        each_step: An answer at every step, not only at the window's last.
        vocabulary: Public words of a `word` target; code `i` is `vocabulary[i]`. A record with
            another word, or none, has no answer.
        shortest: Predict from as few as this many records; None: only from full windows, or
            from all that a person has where that is less.
    """

    column: str
    kind: Literal["number", "word"] = "number"
    ahead: int = 0
    each_step: bool = False
    vocabulary: tuple[str, ...] = ()
    shortest: int | None = None


@dataclass(frozen=True)
class Windows:
    """Windows of all people, sorted by owner.

    Attributes:
        x: Numeric features, float32 `(windows, steps, features)`; 0 where nothing was measured.
        mask: True where a step holds a record, bool `(windows, steps)`.
        owner: The person of each window, int32 `(windows,)`, ascending.
        person_count: All people, including those without a window.
        categorical: Codes, int64 `(windows, steps, columns)`; no columns where none is declared.
        target: Answers: `(windows,)`, or `(windows, steps)` for `each_step`; float32 or int64;
            None without a target.
        target_mask: Where an answer is there, bool, `target`'s shape; None without a target.
            Windows without any answer are left out.
        feature_names: Names along the last axis of `x`.
        end: Record position of each window's last step, int64 `(windows,)`.
    """

    x: np.ndarray
    mask: np.ndarray
    owner: np.ndarray
    person_count: int
    categorical: np.ndarray
    target: np.ndarray | None
    target_mask: np.ndarray | None
    feature_names: tuple[str, ...]
    end: np.ndarray

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.owner)

    def __repr__(self) -> str:
        """Shapes only."""
        return f"Windows({len(self)} windows of {self.person_count} people, x {self.x.shape})"


def cut(
    people: People,
    length: int,
    stride: int,
    max_per_person: int | None = None,
    *,
    features: Features,
    target: Target | None = None,
    key: bytes | None = None,
) -> Windows:
    """Cut each person's records into windows.

    Windows end at record `length`, `length + stride`, … of a person; one who has fewer gives
    one short window. With `target.shortest = k` they end at `k`, `k + stride`, ….

    Args:
        people: Whose records.
        length: Steps of a window.
        stride: Records between the ends of two windows.
        max_per_person: Public bound on windows of one person; those kept are chosen uniformly by
            a PRF of `key` and the person.
        features: What each step carries.
        target: What is predicted; windows without an answer are left out before bounding.
        key: Secret key of the choice, 16 bytes or more; needed with `max_per_person`.

    Raises:
        UsageError: SQ-118 for numbers out of range or a missing key, SQ-131 for windows that
            memory cannot hold.
    """
    if length < 1 or stride < 1 or (max_per_person is not None and max_per_person < 1):
        raise UsageError(
            118,
            "length, stride and max_per_person must be ≥ 1, got "
            f"{length}, {stride} and {max_per_person}",
        )
    if max_per_person is not None and key is None:
        raise UsageError(
            118, "max_per_person chooses windows by a secret key; pass key= (16 bytes or more)"
        )
    if key is not None:
        prf.check_key(key)
    check_room(people, length, stride, features)
    owner, end = ends(people, length, stride, target.shortest if target else None)
    answers = _answers(people, target) if target else None
    rows, mask = _steps(people, owner, end, length)
    target_values = target_mask = None
    if target and answers:
        at = rows if target.each_step else end
        target_values, target_mask = answers[0][at], answers[1][at]
        if target.each_step:
            target_mask &= mask
        answered = target_mask.any(axis=1) if target.each_step else target_mask
        keep = np.flatnonzero(answered)
    else:
        keep = np.arange(len(owner))
    if max_per_person is not None and key is not None:
        keep = keep[_choose(people, owner[keep], max_per_person, key)]
    rows, mask, owner, end = rows[keep], mask[keep], owner[keep], end[keep]
    return Windows(
        x=np.where(mask[..., None], _numeric(people, features)[rows], np.float32(0)),
        mask=mask,
        owner=owner,
        person_count=len(people),
        categorical=np.where(mask[..., None], _codes(people, features)[rows], 0),
        target=None if target_values is None else target_values[keep],
        target_mask=None if target_mask is None else target_mask[keep],
        feature_names=features.names,
        end=end,
    )


def check_room(people: People, length: int, stride: int, features: Features) -> None:
    """Refuse windows that cannot be held, before any is made.

    Raises:
        UsageError: SQ-131 with what they take at least, and what is free.
    """
    counts = people.counts
    first = np.minimum(length, np.maximum(counts, 1))
    windows = int(np.where(counts > 0, (counts - first) // stride + 1, 0).sum())
    # A step's record, mask, answer, float32 numbers and int64 codes.
    step = 16 + 4 * len(features.names) + 8 * len(features.categorical)
    needed, free = windows * length * step, room.available()
    if free is not None and needed > free:
        raise UsageError(
            131,
            f"{windows:,} windows of {length:,} records take {needed >> 20:,} MiB of memory or "
            f"more and {free >> 20:,} MiB are free; declare a shorter window: one that is longer "
            "than people's records holds nothing more",
        )


def ends(
    people: People, length: int, stride: int, shortest: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Owner, int32, and position of the last record, int64, of every window, both `(windows,)`.

    Args:
        people: Whose records.
        length: Steps of a window.
        stride: Records between the ends of two windows.
        shortest: As in `Target`.
    """
    counts = people.counts
    first = np.minimum(shortest if shortest is not None else length, np.maximum(counts, 1))
    windows = np.where(counts > 0, (counts - first) // stride + 1, 0)
    owner = np.repeat(np.arange(len(people), dtype=np.int32), windows)
    begin = np.cumsum(windows) - windows
    turn = np.arange(len(owner)) - begin[owner]
    return owner, people.offsets[:-1][owner] + first[owner] - 1 + turn * stride


def _steps(
    people: People, owner: np.ndarray, end: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Record of every step (any record where masked) and the mask, `(windows, steps)`."""
    start = np.maximum(end - length + 1, people.offsets[:-1][owner])
    rows = start[:, None] + np.arange(length)
    mask = rows <= end[:, None]
    return np.minimum(rows, end[:, None]), mask


def _answers(people: People, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """The answer that belongs to each record, and whether there is one, both `(records,)`."""
    values: np.ndarray
    if target.ahead < 0:
        raise UsageError(118, f"target.ahead must be ≥ 0, got {target.ahead}")
    if target.kind == "word":
        codes = people.codes(target.column, target.vocabulary).astype(np.int64)
        known = (codes > 0) & (codes <= len(target.vocabulary))
        values = np.where(known, codes - 1, 0)
    else:
        numbers, measured = people.values([target.column])
        most = np.finfo(np.float32).max
        values, known = np.clip(numbers[:, 0], -most, most).astype(np.float32), measured[:, 0]
    at = np.arange(people.records) + target.ahead
    last = np.repeat(people.offsets[1:], people.counts)
    inside = at < last
    at = np.where(inside, at, 0)
    return values[at], known[at] & inside


def _choose(people: People, owner: np.ndarray, keep: int, key: bytes) -> np.ndarray:
    """Positions of the windows that stay, ascending."""
    counts = np.bincount(owner, minlength=len(people))
    begin = np.cumsum(counts) - counts
    stays = np.ones(len(owner), dtype=bool)
    for person in np.flatnonzero(counts > keep):
        name = people._ids[int(person)].as_py()  # noqa: SLF001  (one room, one secret)
        chosen = prf.choose(key, "windows", name, int(counts[person]), keep)
        stays[begin[person] : begin[person] + counts[person]] = False
        stays[begin[person] + chosen] = True
    return np.flatnonzero(stays)


def _numeric(people: People, features: Features) -> np.ndarray:
    """All numeric features of every record, float32 `(records, features)`."""
    values, measured = people.values(features.numeric)
    parts = [values.astype(np.float32)]
    if features.missing_flags:
        parts.append(measured.astype(np.float32))
    if features.gap:
        scaled = features.gap.scale(gaps(people))
        parts.append(np.nan_to_num(scaled, nan=-1.0).astype(np.float32)[:, None])
    return np.concatenate(parts, axis=1)


def _codes(people: People, features: Features) -> np.ndarray:
    """All categorical codes of every record, int64 `(records, columns)`."""
    codes = np.zeros((people.records, len(features.categorical)), dtype=np.int64)
    for j, (name, vocabulary) in enumerate(features.categorical.items()):
        codes[:, j] = people.codes(name, vocabulary)
    return codes


def gaps(people: People) -> np.ndarray:
    """Time since the same person's record before, in seconds (steps for `step` time).

    Returns:
        float64 `(records,)`, NaN at each person's first record.
    """
    unit = 1.0 if people.time_kind == "step" else 1e6
    since = np.full(people.records, np.nan)
    since[1:] = np.diff(people.time) / unit
    since[people.offsets[:-1][people.counts > 0]] = np.nan
    return since
