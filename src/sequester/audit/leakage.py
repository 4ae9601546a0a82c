"""Columns that give the answer away: the label itself, or something known only afterwards.

A correlation shown exactly would say something about a person, and so would a column that is
struck off because of one. So each rule that would predict the label from one column alone ("it
is the label", "it is the label's next value", "it lies above 2.5") is judged by a noisy sum over
people, of which each person is at most 1 a rule, and only the verdict is given. The thresholds
are public: no value of the data chooses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequester.accounting.gaussian import mu_from
from sequester.mechanism.estimate import noisy
from sequester.mechanism.noise import NoiseStream
from sequester.sequences import People

THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0, 20.0, 50.0, 100.0)
LEAK = 0.25  # a rule that errs for less than this part of the rarer answer is too good
_STRETCH = 1 << 18  # records looked at at once, more only where one person has more
_SURE = 4.0  # standard deviations that the verdict must be able to tell from nothing


@dataclass(frozen=True)
class Leakage:
    """Which columns predict the label too well.

    Attributes:
        columns: Those columns, in the data's order.
        told: Whether there are enough people for a verdict under this noise.
        epsilon: What the verdict cost the people.
        delta: The other half of that.
    """

    columns: tuple[str, ...]
    told: bool
    epsilon: float
    delta: float


def leakage(
    people: People,
    label: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    stream: NoiseStream | None = None,
) -> Leakage:
    """Look for columns that give `label` away, with person-level (epsilon, delta) privacy.

    A numeric label counts as yes above 0.5. Where a column is missing it predicts nothing, so
    one that leaks for a few records only is not found.

    Args:
        people: The data.
        label: Column of the answer.
        epsilon: Of the whole verdict, under adding or removing one person.
        delta: As above.
        stream: Noise; from the operating system if None.

    Raises:
        UsageError: SQ-102 for an unknown column.
    """
    columns = [name for name in people.columns if name != label]
    parts = []
    for part in people.stretches(_STRETCH):
        answers = _Answers(part, label)
        rules = [(name, *rule) for name in columns for rule in answers.rules(name)]
        parts.append([*answers.kinds(), *(errs for _, errs, _ in rules)])
    sums = np.array(parts).sum(axis=0)
    multiplier, sensitivity = 1.0 / mu_from(epsilon, delta), math.sqrt(len(sums))
    stream = stream or NoiseStream.from_system("leakage")
    found = noisy(sums, sensitivity, multiplier, stream, stream.next_step)
    # What a rule must be measured against: always saying the commoner answer errs for the rarer.
    rarer = [min(found[k], found[k + 1]) if answers.binary else found[k] / 2.0 for k in (0, 2)]
    least = _SURE * multiplier * sensitivity / LEAK
    leaking = {
        name
        for (name, _, follows), wrong in zip(rules, found[4:], strict=True)
        if rarer[follows] > least and wrong < LEAK * rarer[follows]
    }
    chosen = tuple(name for name in columns if name in leaking)
    return Leakage(chosen, bool(rarer[0] > least), epsilon, delta)


class _Answers:
    """The label, and how rules about other columns err, as shares of each person's records."""

    def __init__(self, people: People, label: str) -> None:
        self._people = people
        values = people.column(label)
        self._label = _plain(values)
        self._there = pc.is_valid(values).to_numpy(zero_copy_only=False)
        self.binary = people.kinds[label] == "numeric"
        self._yes = np.zeros(people.records, dtype=bool)
        if self.binary:
            self._yes = np.nan_to_num(values.to_numpy(zero_copy_only=False)) > 0.5
        owner = people.owner
        self._weight = np.zeros(people.records)
        labelled = np.bincount(owner[self._there], minlength=len(people))
        self._weight[self._there] = 1.0 / labelled[owner[self._there]]
        following = np.arange(people.records) + 1
        self._follows = following < np.repeat(people.offsets[1:], people.counts)
        self._next = np.where(self._follows, following, 0)

    def kinds(self) -> Iterator[float]:
        """How many answer yes, and no; and of whose next record the answer is yes, and is no.

        For other labels than yes and no: all records, none; all that have a next one, none.
        """
        for there, yes in (
            (self._there, self._yes),
            (self._follows & self._there[self._next], self._yes[self._next]),
        ):
            chosen = there & yes if self.binary else there
            yield self._sum_over_people(chosen)
            yield self._sum_over_people(there & ~chosen)

    def rules(self, column: str) -> Iterator[tuple[float, bool]]:
        """How much each rule about one column errs; whether it is of the next record's answer."""
        for errs, follows in self._errors(column):
            yield self._sum_over_people(errs), follows

    def _errors(self, column: str) -> Iterator[tuple[np.ndarray, bool]]:
        """Where each rule errs, bool `(records,)`."""
        values = self._people.column(column)
        plain = _plain(values)
        yield ~_same(plain, self._label), False
        at = pa.array(self._next, mask=~self._follows)
        following = self._label.take(at)
        there = pc.is_valid(following).to_numpy(zero_copy_only=False)
        yield there & ~_same(plain, following), True
        if self.binary and self._people.kinds[column] == "numeric":
            numbers = values.to_numpy(zero_copy_only=False)
            absent = ~np.isfinite(numbers)
            for threshold in THRESHOLDS:
                above = np.nan_to_num(numbers) > threshold
                yield absent | (above != self._yes), False
                yield absent | (above == self._yes), False

    def _sum_over_people(self, records: np.ndarray) -> float:
        """The sum over people of each one's share of labelled records; a person is at most 1."""
        return float(self._weight[records].sum())


def _plain(values: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    return values


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    """Where both are there and equal, bool `(records,)`; False between numbers and words."""
    if pa.types.is_floating(one.type) != pa.types.is_floating(other.type):
        return np.zeros(len(one), dtype=bool)
    equal: np.ndarray = pc.equal(one, other).fill_null(False).to_numpy(zero_copy_only=False)
    return equal
