"""Whether a study's answers are answers: asked of the data before anything is charged."""

from __future__ import annotations

import numpy as np

from sequester.core.errors import UsageError
from sequester.sequences import People
from sequester.sequences.windows import ends
from sequester.training.dataset import each_step, split, task_of
from sequester.training.study import Data


def check_labels(data: Data, people: People) -> None:
    """Refuse labels that the task cannot learn; held-out people's count like training people's.

    Args:
        data: The study's declarations.
        people: Everybody read.

    Raises:
        UsageError: SQ-268 for a label that is not declared as the task needs it, SQ-277 for a
            yes/no label that is neither 0 nor 1 somewhere, or the same everywhere, SQ-506 if no
            window of a training person has an answer. A message counts people and quotes no
            value.
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
    if data.task != "label":
        return
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


def _answered(data: Data, people: People) -> np.ndarray:
    """Which records have an answer that the task can use, bool `(records,)`."""
    if data.task == "next":
        category = data.categories[data.label]
        codes = people.codes(data.label, category.values)
        # Words still to be found privately may be any.
        found: np.ndarray = (codes > 0) & (category.estimate | (codes <= len(category.values)))
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
