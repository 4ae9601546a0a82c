"""How windows move through indexing: one entry of each window, never a choice of windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sequester.gradients.rows import MIXED, Rows
from sequester.gradients.rules import Arguments, Keywords, finish, lone_rows, named, rule
from sequester.gradients.tape import Tape, mixing
from sequester.gradients.trees import tensors_in

_MASKS = (torch.bool, torch.uint8)


@rule(Tensor.__getitem__)
def indexing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Basic indexing beside the window axis, and `x[arange(windows), position]`."""
    tensor, index = args
    rows = tape.state(tensor)
    if rows is None or not isinstance(rows, Rows):
        return mixing(tape, func, args, kwargs)
    parts = index if isinstance(index, tuple) else (index,)
    cuts = [part for part in parts if isinstance(part, slice)]
    if any(tape.state(t) is not None for t in tensors_in(tuple(cuts), {})):
        return mixing(tape, func, args, kwargs)  # a length read from people's data
    if any(isinstance(p, Tensor | list) for p in parts):
        if _beside(tape, rows, parts):
            return tape.label(func(tensor, index), rows)
        return _picking(tape, func, tensor, rows, parts)
    known = all(p is None or p is Ellipsis or isinstance(p, slice | int) for p in parts)
    if not known or any(isinstance(p, bool) for p in parts):
        return mixing(tape, func, args, kwargs)
    depth = sum(p is not None and p is not Ellipsis for p in parts)
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)
    at = parts.index(Ellipsis)
    parts = (*parts[:at], *[slice(None)] * (tensor.dim() - depth), *parts[at + 1 :])
    axis, place = 0, 0
    for part in parts:
        if part is None:
            axis += 1
            continue
        if place == rows.axis:
            if part != slice(None):
                return mixing(tape, func, args, kwargs)
            break
        axis += not isinstance(part, int)
        place += 1
    return tape.label(func(tensor, index), rows.moved(axis))


def _beside(tape: Tape, rows: Rows, parts: Arguments) -> bool:
    """Whether one list of public places picks along another axis, the rest being slices."""
    lists = [p for p in parts if not isinstance(p, slice)]
    own = parts[rows.axis] if rows.axis < len(parts) else slice(None)
    if len(lists) != 1 or not isinstance(own, slice) or own != slice(None):
        return False
    (part,) = lists
    if isinstance(part, Tensor):
        return part.dim() == 1 and part.dtype not in _MASKS and tape.state(part) is None
    return isinstance(part, list) and all(type(p) is int for p in part)


def _picking(tape: Tape, func: Any, tensor: Tensor, rows: Rows, parts: Arguments) -> Any:
    """`x[arange(windows), position, …]`: one entry of each window."""
    first = parts[0]
    plain = (
        rows.axis == 0
        and rows.plain
        and isinstance(first, Tensor)
        and first.shape == (rows.size,)
        and tape.state(first) is None
        and torch.equal(first, torch.arange(rows.size, device=first.device))
    )
    for part in parts[1:]:
        state = tape.state(part)
        single = isinstance(part, Tensor) and part.dim() <= 1 and part.dtype not in _MASKS
        # An index of more dimensions is repeated along all windows, and so are its entries.
        fits = single and (state is None or (isinstance(state, Rows) and state.matches(rows)))
        plain = plain and (fits or part == slice(None) or isinstance(part, int))
    if not plain:
        return mixing(tape, func, (tensor, parts if len(parts) > 1 else parts[0]), {})
    result = func(tensor, parts)
    return tape.label(result, rows.moved(0) if result.shape[0] == rows.size else MIXED)


@rule(*named("gather take_along_dim"))
def gathering(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Picking along a dimension which is not the window axis, by an index of the same windows."""
    shared = lone_rows(tape, args, kwargs)
    given = args[2 if func.__name__ == "take_along_dim" else 1 :] or (kwargs.get("dim"),)
    tensor, rows, dim = args[0], tape.state(args[0]), given[0]
    if shared is None or not isinstance(rows, Rows) or dim is None:
        return mixing(tape, func, args, kwargs)
    if dim % tensor.dim() == rows.axis:
        return mixing(tape, func, args, kwargs)
    result = func(*args, **kwargs)
    return finish(tape, result, rows.axis - tensor.dim(), rows)
