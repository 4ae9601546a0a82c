"""The fast engine against the loop over people, a few people now and then.

Rules for PyTorch's functions can never be proved complete. So at the first chunk of a model and
loss, and again at calls 4, 16, 64, …, some of a chunk's people are taken alone through the same
modules, before anything is added. A person alone meets nobody: where a gradient differs by more
than rounding explains, people met, or a rule is wrong, and the loop takes over for good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sequester.gradients import loop
from sequester.gradients.accumulate import Entry, gradient_of
from sequester.gradients.lots import Loss
from sequester.gradients.randomness import Generators, Quiet
from sequester.gradients.tape import Unsupported

Gradient = list[Tensor | None]
_FIRST, _LATER = 6, 2  # people compared at the first time, and at each other
_ROUNDINGS = 1024.0  # of the whole gradient, which one parameter's share of it may be off by
_EDGE = 1e30  # beyond it, one order of adding may overflow where another does not


def due(call: int) -> int | None:
    """The how-manieth check belongs to the `call`-th call, counted from 1; None if none does."""
    number = 0
    while call % 4 == 0:
        call, number = call // 4, number + 1
    return number if call == 1 else None


def chosen(counts: Tensor, number: int) -> list[int]:
    """People to compare: those with windows, evenly spread, others each time."""
    owners = counts.nonzero().flatten().tolist()
    most = min(len(owners), _LATER if number else _FIRST)
    return [owners[(number + k * len(owners) // most) % len(owners)] for k in range(most)]


def check(
    model: nn.Module,
    loss: Loss,
    parameters: dict[str, nn.Parameter],
    lot: Any,
    counts: Tensor,
    *,
    number: int,
    before: Generators,
    entries: Callable[[Quiet | None], Sequence[Entry]],
) -> None:
    """Compare people's gradients in a chunk with those that they have alone.

    Args:
        model: The user's module.
        loss: One loss for each window.
        parameters: Trainable parameters by name.
        lot: The chunk's people.
        counts: `(people,)` windows of each.
        number: How many checks there were before.
        before: Where generators stood before the chunk's pass, which is over.
        entries: The chunk's gradients by parameter: without an argument of the pass that is over,
            with one of a new pass under it.

    Raises:
        Unsupported: if they differ by more than rounding explains.
    """
    people = chosen(counts, number)
    after = Generators(before._device)  # noqa: SLF001
    # Where nothing was drawn from a global generator, one of the user's own may still have been
    # asked: a difference counts if it stays with constants in the place of random numbers.
    tries: list[Quiet | None] = [Quiet()] if before.moved() else [None, Quiet()]  # type: ignore[no-untyped-call]
    name: str | None = None
    try:
        for quiet in tries:
            before.wind_back()
            found = entries(quiet)
            ours = [gradient_of(parameters, found, person) for person in people]
            floor = _typical(ours)
            name = None
            for person, mine in zip(people, ours, strict=True):
                before.wind_back()
                whose = person, int(counts[person])
                alone = _alone(model, loss, parameters, lot, whose, quiet)
                name = name or _differs(parameters, mine, alone, floor)
            if name is None:
                return
    finally:
        after.wind_back()
    raise Unsupported(
        f"a person's gradient of {name} alone is not the one among others (people meet, the "
        "number of windows or their places count, or what the model draws cannot be repeated)"
    )


def _alone(
    model: nn.Module,
    loss: Loss,
    parameters: dict[str, nn.Parameter],
    lot: Any,
    whose: tuple[int, int],
    quiet: Quiet | None,
) -> Gradient:
    person, windows = whose
    part = lot.select(person, person + 1)
    given = list(parameters.values())
    if quiet is None:
        return loop.person_gradient(model, loss, part, windows, given)
    with quiet:
        return loop.person_gradient(model, loss, part, windows, given)


def _norm(part: Tensor | None) -> float:
    return 0.0 if part is None else float(torch.linalg.vector_norm(part.double()))


def _whole(gradient: Gradient) -> float:
    return math.sqrt(sum(_norm(part) ** 2 for part in gradient))


def _typical(gradients: list[Gradient]) -> float:
    """The middle one of people's finite norms: what cancelled far below it is rounding."""
    norms = sorted(n for n in map(_whole, gradients) if 0.0 < n < _EDGE)
    return norms[len(norms) // 2] if norms else 0.0


def _differs(
    parameters: dict[str, nn.Parameter], ours: Gradient, theirs: Gradient, floor: float
) -> str | None:
    """The first parameter whose gradients differ beyond rounding; None if all agree."""
    wholes = _whole(ours), _whole(theirs)
    finite = [w for w in wholes if math.isfinite(w)]
    if not finite or max(finite) > _EDGE:
        return None
    if len(finite) == 1:
        return next(iter(parameters))
    scale = max(*wholes, floor)
    for (name, parameter), mine, alone in zip(parameters.items(), ours, theirs, strict=True):
        eps = torch.finfo(parameter.dtype).eps
        if parameter.device.type != "cpu":
            eps = max(eps, 2.0**-10)  # TF32
        off = _norm(_minus(mine, alone))
        own = max(_norm(mine), _norm(alone))
        if off > 4.0 * eps**0.5 * own + _ROUNDINGS * eps * scale:
            return name
    return None


def _minus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    b = b.to_dense() if b.is_sparse else b
    return a.double() - b.double()
