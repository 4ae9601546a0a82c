"""`F.linear` as the tape sees it, and wide logits which wait until something asks for them.

If that is `F.cross_entropy`, the two run as one (`layers.crossentropy`); anything else gets the
logits computed after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.layers.linear import record_linear
from sequester.gradients.rows import Rows
from sequester.gradients.rules import named, rule
from sequester.gradients.tape import DEFERRED_RULES, RULES, Rule, Tape, mixing

WIDE = 256


class Deferred:
    """A linear layer's output that has not been computed.

    Attributes:
        x: Its input, `(*leading, width)`.
        class_axis: Where the classes are in the tensor the model sees: last, or 1.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, class_axis: int) -> None:
        """Keep the operands."""
        self.x, self.weight, self.bias, self.class_axis = x, weight, bias, class_axis
        self._operands = [t for t in (x, weight, bias) if t is not None]
        self._versions = self._written()
        self._value: Tensor | None = None

    def _written(self) -> list[int]:
        """How often each operand was written to."""
        return [t._version for t in self._operands]  # noqa: SLF001

    def check(self, tape: Tape) -> None:
        """Refuse operands that were written to since the layer was called."""
        if self._written() != self._versions:
            raise tape.unsupported("writes in place into what wide logits are computed from")

    def shape(self) -> list[int]:
        """The shape the model sees."""
        shape = list(self.x.shape[:-1])
        shape.insert(self.class_axis, self.weight.shape[0])
        return shape

    def placeholder(self, tape: Tape) -> Tensor:
        """What the model holds: NaN of the right shape, without memory."""
        held: Tensor = WideLogits.apply(tape.root, self.x, self.shape())  # type: ignore[no-untyped-call]
        tape.deferred[id(held)] = self
        rows = tape.rows(self.x)
        if rows is None:
            raise tape.unsupported("lost its windows")
        moved = rows.axis + (rows.axis >= self.class_axis)
        return tape.label(held, rows.moved(moved))

    def materialise(self, tape: Tape) -> Tensor:
        """Compute it after all, with its graph even where the model wants none just now."""
        if self._value is None:
            self.check(tape)
            with torch.enable_grad():
                value = record_linear(tape, self.x, self.weight, self.bias)
                if self.class_axis != value.dim() - 1:
                    with tape:
                        value = value.movedim(-1, self.class_axis)
            # Views of the same logits may be computed apart from these: neither may be written to.
            self._value = tape.keep(value)
        if torch.is_grad_enabled() or not self._value.requires_grad:
            return self._value
        return tape.label(self._value.detach(), tape.state(self._value))


class WideLogits(torch.autograd.Function):
    """Stands in the graph of a placeholder: whoever differentiates one is found out by it."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, x: Tensor, shape: list[int]) -> Tensor:
        """NaN, of which there is one."""
        return x.new_full((1,), math.nan).expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Nobody gets here."""
        raise RuntimeError("wide logits were differentiated before they were computed")


def defer(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows) -> Tensor | None:
    """A placeholder for wide logits, None for a layer that is not worth it."""
    sorted_first = rows.axis == 0 and rows.outer == 1 and rows.owners.order is None
    wide = weight.dim() == 2 and weight.shape[0] >= WIDE
    if not wide or not sorted_first or not torch.is_grad_enabled():
        return None
    return Deferred(x, weight, bias, x.dim() - 1).placeholder(tape)


def deferring(*functions: Any) -> Callable[[Rule], Rule]:
    """Register what may be done to logits without computing them."""

    def register(handler: Rule) -> Rule:
        for function in functions:
            DEFERRED_RULES[function] = handler
        return handler

    return register


@deferring(*named("view reshape flatten transpose permute movedim __getitem__ contiguous float"))
def reshaping(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reshape the layer's input instead of its output, where classes stay whole."""
    held = tape.deferred.get(id(args[0]))
    if held is None:
        args, kwargs = tape.materialise(args), tape.materialise(kwargs)
        return RULES[func](tape, func, args, kwargs)
    if func.__name__ in ("contiguous", "float") and held.x.dtype == torch.float32:
        return args[0]
    shape, axis, classes = list(args[0].shape), held.class_axis, held.weight.shape[0]
    new = list(func(args[0], *args[1:], **kwargs).shape)
    with tape:
        if func.__name__ in ("view", "reshape", "flatten"):
            if axis == len(shape) - 1 and new[-1] == classes:
                moved = held.x.reshape([*new[:-1], held.x.shape[-1]])
                return Deferred(moved, held.weight, held.bias, len(new) - 1).placeholder(tape)
        elif func.__name__ == "__getitem__":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            plain = all(isinstance(i, int | slice) for i in index)
            if axis == len(shape) - 1 and plain and len(index) < len(shape):
                moved = held.x[index]
                return Deferred(moved, held.weight, held.bias, len(new) - 1).placeholder(tape)
        elif len(shape) == 3 and axis in (1, 2):
            # Sizes may coincide: dimensions of different sizes show where each of them went.
            marker = torch.empty(2, 3, 4)
            places = list(func(marker, *args[1:], **kwargs).shape)
            if places == [2, 4, 3]:
                return Deferred(held.x, held.weight, held.bias, 3 - axis).placeholder(tape)
    whole = held.materialise(tape)
    return RULES[func](tape, func, (whole, *args[1:]), kwargs)


@rule(F.linear)
def linear(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Follow or record a linear layer."""
    names = ("input", "weight", "bias")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    rows = tape.state(x)
    learns = tape.is_weight(weight) or (bias is not None and tape.is_weight(bias))
    if (
        not isinstance(rows, Rows)
        or rows.axis >= x.dim() - 1
        or tape.state(weight)
        or tape.state(bias)
    ):
        out: Tensor = mixing(tape, func, args, kwargs)
        return out
    deferred = defer(tape, x, weight, bias, rows) if learns else None
    return record_linear(tape, x, weight, bias) if deferred is None else deferred
