"""What the engine asks of a lot, and the offsets of its people."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError


class LotLike(Protocol):
    """Windows grouped by the person who owns them; `sampling.Lot` is one.

    Attributes:
        owner: `(windows,)` integers, ascending, in `0..people-1`; a person may own none.
        people: How many people the lot holds, those without windows included.

    Every other tensor whose first dimension has `windows` entries belongs to the windows in
    the same order.
    """

    @property
    def owner(self) -> Tensor:
        """The person of each window, shape `(windows,)`."""
        ...

    @property
    def people(self) -> int:
        """Number of people."""
        ...

    def select(self, start_person: int, stop_person: int) -> Any:
        """The lot of people `start_person..stop_person-1`."""
        ...


Loss = Callable[[nn.Module, Any], Tensor]
"""`loss(model, lot) -> (windows,)`: each window's loss. A person's objective is their mean."""


def person_offsets(lot: LotLike) -> list[int]:
    """Where each person's windows start: `people + 1` ascending positions.

    Raises:
        UsageError: SQ-403 if the owners are not ascending integers in `0..people-1`.
    """
    owner, people = lot.owner, int(lot.people)
    if people < 0 or owner.dim() != 1 or owner.is_floating_point():
        raise UsageError(
            403,
            f"a lot's owner must be a vector of integers and people ≥ 0, got "
            f"shape {tuple(owner.shape)} of {owner.dtype} for {people} people; use sampling.Lot",
        )
    whose = owner.detach().to("cpu", torch.int64).numpy()
    if len(whose) and (whose[0] < 0 or whose[-1] >= people or (whose[1:] < whose[:-1]).any()):
        raise UsageError(
            403,
            f"a lot's owner must ascend within 0..{people - 1}, so that each person's windows lie "
            "together; sort the windows by owner",
        )
    return [0, *np.bincount(whose, minlength=people).cumsum().tolist()] if people else [0]


def told(value: Any, depth: int = 4) -> Any:
    """What identifies a loss: its code, so that fresh closures are known again.

    With the code of functions, and the words and truths, that it encloses or was given: another of
    those may take another way. Numbers and tensors, which change from step to step, do not count.
    """
    if isinstance(value, str | bool | None) or not depth:
        return value if isinstance(value, str | bool | None) else type(value)
    if isinstance(value, functools.partial):
        given = (value.func, *value.args, *value.keywords.items())
        return tuple(told(part, depth - 1) for part in given)
    if isinstance(value, tuple):
        return tuple(told(part, depth - 1) for part in value)
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    if code is None:
        return type(value)
    given = (*(getattr(function, "__defaults__", None) or ()), *_enclosed(function))
    return (code, *(told(part, depth - 1) for part in given))


def _enclosed(function: Any) -> list[Any]:
    """What a closure encloses; cells that are still empty hold nothing."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    return found
