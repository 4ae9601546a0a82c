"""Softmax cross-entropy fused with the linear layer before it.

For large vocabularies this pair is most of a step. The logits of a wide linear layer are not
computed when the layer is called but when something asks for them. If that is
`F.cross_entropy`, they are exponentiated where they lie, once, and `1/Σ` is folded into the
small operands of the two products of the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.layers.logits import deferring
from sequester.gradients.native import kernels
from sequester.gradients.rows import Rows
from sequester.gradients.rules import rule
from sequester.gradients.tape import Tape, mixing, record


@rule(F.nll_loss)
def likelihood(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Losses with a class dimension: classes are dimension 1, or 0 without a batch."""
    given = dict(zip(("input", "target"), args, strict=False)) | kwargs
    logits, target = given["input"], given["target"]
    rows, whose = tape.state(logits), tape.state(target)
    simple = kwargs.get("reduction") == "none" and len(args) <= 2 and kwargs.get("weight") is None
    if not simple or not isinstance(rows, Rows) or logits.dim() < 2 or rows.axis == 1:
        return mixing(tape, func, args, kwargs)
    axis = rows.axis - (rows.axis > 1)
    soft = target.is_floating_point()
    if soft and rows.axis != 0:
        return mixing(tape, func, args, kwargs)
    if whose is not None and not (
        isinstance(whose, Rows) and whose.axis == axis and whose.matches(rows)
    ):
        return mixing(tape, func, args, kwargs)
    return tape.label(func(*args, **kwargs), rows.moved(axis))


@deferring(F.cross_entropy)
def fused(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cross-entropy of logits that were not computed yet."""
    given = dict(zip(("input", "target"), args, strict=False)) | kwargs
    held = tape.deferred.get(id(given["input"]))
    simple = len(args) <= 2 and given.get("reduction") == "none" and given.get("weight") is None
    simple = simple and not given.get("label_smoothing") and not given["target"].is_floating_point()
    if held is None or not simple or id(given["target"]) in tape.deferred:
        args, kwargs = tape.materialise(args), tape.materialise(kwargs)
        return likelihood(tape, func, args, kwargs)
    target, rows = given["target"], tape.rows(held.x)
    aligned = held.class_axis == (1 if held.x.dim() > 1 else 0)
    if not aligned or list(target.shape) != list(held.x.shape[:-1]) or rows is None:
        return likelihood(tape, func, (held.materialise(tape), target), kwargs)
    whose = tape.rows(target)
    if whose is not None and (whose.axis != 0 or not whose.matches(rows)):
        raise tape.unsupported("compares one person's logits with another's target")
    held.check(tape)
    skip = given.get("ignore_index", -100)
    losses: Tensor = record(
        _Fused, tape.root, held.x, (held.weight, held.bias), target, (tape, rows, skip)
    )
    return tape.label(losses, rows)


@rule(F.cross_entropy)
def cross_entropy(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cross-entropy of logits that exist."""
    return likelihood(tape, func, args, kwargs)


class _Fused(torch.autograd.Function):
    sequester_tape = True

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, x: Tensor, weights: Any, target: Tensor, given: Any
    ) -> Tensor:
        """Losses; leaves `exp(logit − shift) − Σ·[target]` in the workspace."""
        tape, rows, skip = given
        weight, bias = weights
        fixed = None if bias is None else bias.detach()
        classes, width = weight.shape
        flat = x.reshape(-1, width)
        wanted = target.reshape(-1)
        ignored = wanted == skip
        wanted = wanted.masked_fill(ignored, 0)
        count = len(flat)
        place = f"logits:{tape.count('logits')}"  # one for each loss: the backward pass reads it
        e, total = tape.book.workspace.take(place, (count, classes), flat), flat.new_empty(count)
        layer = weight.detach(), fixed
        losses = kernels(e.device).cross_entropy(flat, layer, wanted, e, total)
        ctx.save_for_backward(flat, total, ignored)
        ctx.e, ctx.weight, ctx.rows, ctx.book, ctx.shape = e, weight, rows, tape.book, x.shape
        ctx.learns = tape.is_weight(weight)
        ctx.bias = bias if bias is not None and tape.is_weight(bias) else None
        return losses.masked_fill(ignored, 0.0).view(target.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Both products read the exponentials once more while a person's lie in the cache."""
        flat, total, ignored = ctx.saved_tensors
        e, weight, book, owners = ctx.e, ctx.weight.detach(), ctx.book, ctx.rows.owners
        scale = gradients[0].reshape(-1).masked_fill(ignored, 0.0) / total
        scaled = flat * scale.unsqueeze(1)
        each = len(flat) // max(len(owners), 1)
        keeps = ctx.learns and book.keeps_rows(ctx.weight, owners, each)
        if keeps:  # nothing to share the cache with: one product for everyone
            book.add_factors(ctx.weight, e, scaled, owners, each)
            back = torch.mm(e, weight) if ctx.needs_input_grad[1] else None
            out, fresh = None, True
        else:
            back = torch.empty_like(flat) if ctx.needs_input_grad[1] else None
            out, fresh = book.target(ctx.weight) if ctx.learns else (None, True)
        bias, fresh_bias = book.target(ctx.bias, "bias") if ctx.bias is not None else (None, True)
        offsets = owners.offsets
        for person in range(owners.people):
            part = slice(offsets[person] * each, offsets[person + 1] * each)
            if back is not None and not keeps:
                torch.mm(e[part], weight, out=back[part])
            if out is not None:
                torch.mm(e[part].t(), scaled[part], out=out[person])
            if bias is not None:
                torch.mv(e[part].t(), scale[part], out=bias[person])
        for parameter, value, new in ((ctx.weight, out, fresh), (ctx.bias, bias, fresh_bias)):
            if value is not None and not new:
                book.add(parameter, value)
        if back is not None:
            back = back.mul_(scale.unsqueeze(1)).view(ctx.shape)
        return None, back, None, None, None
