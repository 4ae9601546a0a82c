"""Writing into part of a tensor: a window's numbers stay in that window's place.

A tensor that a pass made, and into which people's numbers are written, is theirs from then on.
Its other names (views taken before) say nothing of people, so their use is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sequester.gradients.rows import Rows
from sequester.gradients.rules import Arguments, Keywords, rule, with_attached
from sequester.gradients.tape import Tape, Unsupported

_NUMBERS = (bool, int, float)


@rule(Tensor.__setitem__)
def writing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> None:
    """`out[:, t] = h`, and `scores[mask] = number`."""
    target, index, value = args
    held, parts = tape.state(target), index if isinstance(index, tuple) else (index,)
    tape.refuse_kept(target)
    if tape.is_weight(target):
        raise _refusal(tape)
    if isinstance(held, Rows) and len(parts) == 1 and isinstance(parts[0], Tensor):
        mask, theirs = parts[0], tape.state(parts[0])
        same = isinstance(theirs, Rows) and theirs.axis == held.axis and theirs.matches(held)
        if not same or mask.dtype != torch.bool or not isinstance(value, _NUMBERS):
            raise _refusal(tape)
        func(target, mask, value)
        return
    places = _places(parts, target.dim())
    rows = None if places is None else _whose(tape, held, value, places)
    if places is None or rows is None or target.shape[rows.axis] != rows.size:
        raise _refusal(tape)
    if held is None:
        tape.claim(target, rows)
    func(target, index, with_attached(tape, value, places.index(rows.axis) - len(places), rows))


def _refusal(tape: Tape) -> Unsupported:
    return tape.unsupported("writes where it is not known whose place that is")


def _places(parts: Arguments, depth: int) -> list[int | None] | None:
    """Which dimension of a tensor each dimension of its part is; None for one cut or put in.

    None where anything but slices and numbers picks the part.
    """
    for part in parts:
        ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
        plain = all(end is None or type(end) is int for end in ends)
        if not plain and part is not Ellipsis:
            return None
    rest = depth - sum(part is not None and part is not Ellipsis for part in parts)
    if rest < 0 or sum(part is Ellipsis for part in parts) > 1:
        return None
    at = next((k for k, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts = (*parts[:at], *[slice(None)] * rest, *parts[at + 1 :])
    places: list[int | None] = []
    dimension = 0
    for part in parts:
        if part is None:
            places.append(None)
            continue
        if isinstance(part, slice):
            places.append(dimension if part == slice(None) else None)
        dimension += 1
    return places


def _whose(tape: Tape, held: Any, value: Any, places: list[int | None]) -> Rows | None:
    """The windows of a tensor after `value` was written; None if that is not certain."""
    state = tape.state(value)
    if isinstance(state, Rows):
        place = len(places) + state.axis - value.dim()
        axis = places[place] if place >= 0 else None
        if axis is None:
            return None
        rows = state.moved(axis)
        same = isinstance(held, Rows) and held.axis == axis and held.matches(rows)
        return rows if held is None or same else None
    if state is not None or not isinstance(held, Rows) or held.axis not in places:
        return None
    if not isinstance(value, Tensor):
        return held if isinstance(value, _NUMBERS) else None
    # Of nobody's, it must be the same for each window.
    ahead = len(places) - places.index(held.axis)
    return held if value.dim() < ahead or value.shape[-ahead] == 1 else None
