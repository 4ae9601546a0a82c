"""Values inside values: tensors among arguments, in lots, and in what a module keeps."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

_MOST = 10_000  # values of a lot, and of one attribute of a module, that are looked at
_SMALL = 1 << 20  # bytes of a tensor that is kept instead of its digest
_NUMBERS = (bool, int, float, complex)
_WORDS = (str, Enum, torch.dtype, torch.device, torch.Size, torch.Generator, type(None))
_ATOMS = (*_NUMBERS, str, bytes)
_CODE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type)
_PLAIN = {*_ATOMS, type(None)}
_BOXES = {dict, list, set, tuple, OrderedDict}
_REGISTERED = {"_parameters", "_buffers", "_modules"}


class Opaque(Exception):
    """Something that cannot be looked into."""


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among arguments, those in lists, tuples and dictionaries included."""
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(tuple(value), {})
        elif isinstance(value, dict):
            yield from tensors_in((), value)
        elif isinstance(value, slice):
            yield from tensors_in((value.start, value.stop, value.step), {})
    if kwargs:
        yield from tensors_in(tuple(kwargs.values()), {})


def tensors_of(lot: Any) -> list[Tensor]:
    """Every tensor that a lot holds, however deep.

    Raises:
        Opaque: naming the type of a value from which a loss could make other tensors of people's
            data: arrays, lists of numbers, iterators, objects that hide what they hold.
    """
    found: list[Tensor] = []
    seen: dict[int, Any] = {}
    pending: list[Any] = [lot]
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif id(value) not in seen and not isinstance(value, _NUMBERS + _WORDS + _CODE):
            seen[id(value)] = value
            inside = _inside(value)
            if inside is None or len(seen) > _MOST:
                raise Opaque(type(value).__name__)
            pending.extend(inside)
    return found


def _inside(value: Any) -> list[Any] | None:
    """What a value of a lot holds; None if nobody can tell."""
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    if isinstance(value, Mapping):
        keys, items = list(value.keys()), list(value.values())
        plain = all(isinstance(k, str) for k in keys)
        return None if not plain and any(isinstance(v, _NUMBERS) for v in (*keys, *items)) else (
            [*([] if plain else keys), *items]
        )  # fmt: skip
    if isinstance(value, list | tuple | Set):
        items = list(value)
        many = not named and any(isinstance(v, _NUMBERS) for v in items)
        return None if many else items
    held = _members(value)
    return None if held is None else list(held.values())


def _members(value: Any) -> dict[str, Any] | None:
    """An object's attributes; None if it keeps what it holds elsewhere."""
    slots = [
        name
        for kind in type(value).__mro__
        for name in _names(kind.__dict__.get("__slots__", ()))
        if hasattr(value, name)
    ]
    own = getattr(value, "__dict__", None)
    if own is None and not slots:
        return None
    return {**(own or {}), **{name: getattr(value, name) for name in slots}}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def digest(tensor: Tensor) -> bytes:
    """Of the values: `.data` changes them without a trace in identity or version.

    A small tensor's bytes stand for themselves, which is faster.
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.tobytes() if flat.nbytes <= _SMALL else hashlib.sha256(flat.data).digest()


class Picture:
    """How something looked, to compare with how it looks later.

    Args:
        value: A container, tensor, array or object; looked at up to 10,000 values deep.
        identity: Whether equal values that are other objects count as changed.
    """

    def __init__(self, value: Any, *, identity: bool = True) -> None:
        """Take it. What is compared by identity is held, so that no id can be used twice."""
        self._parts: list[Any] = []
        self._identity = identity
        kind = type(value)
        if kind in _PLAIN or (identity and kind in _BOXES and not value):
            self._parts = [value, 0]  # most of a module's attributes: at once, for speed
            return
        seen: dict[int, Any] = {}
        pending = [value]
        while pending and len(self._parts) < _MOST:
            self._take(pending.pop(), seen, pending)

    def _take(self, value: Any, seen: dict[int, Any], pending: list[Any]) -> None:
        atom = value is None or isinstance(value, _ATOMS)
        self._parts.append(value if self._identity or atom else type(value))
        if atom or isinstance(value, _WORDS + _CODE) or id(value) in seen:
            return
        seen[id(value)] = value
        if isinstance(value, Tensor):
            self._parts.append(digest(value) if value.layout is torch.strided else len(value))
        elif hasattr(value, "tobytes"):
            self._parts.append(hashlib.sha256(value.tobytes()).digest())
        elif isinstance(value, bytearray):
            self._parts.append(bytes(value))
        else:
            held = list(value.values()) if isinstance(value, Mapping) else None
            if isinstance(value, Mapping):
                pending.extend(k for k in value if not isinstance(k, str))
            elif isinstance(value, list | tuple | Set | deque):
                held = list(value)
            members = _members(value) or {}
            held = [*(held or []), *(v for k, v in members.items() if k not in _REGISTERED)]
            self._parts.append(len(held))
            pending.extend(held)

    def parts(self) -> list[Any]:
        """What was seen inside, in a fixed order."""
        return self._parts

    def same(self, other: Picture) -> bool:
        """Whether nothing changed in between."""
        return len(self._parts) == len(other._parts) and all(
            a is b or (type(a) is type(b) and isinstance(a, _ATOMS) and a == b)
            for a, b in zip(self._parts, other._parts, strict=True)
        )
