"""Values inside values: tensors among arguments, in lots, and in what a module keeps."""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import io
import itertools
import logging
import marshal
import queue
import random
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Set
from contextvars import ContextVar
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError

_MOST = 10_000  # values of a lot that are looked at
_DEEP = 100_000  # of one attribute of a module
_LONG, _ROWS = 64, 8  # a row that is looked at whole if it is plain this deep
_SMALL = 1 << 20  # bytes of a tensor that is kept instead of its digest
_NUMBERS = (bool, int, float, complex)
_WORDS = (str, Enum, torch.dtype, torch.device, torch.Size, torch.Generator, type(None))
_ATOMS = (*_NUMBERS, str, bytes)
_CODE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type)
PLAIN = {*_ATOMS, type(None)}
_BOXES = {dict, list, set, tuple, OrderedDict}
_NESTED = {*PLAIN, list, tuple, dict}
_STILL = (*(kind for kind in _WORDS if kind not in (str, Enum)), *_CODE, random.Random, PurePath)
_LOGGERS = {*vars(logging.root), "manager", "_cache"}  # Python's own, which any other code moves
CACHED = type(functools.lru_cache(lambda: None))
_REGISTERED = ("_parameters", "_buffers", "_modules")
_TWICE = ("_flat_weights", "_flat_weights_names", "_flat_weight_refs")


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


def held_by(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """A module's attributes by name, but for what it registered.

    Nor for what torch's RNNs note once more of their own weights, anew at a pass.
    """
    again = _TWICE if isinstance(module, nn.RNNBase) else ()
    for name, value in vars(module).items():
        if name not in _REGISTERED and name not in again:
            yield name, value


def digest(tensor: Tensor) -> bytes:
    """Of the values: `.data` changes them without a trace in identity or version.

    A small tensor's bytes stand for themselves, which is faster.
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.tobytes() if flat.nbytes <= _SMALL else hashlib.sha256(flat.data).digest()


def simple(value: Any) -> bool:
    """Whether it is plain or an empty box, as most of a module's attributes: nothing is inside."""
    return type(value) in PLAIN or (type(value) in _BOXES and not value)


class Picture:
    """How something looked, to compare with how it looks later.

    Args:
        value: A container, tensor, array or object. Rows of plain values are looked at whole,
            anything else up to 100,000 values deep.
        identity: Whether equal values that are other objects count as changed.
        own: By id, modules that are compared elsewhere: not looked into.

    Attributes:
        whole: Whether all of it was looked at.
        modules: Those met that are not among `own`.
    """

    __slots__ = ("_identity", "_own", "_parts", "modules", "whole")

    def __init__(
        self, value: Any, *, identity: bool = True, own: Mapping[int, Any] | None = None
    ) -> None:
        """Take it. What is compared by identity is held, so that no id can be used twice."""
        self.whole = True
        self.modules: list[nn.Module] = []
        if simple(value) and (identity or type(value) in PLAIN):
            self._parts: list[Any] = [value, 0]
            return
        self._parts = []
        self._identity, self._own = identity, own or {}
        seen: dict[int, Any] = {}
        pending = [value]
        while pending and len(self._parts) < _DEEP:
            self._take(pending.pop(), seen, pending)
        self.whole = not pending

    def _take(self, value: Any, seen: dict[int, Any], pending: list[Any]) -> None:
        atom = value is None or isinstance(value, _ATOMS)
        self._parts.append(value if self._identity or atom else type(value))
        if type(value) in PLAIN or isinstance(value, _STILL) or id(value) in seen:
            return
        seen[id(value)] = value
        if id(value) in self._own:
            return
        if isinstance(value, nn.Module):
            self.modules.append(value)
        if atom:
            pending.extend(getattr(value, "__dict__", {}).values())
        elif isinstance(value, Tensor):
            self._tensor(value, pending)
        elif isinstance(value, Mapping):
            self._row(list(value.keys()), pending)
            self._row(list(value.values()), pending)
        elif isinstance(value, list | tuple | deque):
            self._row(value, pending)
        elif isinstance(value, Set):
            self._row(value if self._identity else sorted(value, key=repr), pending)
        else:
            self._look_inside(value, pending)
        if not atom and type(value) not in _NESTED and not isinstance(value, Tensor):
            for name, member in (_members(value) or {}).items():
                if name not in _LOGGERS or not isinstance(value, logging.Logger):
                    self._parts.append(name)
                    pending.append(member)

    def _tensor(self, value: Tensor, pending: list[Any]) -> None:
        self._parts.extend(digest(part) for part in _dense(value))
        own = vars(value)
        if own:
            self._row(list(own.keys()), pending)
            self._row(list(own.values()), pending)
        if value.is_leaf and value.grad is not None:
            pending.append(value.grad)

    def _row(self, values: Collection[Any], pending: list[Any]) -> None:
        """Values in a row: at once if they are plain, also in rows of rows."""
        self._parts.append(len(values))
        kinds = set(map(type, values))
        if kinds <= PLAIN:  # as bytes, in which 0, 0.0, -0.0 and False differ
            self._parts.append(marshal.dumps(list(values), 2))
        elif len(values) > _LONG and _plain(values):
            self._parts.append(hashlib.sha256(marshal.dumps(list(values), 2)).digest())
        else:
            pending.extend(values)

    def _look_inside(self, value: Any, pending: list[Any]) -> None:
        """What objects of C keep, as far as anybody can tell."""
        if hasattr(value, "tobytes"):
            if getattr(getattr(value, "dtype", None), "hasobject", False):
                pending.append(tuple(value.shape))
                self._row(value.ravel().tolist(), pending)
            else:
                self._parts.append(hashlib.sha256(value.tobytes()).digest())
        elif isinstance(value, ContextVar):
            pending.append(value.get(None))
        elif isinstance(value, io.BytesIO | io.StringIO):
            self._parts.append(None if value.closed else value.getvalue())
        elif isinstance(value, itertools.count):
            self._parts.append(repr(value))
        elif isinstance(value, CACHED):
            self._parts.append(value.cache_info().misses)
            pending.extend(_cached(value))
        elif isinstance(value, (bytearray, ctypes.Array, ctypes.Structure)):
            self._parts.append(bytes(value))
        elif isinstance(value, (queue.SimpleQueue, GeneratorType)):
            pending.extend(gc.get_referents(value))

    def parts(self) -> list[Any]:
        """What was seen inside, in a fixed order."""
        return self._parts

    def same(self, other: Picture) -> bool:
        """Whether nothing changed in between."""
        if len(self._parts) != len(other._parts):
            return False
        for a, b in zip(self._parts, other._parts, strict=True):  # seldom not the same object
            if a is not b and not _equal(a, b):
                return False
        return True


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit, where that can be told by looking."""
    if type(one) is not type(other) or not isinstance(one, _ATOMS) or one != other:
        return False
    return not isinstance(one, float | complex) or repr(one) == repr(other)  # 0.0 and -0.0


def changed(before: Mapping[str, Picture], now: Mapping[str, Picture]) -> list[str]:
    """Names, in order, of what is not as it was, or is new, or gone."""
    return sorted(
        name
        for name in now.keys() | before.keys()
        if name not in now or name not in before or not now[name].same(before[name])
    )


def pictured(
    name: str, value: Any, *, identity: bool = True, own: Mapping[int, Any] | None = None
) -> Picture:
    """A picture of all that is in something.

    Raises:
        UsageError: SQ-406, naming it, if it holds more than can be looked at.
    """
    picture = Picture(value, identity=identity, own=own)
    if not picture.whole:
        raise UsageError(
            406,
            f"{name!r} holds more than {_DEEP:,} values, which cannot be compared at each call; "
            "keep them in a tensor, or in rows of plain numbers or words",
        )
    return picture


def _plain(values: Collection[Any]) -> bool:
    """Whether values are plain, or lists, tuples and dictionaries of plain ones."""
    for _ in range(_ROWS):
        kinds = set(map(type, values))
        if not kinds <= _NESTED:
            return False
        if kinds <= PLAIN:
            return True
        inside = [v for v in values if type(v) not in PLAIN]
        maps = [v for v in inside if type(v) is dict]
        values = [
            *itertools.chain.from_iterable(inside),  # of a dictionary its keys
            *itertools.chain.from_iterable(v.values() for v in maps),
        ]
    return False


def _dense(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors of which a tensor is made."""
    if tensor.layout is torch.strided:
        yield tensor
        return
    places = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
        torch.jagged: ("offsets", "values"),
    }
    for name in places.get(tensor.layout, ("to_dense",)):
        yield getattr(tensor.detach(), name)()


def _cached(function: Any) -> list[Any]:
    """What a cache of `functools` returned before, and for what; in an order that stays."""
    apart = {id(vars(function)), id(type(function))}
    held = [thing for thing in gc.get_referents(function) if id(thing) not in apart]
    if function.cache_parameters()["maxsize"] is None:
        held = [part for thing in held if type(thing) is dict for part in thing.values()]
    else:  # the cache itself, of links, is nobody's to restore
        held = [h for h in held if type(h) is not dict or not _links(h)]
    return sorted(held, key=id)


def _links(cache: dict[Any, Any]) -> bool:
    return all(type(link).__name__ == "_lru_list_elem" for link in cache.values())
