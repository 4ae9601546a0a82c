"""The fast engine against the loop over people, a few people now and then.

Rules for PyTorch's functions can never be proved complete. So at the first chunk of a model and
loss, and again at calls 4, 16, 64, …, some of a chunk's people are taken alone through the same
modules, and what was added does not count if they differ. A person alone meets nobody: where a
gradient differs by more than rounding explains, people met, or a rule is wrong, and the loop takes
over for good. What rounding explains is asked of the network where need be: one that diverged
makes any difference of a last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sequester.gradients import loop
from sequester.gradients.accumulate import Entry, part_of
from sequester.gradients.lots import Loss
from sequester.gradients.randomness import Generators, Quiet
from sequester.gradients.tape import Unsupported

Gradient = list[Tensor | None]
_FIRST, _LATER = 3, 1  # people compared at the first time, and at each other
_FIRST_LARGE, _LARGE = 2, 4 << 20  # at the first time of a model of more bytes
_TOGETHER = 4  # people of a pass that is made for a check only
_USUAL = 5  # people whose norms tell what is usual in a chunk
_BLOCK = 1 << 18  # numbers turned to float64 at once
_ROUNDINGS = 1024.0  # of the whole gradient, which one parameter's share of it may be off by
_NUDGES = 64.0  # roundings of the weights that those of a pass may be worth
_EDGE = 1e30  # beyond it, one order of adding may overflow where another does not


def due(call: int) -> int | None:
    """The how-manieth check belongs to the `call`-th call, counted from 1; None if none does."""
    number = 0
    while call % 4 == 0:
        call, number = call // 4, number + 1
    return number if call == 1 else None


def _large(parameters: dict[str, nn.Parameter]) -> bool:
    """Whether few people are compared, for their gradients' sake."""
    return sum(p.numel() * p.element_size() for p in parameters.values()) > _LARGE


def chosen(counts: Tensor, number: int, few: int | None = None) -> list[int]:
    """Up to `few` people to compare: those with windows, evenly spread, others each time."""
    # Those with far more windows than others would take as much more time and memory.
    usual = 2 * int(counts[counts > 0].median()) if bool((counts > 0).any()) else 0
    owners = ((counts > 0) & (counts <= usual)).nonzero().flatten().tolist()
    few = min(len(owners), few or (_LATER if number else _FIRST))
    return [owners[(number + k * len(owners) // few) % len(owners)] for k in range(few)]


def neighbours(counts: Tensor, number: int, few: int) -> tuple[int, int]:
    """The first of `few` people with windows who lie together, and the one after the last."""
    owners = counts.nonzero().flatten().tolist()
    few = min(len(owners), few)
    first = number % (len(owners) - few + 1)
    return owners[first], owners[first + few - 1] + 1


def check(
    model: nn.Module,
    loss: Loss,
    parameters: dict[str, nn.Parameter],
    lot: Any,
    counts: Tensor,
    *,
    number: int,
    before: Generators,
    done: Sequence[Entry],
    again: Callable[[Quiet, Any, Tensor], Sequence[Entry]],
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
        done: The chunk's gradients by parameter.
        again: Those of a new pass, over a part of these people with these counts.

    Raises:
        Unsupported: if they differ by more than rounding explains.
    """
    few = _LATER if number else (_FIRST_LARGE if _large(parameters) else _FIRST)
    after = Generators(before._device)  # noqa: SLF001
    # Where nothing was drawn from a global generator, one of the user's own may still have been
    # asked: a difference counts if it stays with constants in the place of random numbers.
    tries: list[Quiet | None] = [Quiet()] if before.moved() else [None, Quiet()]
    name: str | None = None
    try:
        for quiet in tries:
            before.wind_back()
            part, windows, entries = lot, counts, done
            if quiet is not None:
                first, stop = neighbours(counts, number, _TOGETHER)
                part, windows = lot.select(first, stop), counts[first:stop]
                entries = again(quiet, part, windows)
            people = chosen(windows, number, few)
            mine = [_Person(parameters, entries, person) for person in people]
            others = [_Person(parameters, entries, k) for k in chosen(windows, number, _USUAL)]
            floor = _typical([person.norm() for person in (*mine, *others)])
            for person, ours in zip(people, mine, strict=True):

                def alone(whose: int = person) -> Gradient:
                    before.wind_back()
                    each = whose, int(windows[whose])  # noqa: B023 - asked before the next try
                    return _alone(model, loss, parameters, part, each, quiet)  # noqa: B023

                name = _unexplained(parameters, ours, floor, alone)
                if name is not None:
                    break
            if name is None:
                return
    finally:
        after.wind_back()
    raise Unsupported(
        f"a person's gradient of {name} alone is not the one among others (people meet, the "
        "number of windows or their places count, or what the model draws cannot be repeated)"
    )


class _Person(Sequence[Tensor | None]):
    """A person's gradient in a chunk, of which one parameter at a time is put together."""

    def __init__(
        self, parameters: dict[str, nn.Parameter], entries: Sequence[Entry], person: int
    ) -> None:
        self._parameters, self._entries, self._person = parameters, entries, person
        self._norm: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        parameter = list(self._parameters.values())[index]
        return part_of(parameter, self._entries[index], self._person)

    def norm(self) -> float:
        if self._norm is None:
            self._norm = _whole(self)
        return self._norm


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


@contextmanager
def _nudged(parameters: dict[str, nn.Parameter]) -> Iterator[None]:
    """Let each weight be its neighbour's number, up or down, for a while; not written into."""
    held = {name: parameter.data for name, parameter in parameters.items()}
    generator = torch.Generator().manual_seed(0)
    try:
        for name, parameter in parameters.items():
            sign = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
            parameter.data = held[name] * (1.0 + torch.finfo(parameter.dtype).eps * sign)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = held[name]


def _unexplained(
    parameters: dict[str, nn.Parameter],
    ours: Sequence[Tensor | None],
    floor: float,
    alone: Callable[[], Gradient],
) -> str | None:
    """The first parameter whose gradient differs by more than any rounding; None if all agree."""
    theirs = alone()
    name = _differs(parameters, ours, theirs, floor)
    # What does not even repeat tells nothing of rounding.
    if name is None or _differs(parameters, alone(), theirs, floor) is not None:
        return name
    with _nudged(parameters):
        moved = alone()
    return _differs(parameters, ours, theirs, floor, moved)


def _norm(part: Tensor | None, less: Tensor | None = None) -> float:
    """‖part − less‖ in float64, a block at a time."""
    if part is None or less is None:
        part, less = (less if part is None else part), None
    if part is None:
        return 0.0
    flat = _flat(part)
    other = None if less is None else _flat(less)
    total = 0.0
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK].double()
        if other is not None:
            block = block - other[start : start + _BLOCK]
        total += float(torch.linalg.vector_norm(block)) ** 2
    return math.sqrt(total)


def _flat(part: Tensor) -> Tensor:
    return (part.to_dense() if part.is_sparse else part).detach().reshape(-1)


def _whole(gradient: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(_norm(part) ** 2 for part in gradient))


def _typical(norms: list[float]) -> float:
    """The middle one of people's finite norms: what cancelled far below it is rounding."""
    norms = sorted(n for n in norms if 0.0 < n < _EDGE)
    return norms[len(norms) // 2] if norms else 0.0


def _differs(
    parameters: dict[str, nn.Parameter],
    ours: Sequence[Tensor | None],
    theirs: Gradient,
    floor: float,
    moved: Gradient | None = None,
) -> str | None:
    """The first parameter whose gradients differ beyond rounding; None if all agree.

    Args:
        parameters: By name.
        ours: A person's gradient in a chunk.
        theirs: Alone.
        floor: Norm of a usual gradient.
        moved: Alone with weights that are other ones by a rounding. A network whose gradients
            explode turns those into differences of any size, so more than this shows counts.
    """
    wholes = ours.norm() if isinstance(ours, _Person) else _whole(ours), _whole(theirs)
    finite = [w for w in wholes if math.isfinite(w)]
    if not finite or max(finite) > _EDGE:
        return None
    if len(finite) == 1:
        return next(iter(parameters))
    scale = max(*wholes, floor)
    for index, (name, parameter) in enumerate(parameters.items()):
        mine, other = ours[index], theirs[index]
        eps = torch.finfo(parameter.dtype).eps
        if parameter.device.type != "cpu":
            eps = max(eps, 2.0**-10)  # TF32
        own = max(_norm(mine), _norm(other))
        most = 4.0 * eps**0.5 * own + _ROUNDINGS * eps * scale
        if moved is not None:
            wobble = _norm(other, moved[index])
            most += _NUDGES * wobble if math.isfinite(wobble) else 0.0
        if _norm(mine, other) > most:
            return name
    return None
