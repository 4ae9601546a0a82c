"""`F.embedding`: a person's gradient lives on the few rows that person looked up."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.book import SparseRows
from sequester.gradients.rows import windows_first
from sequester.gradients.rules import rule
from sequester.gradients.tape import Tape, record


class _Embedding(torch.autograd.Function):
    sequester_tape = True

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, ids: Tensor, table: tuple[Tensor, int | None], tape: Tape
    ) -> Tensor:
        """Rows of the table."""
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = table
        ctx.rows, ctx.book = tape.rows(ids), tape.book
        return F.embedding(ids, table[0].detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Sum over each person's equal places."""
        (ids,) = ctx.saved_tensors
        weight, rows, book = ctx.weight, ctx.rows, ctx.book
        count, width = weight.shape
        values = windows_first(gradients[0], rows, 1)  # (windows, m, width)
        looked_up = windows_first(ids.unsqueeze(-1), rows, 1).squeeze(-1)
        order = rows.owners.order
        person = rows.owners.person if order is None else rows.owners.person[order]
        keys = (person.unsqueeze(1) * count + looked_up).reshape(-1)
        values = values.reshape(-1, width)
        if ctx.padding is not None:
            keep = looked_up.reshape(-1) != ctx.padding
            keys, values = keys[keep], values[keep]
        if count * book.people <= len(keys):
            whole = weight.new_zeros(book.people * count, width)
            whole.index_add_(0, keys, values)
            book.add(weight, whole.view(book.people, count, width))
        else:
            book.add_rows(weight, SparseRows.merged(keys, values, count))
        return None, None, None, None


@rule(F.embedding)
def embedding(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Follow or record a table look-up."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
    given = dict(zip((*names, "sparse"), args, strict=False)) | kwargs
    ids, weight = given["input"], given["weight"]
    if given.get("scale_grad_by_freq") or given.get("max_norm") is not None:
        raise tape.unsupported("scales a table by how often people look up its rows")
    rows = tape.rows(ids)
    if rows is None or tape.state(weight) is not None:
        raise tape.unsupported("looks up people's data in itself")
    if not tape.is_weight(weight):
        return tape.label(F.embedding(ids, weight), rows)
    padding = given.get("padding_idx")
    padding = padding % weight.shape[0] if padding is not None else None
    result: Tensor = record(_Embedding, tape.root, ids, (weight, padding), tape)
    return tape.label(result, rows)
