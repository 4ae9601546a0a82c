"""Convolutions over steps or images: dilated, strided, causal (padded before) and grouped."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.rows import Rows, products, sums, windows_first
from sequester.gradients.rules import rule
from sequester.gradients.tape import Tape, mixing, record

Geometry = tuple[list[int], list[int], list[int], int]


class _Convolution(torch.autograd.Function):
    sequester_tape = True

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, x: Tensor, weights: Any, geometry: Geometry, given: Any
    ) -> Tensor:
        """PyTorch's own convolution."""
        weight, bias = weights
        rows, tape = given
        fixed = None if bias is None else bias.detach()
        ctx.save_for_backward(x)
        ctx.weight, ctx.geometry, ctx.rows, ctx.book = weight, geometry, rows, tape.book
        ctx.learns = tape.is_weight(weight)
        ctx.bias = bias if bias is not None and tape.is_weight(bias) else None
        stride, padding, dilation, groups = geometry
        zeros = [0] * len(stride)
        return torch.convolution(
            x, weight.detach(), fixed, stride, padding, dilation, False, zeros, groups
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Products with the patches each output saw."""
        (x,) = ctx.saved_tensors
        d, owners = gradients[0], ctx.rows.owners
        if ctx.bias is not None:
            total = windows_first(d.flatten(2).sum(2), ctx.rows, 1).squeeze(1)
            ctx.book.add(ctx.bias, sums(total, owners))
        if ctx.learns:
            _enter(ctx, d, x)
        back = None
        if ctx.needs_input_grad[1]:
            stride, padding, dilation, groups = ctx.geometry
            back = torch.ops.aten.convolution_backward(
                d, x, ctx.weight.detach(), None, stride, padding, dilation, False,
                [0] * len(stride), groups, [True, False, False],
            )[0]  # fmt: skip
        return None, back, None, None, None


def _enter(ctx: Any, d: Tensor, x: Tensor) -> None:
    stride, padding, dilation, groups = ctx.geometry
    weight, owners, book = ctx.weight, ctx.rows.owners, ctx.book
    outputs, inputs, kernel = weight.shape[0], weight.shape[1], list(weight.shape[2:])
    if len(kernel) == 1:
        x, kernel = x.unsqueeze(2), [1, *kernel]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    patches = F.unfold(
        x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)
    )  # (windows, inputs·kernel, places)
    windows, _, places = patches.shape
    if groups == 1:
        out, fresh = book.target(weight)
        left = windows_first(d.reshape(windows, outputs, places).transpose(1, 2), ctx.rows, 2)
        right = windows_first(patches.transpose(1, 2), ctx.rows, 2)
        products(
            left.reshape(windows, places, outputs),
            right.reshape(windows, places, -1),
            owners,
            out.view(book.people, outputs, -1),
        )
        if not fresh:
            book.add(weight, out)
        return
    size = inputs * math.prod(kernel)
    left = d.reshape(windows * groups, outputs // groups, places)
    right = patches.reshape(windows * groups, size, places).transpose(1, 2)
    each = torch.bmm(left, right).view(windows, *weight.shape)
    order = owners.order
    book.add(weight, sums(each if order is None else each[order], owners))


@rule(F.conv1d, F.conv2d)
def convolution(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Follow or record a convolution whose batch dimension is the windows."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    rows = tape.state(x)
    space = 1 if func is F.conv1d else 2
    fits = isinstance(rows, Rows) and rows.axis == 0 and rows.plain and x.dim() == space + 2
    own = tape.state(weight) is None and tape.state(bias) is None
    if not fits or not isinstance(rows, Rows) or not own:
        out: Tensor = mixing(tape, func, args, kwargs)
        return out
    if not (tape.is_weight(weight) or (bias is not None and tape.is_weight(bias))):
        return tape.label(func(*args, **kwargs), rows)
    stride, dilation = (_each(given.get(n, 1), space) for n in ("stride", "dilation"))
    padding = given.get("padding", 0)
    if padding == "valid":
        padding = 0
    if padding == "same":
        reach = [n * (k - 1) for n, k in zip(dilation, weight.shape[2:], strict=True)]
        sides = [side for r in reversed(reach) for side in (r // 2, r - r // 2)]
        x, padding = F.pad(x, sides), 0
    geometry = (stride, _each(padding, space), dilation, given.get("groups", 1))
    result: Tensor = record(_Convolution, tape.root, x, (weight, bias), geometry, (rows, tape))
    return tape.label(result, rows)


def _each(value: Any, space: int) -> list[int]:
    return [value] * space if isinstance(value, int) else list(value)
