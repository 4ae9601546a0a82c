"""Reference models: what a model looks like with and without a person."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sequester.audit.membership.attacks import Floats, signals
from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.models import Task
from sequester.sampling import Lot

Train = Callable[[nn.Module, Task, Lot], nn.Module]


def halves(people: int, models: int, *, seed: int = 0) -> NDArray[np.bool_]:
    """Who is in which reference: halves and their complements, bool `(models, people)`.

    Raises:
        UsageError: SQ-823 unless `models` is even and ≥ 2.
    """
    if models < 2 or models % 2:
        raise UsageError(823, f"reference models come in pairs, got {models}; eight suffice")
    generator = public_generator(seed)
    rows = []
    for _ in range(models // 2):
        chosen = np.zeros(people, dtype=bool)
        chosen[generator.permutation(people)[: people // 2]] = True
        rows += [chosen, ~chosen]
    return np.array(rows)


def adam(*, epochs: int = 40, rate: float = 0.01, batches: int = 4, seed: int = 0) -> Train:
    """Plain training without privacy, for references and for the overfitted demonstration.

    Args:
        epochs: Passes over everybody.
        rate: Adam's step length.
        batches: Parts of each pass.
        seed: Of the order.
    """

    def train(model: nn.Module, task: Task, lot: Lot) -> nn.Module:
        model = copy.deepcopy(model)
        optimiser = torch.optim.Adam(model.parameters(), lr=rate)
        generator = public_generator(seed)
        for _ in range(epochs):
            order = generator.permutation(lot.people)
            for part in np.array_split(order, batches):
                if not len(part):
                    continue
                optimiser.zero_grad()
                loss = task.loss(model, lot.pick(np.sort(part)))
                if len(loss):
                    loss.mean().backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
        return model

    return train


def reference_signals(
    model: nn.Module,
    task: Task,
    everybody: Lot,
    inside: NDArray[np.bool_],
    train: Train,
    *,
    by: str = "person",
    progress: Callable[[int], None] = lambda done: None,
    kept: Callable[[int, Callable[[], Floats]], Floats] = lambda number, judge: judge(),
) -> Floats:
    """Train one reference per row of `inside` and judge everybody by each.

    Args:
        model: Initial weights of each reference.
        task: Gives losses.
        everybody: People to judge, and to train on.
        inside: Who is in which reference, bool `(models, people)`.
        train: How a reference is trained.
        by: "person" or "window".
        progress: Told how many are done.
        kept: Given a reference's number and how to train and judge by it, gives its signals,
            now or from before an interruption.

    Returns:
        `(models, people)`, or `(models, windows)` by window.
    """

    def judge(members: NDArray[np.bool_]) -> Floats:
        reference = train(model, task, everybody.pick(np.flatnonzero(members)))
        return signals(reference, task, everybody, by=by)

    found = []
    for number, members in enumerate(inside):
        found.append(kept(number, partial(judge, members)))
        progress(len(found))
    return np.array(found)
