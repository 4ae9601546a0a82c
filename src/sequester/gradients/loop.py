"""One person at a time through the user's own modules: the engine that needs no rules.

It is exact for any model, holds one person's gradient at a time, and on one thread already
costs about as much as a non-private step. The fast engine falls back to it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sequester.gradients.accumulate import Accumulator
from sequester.gradients.checks import check_losses
from sequester.gradients.lots import Loss, LotLike


def add_people(
    model: nn.Module,
    loss: Loss,
    lot: LotLike,
    offsets: list[int],
    accumulator: Accumulator,
    *,
    first: int = 0,
) -> None:
    """Add the clipped gradients of every person in `lot`, in order.

    Args:
        model: The user's module, used as it is.
        loss: Gives one loss for each window.
        lot: Whose people to add.
        offsets: `(people + 1,)` starts of their windows.
        accumulator: Receives one gradient for each person with windows.
        first: Position of the first one in the accumulator.
    """
    parameters = list(accumulator.parameters.values())
    for person in range(len(offsets) - 1):
        windows = offsets[person + 1] - offsets[person]
        if windows:
            gradient = person_gradient(
                model, loss, lot.select(person, person + 1), windows, parameters
            )
            accumulator.add_person(first + person, gradient)


def person_gradient(
    model: nn.Module, loss: Loss, lot: LotLike, windows: int, parameters: list[nn.Parameter]
) -> list[Tensor | None]:
    """The gradient of one person, who is all of `lot`; None where the data never reached."""
    with torch.enable_grad():
        losses = check_losses(loss(model, lot), windows)
        if not losses.requires_grad:
            return [None] * len(parameters)
        return list(torch.autograd.grad(losses.mean(), parameters, allow_unused=True))
