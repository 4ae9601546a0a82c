"""`F.linear` with any leading dimensions: `G_p = D_pᵀ A_p` over all rows of a person."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.book import Book
from sequester.gradients.rows import Rows, products, sums, windows_first
from sequester.gradients.tape import Tape, record


class _Linear(torch.autograd.Function):
    sequester_tape = True

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, x: Tensor, weights: tuple[Tensor, Tensor | None], tape: Tape
    ) -> Tensor:
        """`x Wᵀ + b`."""
        weight, bias = weights
        ctx.save_for_backward(x)
        ctx.weight, ctx.rows, ctx.book = weight, tape.rows(x), tape.book
        ctx.learns = tape.is_weight(weight)
        ctx.bias = bias if bias is not None and tape.is_weight(bias) else None
        return F.linear(x, weight.detach(), None if bias is None else bias.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Each person's product, and the gradient of the input."""
        (x,) = ctx.saved_tensors
        enter(ctx.book, gradients[0], x, ctx.weight if ctx.learns else None, ctx.bias, ctx.rows)
        back = gradients[0] @ ctx.weight.detach() if ctx.needs_input_grad[1] else None
        return None, back, None, None


def enter(
    book: Book, d: Tensor, a: Tensor, weight: Tensor | None, bias: Tensor | None, rows: Rows
) -> None:
    """Enter each person's `DᵀA` for the weight and column sums of D for the bias."""
    left = windows_first(d, rows, 1)
    if weight is not None and book.keeps_rows(weight, rows.owners, left.shape[1]):
        # A copy of A: it may lie in a buffer that the layer before it is about to overwrite.
        right = windows_first(a, rows, 1).flatten(0, 1).clone()
        book.add_factors(weight, left.flatten(0, 1), right, rows.owners, left.shape[1])
    elif weight is not None:
        out, fresh = book.target(weight)
        products(left, windows_first(a, rows, 1), rows.owners, out)
        if not fresh:
            book.add(weight, out)
    if bias is not None:
        book.add(bias, sums(left.sum(1), rows.owners))


def record_linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Run a linear layer of rows and keep what its backward pass needs."""
    rows = tape.rows(x)
    if rows is None:
        raise tape.unsupported("lost its windows")
    if not (tape.is_weight(weight) or (bias is not None and tape.is_weight(bias))):
        return tape.label(F.linear(x, weight, bias), rows)
    result: Tensor = record(_Linear, tape.root, x, (weight, bias), tape)
    return tape.label(result, rows)
