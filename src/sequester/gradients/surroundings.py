"""State beside a module: where its code could keep something of one person for another.

`checks` compares what modules hold. This finds what their functions reach besides: attributes of
the user's classes, closures and defaults, globals that their code names, caches, and the same of
hooks and of the loss. Code of PyTorch, of this package and of Python's own library is trusted.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients.trees import CACHED, PLAIN, Picture, changed, held_by, pictured, simple

# einops caches recipes by shape; pytest rewrites a test's assertions into calls of its own.
_TRUSTED = {
    *("torch", "sequester", "numpy", "scipy", "einops", "pytest", "_pytest"),
    *sys.stdlib_module_names,
}
_MOST = 5_000  # functions, classes and values that are looked at
_DEEP = 4  # containers in each other in which code is looked for
# Names that Python gives to every class; its dataclasses' are constants.
_PYTHONS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__"),
    *("__annotations__", "__annotations_cache__", "__annotate_func__", "__abstractmethods__"),
    *("__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__"),
}
_WRAPPED = (staticmethod, classmethod, MethodType)
_RUNS = (*_WRAPPED, FunctionType, BuiltinFunctionType, type, property, functools.cached_property)


class Surroundings:
    """What a model and a loss reach beside what the modules hold.

    Args:
        model: The user's module.
        loss: The loss, or None.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any] | None = None) -> None:
        """Look."""
        self._model, self._loss = model, loss
        self._values: dict[str, Any] = {}
        self._memos: set[str] = set()
        self._own = {id(module): module for module in model.modules()}
        self._seen: dict[int, Any] = dict(self._own)
        self._pending: list[tuple[str, Any]] = []
        for path, module in model.named_modules():
            where = path or type(module).__name__
            self._pending.append((type(module).__qualname__, type(module)))
            for name, value in held_by(module):
                if simple(value):
                    continue
                self._pending += [(f"{where}.{name}", part) for part in _parts(value)]
        if loss is not None:
            self._note(getattr(loss, "__qualname__", type(loss).__qualname__), loss)
        while self._pending and len(self._seen) < _MOST:
            self._follow(*self._pending.pop())
        self._pictures = {
            name: pictured(name, value, own=self._own) for name, value in self._values.items()
        }

    def generators(self) -> Iterator[Callable[[], None]]:
        """For each random generator that is reached, a way to put it back to where it is now."""
        held = [
            Picture([value for _, value in held_by(module)]) for module in self._model.modules()
        ]
        done: set[int] = set()
        for picture in (*held, *self._pictures.values()):
            for value in picture.parts():
                back = None if id(value) in done else _put_back(value)
                if back is not None:
                    done.add(id(value))
                    yield back

    def changed(self, before: Surroundings) -> list[str]:
        """Names of what is not as it was, or is new, or gone."""
        return changed(before._pictures, self._pictures)

    def reached(self) -> Iterator[Any]:
        """Functions and classes of the user's, every value, and what is inside values."""
        yield from (t for t in self._seen.values() if not isinstance(t, _RUNS) or _users(t))
        for picture in self._pictures.values():
            yield from picture.parts()

    def by_value(self) -> dict[str, Picture]:
        """How values look whatever objects they are; counts of what caches missed left out."""
        found = {n: v for n, v in self._values.items() if n not in self._memos}
        return {
            name: Picture(value, identity=False, own=self._own) for name, value in found.items()
        }

    def refuse_changed(self) -> None:
        """Refuse if any of it changed since.

        Raises:
            UsageError: SQ-406, naming what.
        """
        for name in Surroundings(self._model, self._loss).changed(self):
            raise UsageError(
                406,
                f"{name!r} changed while the model ran, so people could meet in it; keep it in a "
                "local variable, or, if it is a constant that is made at first use, run the model "
                "once on public input before",
            )

    def _follow(self, name: str, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, _WRAPPED):
            self._pending.append((name, value.__func__))
            if isinstance(value, MethodType):
                self._note(f"{name}.__self__", value.__self__)
        elif isinstance(value, functools.partial):
            self._note(name, value.func)
            for k, part in enumerate((*value.args, *value.keywords.values())):
                self._note(f"{name}[{k}]", part)
        elif isinstance(value, property | functools.cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            self._pending.append((name, getter))
        elif hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
            held = value if isinstance(value, CACHED) else value.cache_info().misses
            self._memos.add(self._keep(f"{name}.cache", held))
            self._pending.append((name, value.__wrapped__))
            if isinstance(value, FunctionType):
                self._function(name, value)
        elif isinstance(value, FunctionType):
            self._function(name, value)
        elif isinstance(value, type):
            self._class(value)
        elif not isinstance(value, BuiltinFunctionType | ModuleType):
            self._pending.append((type(value).__qualname__, type(value)))
            if not _users(type(value)):  # an object of ours may hold the user's
                members = getattr(value, "__dict__", {})
                self._pending += [(f"{name}.{key}", m) for key, m in members.items() if callable(m)]

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if not _users(base):
                continue
            for name, value in vars(base).items():
                if name not in _PYTHONS:
                    self._note(f"{base.__qualname__}.{name}", value)

    def _function(self, name: str, function: FunctionType) -> None:
        users = _users(function)
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                value = cell.cell_contents
            except ValueError:  # not yet filled
                continue
            if users or callable(value):
                self._note(f"{name}: {variable}", value)
        if not users:
            return
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for k, value in enumerate((*defaults, *vars(function).values())):
            self._note(f"{name}: default {k}", value)
        names = set(_names(function.__code__))
        for variable in names & function.__globals__.keys():
            self._note(f"global {variable}", function.__globals__[variable], names)

    def _note(self, name: str, value: Any, names: set[str] | None = None) -> None:
        """Keep a value to be compared; follow what can be run."""
        if isinstance(value, ModuleType):
            if _users(value) and id(value) not in self._seen:
                self._seen[id(value)] = value
                for inner in (names or set()) & vars(value).keys():
                    self._note(f"{value.__name__}.{inner}", vars(value)[inner])
            return
        if id(value) in self._seen and isinstance(value, nn.Module):
            return  # one of the model's own
        if not isinstance(value, _RUNS) and not hasattr(value, "cache_info"):
            state = isinstance(value, nn.Module | torch.Tensor)
            if state or _users(type(value)) or not callable(value):
                self._keep(name, value)
        self._pending += [(name, part) for part in _parts(value)]

    def _keep(self, name: str, value: Any) -> str:
        """Keep a value to be compared; two of one name, as files and classes have them, apart."""
        while name in self._values and self._values[name] is not value:
            name += "'"
        self._values[name] = value
        return name


def _parts(value: Any, deep: int = _DEEP) -> list[Any]:
    """What of a value has code of its own to follow: itself, or what it holds."""
    if type(value) in PLAIN:
        return []
    users = _users(type(value))
    runs = users or callable(value) or isinstance(value, _RUNS)
    found = [value] if runs else []
    held: Iterable[Any]
    if isinstance(value, dict):
        held = value.values()
    elif isinstance(value, list | tuple | deque):
        held = value
    elif isinstance(value, SimpleNamespace) or (users and not isinstance(value, _RUNS)):
        held = getattr(value, "__dict__", {}).values()
    else:
        return found
    if deep and not isinstance(value, nn.Module):
        for part in itertools.islice(held, _MOST):
            if type(part) not in PLAIN:
                found += _parts(part, deep - 1)
    return found


def _users(thing: Any) -> bool:
    """Whether it is code that PyTorch, this package and Python do not answer for."""
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    return str(name or "").partition(".")[0] not in _TRUSTED


def _names(code: CodeType) -> Iterator[str]:
    """Names in a function's code, and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _put_back(value: Any) -> Callable[[], None] | None:
    """How to restore a random generator of PyTorch, NumPy or Python; None for anything else."""
    bits = getattr(value, "bit_generator", None)
    if bits is not None and hasattr(bits, "state"):
        return functools.partial(setattr, bits, "state", bits.state)
    for get, put in (("get_state", "set_state"), ("getstate", "setstate")):
        if hasattr(value, get) and hasattr(value, put) and not isinstance(value, type | ModuleType):
            return functools.partial(getattr(value, put), getattr(value, get)())
    return None
