"""Whether a study can be learnt from these data: asked before anything is charged."""

from __future__ import annotations

import msgspec
import numpy as np

from sequester.core.errors import UsageError
from sequester.sequences import People
from sequester.sequences.windows import check_room, ends
from sequester.training.dataset import each_step, features_of, in_holdout, split, task_of
from sequester.training.study import Data

_COINCIDENCE = 20
"""Answers that may all be an input's value by chance; more are not."""


def check_data(data: Data, people: People) -> None:
    """Refuse a hold-out without anybody, and windows that memory cannot hold.

    Whether a privatised hold-out holds anybody is itself protected: that one may be empty.

    Args:
        data: The study's declarations.
        people: Everybody read.

    Raises:
        UsageError: SQ-279, SQ-131.
    """
    held = data.holdout
    if held.column and held.protection == "public" and not in_holdout(people, data).any():
        raise UsageError(
            279,
            f"nobody would be held out: 0 of {len(people)} people have data.holdout.value "
            f"{held.value!r} in column {held.column!r}; correct the value, or hold out a share",
            where="data.holdout.value",
        )
    public = {name: c for name, c in data.categories.items() if not c.estimate}
    features = features_of(msgspec.structs.replace(data, categories=public))
    try:
        check_room(people, data.window, data.stride, features)
    except UsageError as refusal:
        raise refusal.at("data.window") from None


def check_labels(data: Data, people: People) -> None:
    """Refuse labels that the task cannot learn; held-out people's count like training people's.

    Args:
        data: The study's declarations.
        people: Everybody read.

    Raises:
        UsageError: SQ-268 for a label that is not declared as the task needs it, SQ-277 for a
            yes/no label that is neither 0 nor 1 somewhere, or the same everywhere, SQ-278 for an
            input that is the answer, SQ-506 if no window of a training person has an answer. A
            message counts people and quotes no value.
    """
    task_of(data)
    train, _ = split(people, data)
    if data.task == "label":
        _check_values(data, people)
    answered = _answered(data, train)
    if not _in_windows(data, train, answered):
        raise UsageError(
            506,
            f"no window of any training person has an answer in {data.label!r} to learn from; "
            "check data.label, data.window, data.horizon, and the hold-out",
            where="data.label",
        )
    if data.task == "label":
        values, _ = train.values([data.label])
        answers = values[answered, 0]
        if (answers == answers[0]).all():
            raise UsageError(
                277,
                f"label {data.label!r} is the same for everybody in training (people: "
                f"{len(np.unique(train.owner[answered]))}), so there is nothing to learn; check "
                "data.label, and the hold-out",
                where="data.label",
            )
    _check_inputs(data, train, answered)


def _check_values(data: Data, people: People) -> None:
    """Every known label of everybody is 0 or 1."""
    values, known = people.values([data.label])
    wrong = (known & (values != 0) & (values != 1))[:, 0]
    if wrong.any():
        raise UsageError(
            277,
            f"label {data.label!r} is neither 0 nor 1 nor missing in records of "
            f"{len(np.unique(people.owner[wrong]))} people; recode it as 0 for no and 1 for yes",
            where="data.label",
        )


def _check_inputs(data: Data, train: People, answered: np.ndarray) -> None:
    """No other input is what shall be predicted, in every record with an answer.

    One that is it in most records only is for `sequester inspect --label`, whose verdict hides
    each person.
    """
    at = np.flatnonzero(answered)
    rows = at - (0 if data.task == "label" else data.horizon)
    inside = rows >= train.offsets[:-1][train.owner[at]]
    at, rows = at[inside], rows[inside]
    if data.label in data.categories and not data.categories[data.label].values:
        return
    label = _column(data, train, data.label)
    never_changes = data.task != "label" and np.array_equal(label[at], label[rows])
    if len(at) <= _COINCIDENCE or never_changes:
        return
    # Words that are still to be found privately are not looked at.
    worded = [name for name, category in data.categories.items() if category.values]
    for kind, names in (("features", list(data.features)), ("categories", worded)):
        for name in names:
            if name != data.label and _tells(data, _column(data, train, name)[rows], label[at]):
                raise UsageError(
                    278,
                    f"input {name!r} tells what shall be predicted, {data.label!r}, in all "
                    f"records of {len(np.unique(train.owner[at]))} training people; remove it, or "
                    "give what is known at that time",
                    where=f"data.{kind}.{name}",
                )


def _column(data: Data, people: People, name: str) -> np.ndarray:
    """Numbers, NaN where missing, or codes: the label's where a word is predicted."""
    if name in data.categories:
        coded = data.label if data.task == "next" else name
        return people.codes(name, data.categories[coded].values).astype(np.float64)
    values, known = people.values([name])
    found: np.ndarray = np.where(known, values, np.nan)[:, 0]
    return found


def _tells(data: Data, given: np.ndarray, answers: np.ndarray) -> bool:
    """Whether an input is the answer, or one of two values where the answer is yes."""
    if data.task != "label":
        return np.array_equal(given, answers)
    kinds = np.unique(given)
    return len(kinds) == 2 and len(np.unique((given == kinds[1]) == (answers == 1.0))) == 1


def _answered(data: Data, people: People) -> np.ndarray:
    """Which records have an answer that the task can use, bool `(records,)`."""
    if data.task == "next":
        category = data.categories[data.label]
        if category.estimate:  # words still to be found privately may be any
            there: np.ndarray = people.column(data.label).is_valid().to_numpy(zero_copy_only=False)
            return there
        codes = people.codes(data.label, category.values)
        found: np.ndarray = (codes > 0) & (codes <= len(category.values))
        return found
    _, known = people.values([data.label])
    return known[:, 0]


def _in_windows(data: Data, people: People, answered: np.ndarray) -> bool:
    """Whether any window, as `lot_of` cuts them, has an answer where the task looks for one."""
    owner, end = ends(people, data.window, data.stride)
    ahead = 0 if data.task == "label" else data.horizon
    at = np.arange(people.records) + ahead
    inside = at < np.repeat(people.offsets[1:], people.counts)
    known = inside & answered[np.where(inside, at, 0)]
    start = np.maximum(end - data.window + 1, people.offsets[:-1][owner])
    before = np.concatenate([[0], np.cumsum(known)])
    return bool((before[end + 1] > before[start if each_step(data) else end]).any())
