"""Products of matrices and vectors, by `@` and by `einsum`, and what compares vectors."""

from __future__ import annotations

import math
import string
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.rows import Rows
from sequester.gradients.rules import (
    Arguments,
    Keywords,
    finish,
    has_weight,
    lone_rows,
    named,
    rule,
    with_attached,
)
from sequester.gradients.tape import Tape, mixing


@rule(*named("matmul bmm mm mv __matmul__ __rmatmul__ baddbmm"))
def multiplying(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Products, as long as windows are a batch or a row dimension and not summed over."""
    if kwargs or len(args) != 2 or not all(isinstance(t, Tensor) for t in args):
        return mixing(tape, func, args, kwargs)
    left, right = args if func.__name__ != "__rmatmul__" else args[::-1]
    states = tape.state(left), tape.state(right)
    if tape.is_weight(right) and right.dim() <= 2 and isinstance(states[0], Rows):
        with tape:
            if right.dim() == 2:
                return F.linear(left, right.t())
            return F.linear(left, right.unsqueeze(0)).squeeze(-1)
    if has_weight(tape, args, kwargs):
        return _on_the_left(tape, left, right)
    if left.dim() < 2 or right.dim() < 1:
        return mixing(tape, func, args, kwargs)
    if right.dim() == 1:
        shared = lone_rows(tape, (left,), {}) if states[1] is None else None
        if shared is None or shared[0] == -1:
            return mixing(tape, func, args, kwargs)
        return finish(tape, func(*args), shared[0] + 1, shared[1])
    if isinstance(states[0], Rows) and states[1] is None:
        axis = states[0].axis - left.dim()
        shared = (axis, states[0]) if axis != -1 else None
    elif isinstance(states[1], Rows) and states[0] is None:
        axis = states[1].axis - right.dim()
        shared = (axis, states[1]) if axis != -2 else None
    else:
        shared = lone_rows(tape, args, kwargs)
        shared = shared if shared is not None and shared[0] < -2 else None
    if shared is None:
        return mixing(tape, func, args, kwargs)
    return finish(tape, func(*args), *shared)


def _on_the_left(tape: Tape, left: Tensor, right: Tensor) -> Tensor:
    """A weight, vector or matrix, times rows: a linear layer of the rows' transpose."""
    usable = isinstance(tape.state(right), Rows) and tape.is_weight(left) and left.dim() <= 2
    if not usable or right.dim() < 2:
        raise tape.unsupported("multiplies by a weight of more than two dimensions")
    with tape:
        if left.dim() == 1:
            return F.linear(right.transpose(-1, -2), left.unsqueeze(0)).squeeze(-1)
        return F.linear(right.transpose(-1, -2), left).transpose(-1, -2)


@rule(torch.einsum)
def summing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """`einsum`, where windows have a letter of their own that stays, or meet one weight."""
    equation, operands = args[0], args[1:]
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    known = isinstance(equation, str) and all(isinstance(t, Tensor) for t in operands)
    terms = _terms(equation, operands) if known and not kwargs else None
    if terms is None:
        return mixing(tape, func, args, kwargs)
    *given, out = terms
    found: tuple[str, Rows] | None = None
    for tensor, term in zip(operands, given, strict=True):
        state = tape.state(tensor)
        if state is None:
            continue
        letter = term[state.axis] if isinstance(state, Rows) else ""
        if not isinstance(state, Rows) or (
            found is not None and (found[0] != letter or not found[1].matches(state))
        ):
            return mixing(tape, func, args, kwargs)
        found = letter, state
    if found is None:
        return mixing(tape, func, args, kwargs)
    letter, rows = found
    for tensor, term in zip(operands, given, strict=True):
        if term.count(letter) != (tape.state(tensor) is not None):
            return mixing(tape, func, args, kwargs)
    if out.count(letter) != 1:
        return mixing(tape, func, args, kwargs)
    if not has_weight(tape, operands, {}):
        return finish(tape, func(*args), out.index(letter) - len(out), rows)
    if len(operands) != 2 or any(len(set(term)) < len(term) for term in terms):
        raise tape.unsupported("multiplies more than one tensor by a weight in einsum")
    (x, a), (w, b) = sorted(
        zip(operands, given, strict=True), key=lambda pair: tape.state(pair[0]) is None
    )
    with tape:
        return _as_linear(tape, (x, a), (w, b), out)


def _terms(equation: str, operands: Arguments) -> list[str] | None:
    """A letter for each dimension of each operand, then of the result; None if it is odd.

    Dimensions under an ellipsis get letters that are free, those that broadcast the same.
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if not arrow or len(given) != len(operands):
        return None
    under = [
        t.dim() - len(term) + 3 if "..." in term else 0
        for t, term in zip(operands, given, strict=True)
    ]
    free = [c for c in string.ascii_letters if c not in equation][: max(under)]
    if min(under) < 0 or len(free) < max(under):
        return None
    letters = [
        term.replace("...", "".join(free[len(free) - n :]))
        for term, n in zip(given, under, strict=True)
    ]
    if any(len(term) != t.dim() for t, term in zip(operands, letters, strict=True)):
        return None
    terms = [*letters, out.replace("...", "".join(free))]
    return terms if all(c in string.ascii_letters for c in "".join(terms)) else None


def _as_linear(
    tape: Tape, of_rows: tuple[Tensor, str], of_weight: tuple[Tensor, str], out: str
) -> Tensor:
    """A product of rows and one weight, as a linear layer over the letters that both sum over."""
    (x, a), (w, b) = of_rows, of_weight
    sizes = dict(zip(a, x.shape, strict=True))
    both = [c for c in b if c in a]
    if any(c in out for c in both) or any(sizes[c] != w.shape[b.index(c)] for c in both):
        raise tape.unsupported("multiplies by a weight along a dimension that stays, in einsum")
    kept, free = [c for c in a if c in out], [c for c in b if c in out]
    rest = [a.index(c) for c in a if c not in out and c not in b]
    if rest:
        x, a = x.sum(rest), "".join(c for c in a if c in out or c in b)
    alone = [b.index(c) for c in b if c not in out and c not in both]
    if alone:
        w, b = w.sum(alone), "".join(c for c in b if c in out or c in both)
    x = x.permute([a.index(c) for c in (*kept, *both)])
    x = x.flatten(len(kept)) if both else x.unsqueeze(-1)
    shape = [w.shape[b.index(c)] for c in free]
    w = w.permute([b.index(c) for c in (*free, *both)]).reshape(math.prod(shape), x.shape[-1])
    y = F.linear(x, w)
    y = y.reshape(*y.shape[:-1], *shape)
    return y.permute([(*kept, *free).index(c) for c in out])


@rule(*named("cosine_similarity"))
def comparing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """The cosine of vectors along a dimension of each window's own."""
    given = dict(zip(("x1", "x2", "dim", "eps"), args, strict=False)) | kwargs
    one, other, dim = given["x1"], given["x2"], given.get("dim", 1)
    shared = lone_rows(tape, (one, other), {})
    depth = max(one.dim(), other.dim())
    if shared is None or dim % depth == depth + shared[0]:
        return mixing(tape, func, args, kwargs)
    axis, rows = shared
    one, other = with_attached(tape, one, axis, rows), with_attached(tape, other, axis, rows)
    result = func(one, other, dim, given.get("eps", 1e-8))
    return finish(tape, result, axis + (dim % depth > depth + axis), rows)
