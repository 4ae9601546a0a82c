"""A user's module before people come: what it fills at first use is filled by public windows.

Libraries keep registries, and modules masks or tables of positions, that they make when first
asked. At a private step any change is refused, so a module is run on windows of nobody first. What
it fills must be the same whatever windows and weights it was filled by, and must stay: a statistic
of the first batch, or a cache by content or by the number of windows, is refused before anything
is charged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, MutableSet
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.gradients.checks import attributes, contents, refuse_remembering, refuse_written
from sequester.gradients.randomness import kept
from sequester.gradients.surroundings import Surroundings
from sequester.gradients.trees import Picture
from sequester.models import Shape

_FEW, _OTHER, _MORE = 2, 3, 5  # windows of each rehearsal


def settle(model: nn.Module, make: Callable[[], nn.Module], shape: Shape) -> None:
    """Run a fresh module on public windows until nothing of it changes any more.

    Weights, buffers that leave with it and every random generator stay as they were.

    Args:
        model: To be settled.
        make: Builds another that is the same.
        shape: Public sizes, with the steps that windows really have.

    Raises:
        UsageError: SQ-254 if it fails, SQ-406 if it writes into itself, or keeps something that
            depends on what it sees, on how many windows, or on its weights.
    """
    before = _Look(model)
    with _winding_back(before.around):
        undo = list(_undoings(before.around))
        rehearse(model, shape)
        first = _Look(model)
        first.refuse_written(before)
        filled = first.changed(before)
        if filled:
            for back in undo:
                back()
            _refuse_depending(filled, first, _otherwise(make, shape))
            rehearse(model, shape)  # what was undone may have been this one's
        settled = _Look(model)
        rehearse(model, shape, _MORE)
        refuse_written(model, settled.written)
        refuse_remembering(model, settled.held)
        settled.around.refuse_changed()


def rehearse(model: nn.Module, shape: Shape, windows: int = _FEW) -> None:
    """One forward pass over public windows, which belong to nobody; two of them are of ones.

    Raises:
        UsageError: SQ-254 if it fails or gives another shape.
    """
    ones = windows == _FEW  # a sum of zeros would leave no trace
    size = (windows, shape.steps, shape.features)
    x = torch.ones(size) if ones else torch.linspace(0, 1, math.prod(size)).reshape(size) ** windows
    lengths = torch.full((windows, 1), shape.steps)
    codes = torch.zeros(windows, shape.steps, len(shape.vocabularies), dtype=torch.int64)
    if not ones:
        lengths = (lengths - torch.arange(windows)[:, None]).clamp_min(1)
        words = torch.arange(windows * shape.steps).reshape(windows, shape.steps)
        for k, vocabulary in enumerate(shape.vocabularies):
            codes[..., k] = (words + k) % (vocabulary + 2)
    mask = torch.arange(shape.steps) < lengths
    with kept(), torch.no_grad():
        try:
            answer = model(x, mask, codes if shape.vocabularies else None)
        except Exception as error:  # whatever a user's module raises; no record is in it
            which = "two windows of ones" if ones else f"{windows} windows of public numbers"
            raise UsageError(
                254, f"the network fails on {which}: {type(error).__name__}: {error}"
            ) from error
    steps = (shape.steps,) if shape.pool == "none" else ()
    wanted = (windows, *steps, shape.outputs)
    if not isinstance(answer, Tensor) or tuple(answer.shape) != wanted:
        found = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise UsageError(254, f"the network must answer {windows} windows by {wanted}, got {found}")


class _Look:
    """What a module holds and reaches, as it is now.

    Attributes:
        written: Digests of parameters and buffers.
        held: Its attributes.
        around: What it reaches beside itself.
        values: What could be filled at first use, to be compared with another module's.
    """

    def __init__(self, model: nn.Module) -> None:
        """Look."""
        self.written, self.held = contents(model), attributes(model)
        self.around = Surroundings(model)
        self._model = model
        self._passing = {  # buffers that do not leave with the module
            f"{path}.{name}".lstrip(".")
            for path, module in model.named_modules()
            for name in module._non_persistent_buffers_set  # noqa: SLF001
        }
        self.values: dict[str, Any] = {
            **{name: self.written[name] for name in self._passing & set(self.written)},
            **attributes(model, identity=False),
            **self.around.by_value(),
        }

    def refuse_written(self, before: _Look) -> None:
        """Refuse if anything changed since that leaves with the module.

        Raises:
            UsageError: SQ-406.
        """
        passing = self._passing | before._passing
        was = {name: value for name, value in before.written.items() if name not in passing}
        now = {name: value for name, value in self.written.items() if name in passing}
        refuse_written(self._model, was | now)

    def changed(self, before: _Look) -> list[str]:
        """Names of what changed since."""
        digests = self.written.items() ^ before.written.items()
        names = {name for name, _ in digests} | set(self.around.changed(before.around))
        names |= {
            name
            for name in self.held.keys() | before.held.keys()
            if not _same(self.held.get(name), before.held.get(name))
        }
        return sorted(names)


def _same(one: Any, other: Any) -> bool:
    return (
        one.same(other) if isinstance(one, Picture) and isinstance(other, Picture) else one == other
    )


def _refuse_depending(filled: list[str], one: _Look, other: _Look) -> None:
    for name in filled:
        if not _same(one.values.get(name), other.values.get(name)):
            raise UsageError(
                406,
                f"{name!r} is filled at first use with what depends on the model's input or on its "
                "weights, so one person's could stay for others; compute it at each call",
            )


def _otherwise(make: Callable[[], nn.Module], shape: Shape) -> _Look:
    """Another module, filled by other windows and other weights."""
    other = make()
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.mul_(1.0 + 2.0**-6).add_(2.0**-10)
    rehearse(other, shape, _OTHER)
    return _Look(other)


@contextmanager
def _winding_back(around: Surroundings) -> Iterator[None]:
    """Every random generator stands afterwards where it stood."""
    with kept():
        theirs = list(around.generators())
        try:
            yield
        finally:
            for restore in theirs:
                restore()


def _undoings(around: Surroundings) -> Iterator[Callable[[], None]]:
    """Ways to put back what lies beside a module to where it is now."""
    for thing in around.reached():
        if isinstance(thing, nn.Module | Tensor):
            continue
        if hasattr(thing, "cache_clear"):
            yield thing.cache_clear
        elif isinstance(thing, FunctionType):
            yield partial(_restore, thing.__globals__, dict(thing.__globals__))
            yield partial(_restore, vars(thing), dict(vars(thing)))
            for cell in thing.__closure__ or ():
                with suppress(ValueError):  # empty
                    yield partial(setattr, cell, "cell_contents", cell.cell_contents)
        elif isinstance(thing, type):
            yield partial(_restore_class, thing, dict(vars(thing)))
        elif isinstance(thing, MutableMapping):
            yield partial(_restore, thing, dict(thing))
        elif isinstance(thing, MutableSet):
            yield partial(_restore_set, thing, set(thing))
        elif isinstance(thing, list | deque):
            yield partial(_restore_list, thing, list(thing))
        elif isinstance(getattr(thing, "__dict__", None), dict):
            yield partial(_restore, vars(thing), dict(vars(thing)))


def _restore(now: MutableMapping[Any, Any], before: dict[Any, Any]) -> None:
    for key in [key for key in now if key not in before]:
        del now[key]
    for key, value in before.items():
        if key not in now or now[key] is not value:
            now[key] = value


def _restore_class(kind: type, before: dict[str, Any]) -> None:
    for name in [name for name in vars(kind) if name not in before]:
        delattr(kind, name)
    for name, value in before.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)


def _restore_set(now: MutableSet[Any], before: set[Any]) -> None:
    for value in now ^ before:
        (now.add if value in before else now.discard)(value)


def _restore_list(now: Any, before: list[Any]) -> None:
    if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
        now.clear()
        now.extend(before)
