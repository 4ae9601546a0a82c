"""Recurrences by hand: one forward and one backward pass over time, in plain PyTorch.

`nn.GRU`'s own backward adds people together, and a loop under autograd costs six times as much.
Here each step writes into buffers laid out so that all rows of one person lie together:

    h      (windows, steps + 1, hidden)     h[:, 0] is the initial state
    gates  (windows, steps + 1, k·hidden)   activations; the backward pass turns them into
                                            gradients of the pre-activations, in place
    cells  (windows, steps + 1, hidden)     LSTM only

The extra step holds zeros after the backward pass, so that `gatesᵀ · h` over all of a person's
rows is exactly that person's gradient. GRU gates are ordered (n, r, z, hidden part of n), so the
hidden weights' share is the contiguous columns `hidden:`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.workspace import Workspace

WIDTH = {"gru": 4, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}
# The columns of its gates that a step names, in units of the hidden size.
_PARTS = {
    "gru": ((0, 1), (1, 2), (2, 3), (3, 4), (1, 3), (1, 4)),  # n, r, z, hidden part of n, …
    "lstm": ((0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (0, 4)),  # i, f, g, o, …
    "rnn_tanh": ((0, 1),),
    "rnn_relu": ((0, 1),),
}


@dataclass(frozen=True)
class Steps:
    """Buffers of one recurrence and how many windows are still running at each step.

    Attributes:
        running: Windows (the first ones) that have step t; None if all have every step.
    """

    kind: str
    h: Tensor
    gates: Tensor
    cells: Tensor | None
    running: list[int] | None
    workspace: Workspace

    def at(self, step: int) -> int:
        """Windows running at `step`."""
        return self.h.shape[0] if self.running is None else self.running[step]

    def views(self) -> list[Sequence[Tensor]]:
        """Of every step: states before it, states after it, and its gates' parts.

        Cut at once: cutting them step by step keeps Python as long as a small step's arithmetic
        takes, and what Python does threads wait for.
        """
        size = self.h.shape[2]
        states = [x.unbind(1) for x in (self.h, self.cells) if x is not None]
        parts = [self.gates[..., a * size : b * size].unbind(1) for a, b in _PARTS[self.kind]]
        return [*states, *(each[1:] for each in states), *parts]


def enter_inputs(
    steps: Steps, inputs: Tensor, w_ih: Tensor, bias: Tensor, apart: Tensor | None = None
) -> None:
    """Write the inputs' part of every step's gates where the recurrence will add the rest.

    Args:
        steps: Buffers; a GRU's gates are ordered (n, r, z, hidden part of n).
        inputs: `(windows, steps + 1, features + 1)`, contiguous; the last feature is 1.
        w_ih: Input weights as PyTorch lays them out.
        bias: What to add, `(k·hidden,)`.
        apart: What to write for the hidden part of n, `(hidden,)`, if anything.
    """
    weights = torch.cat([w_ih, bias.unsqueeze(1)], 1)
    if steps.kind == "gru":
        size = steps.h.shape[2]
        weights = torch.cat([weights[2 * size :], weights[: 2 * size]])
    if apart is not None:
        weights = F.pad(weights, (0, 0, 0, len(apart)))
        weights[-len(apart) :, -1] = apart
    rows = inputs.shape[0] * inputs.shape[1]
    into = steps.gates.view(rows, -1)[:, : len(weights)]
    torch.mm(inputs.view(rows, -1), weights.t(), out=into)


def forward(
    steps: Steps, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, bias: tuple[Tensor, Tensor]
) -> None:
    """Fill the buffers from the initial state on.

    Args:
        steps: Buffers; `h[:, 0]` (and `cells[:, 0]`) hold the initial state.
        inputs: `(windows, steps + 1, features + 1)`, contiguous; the last feature is 1.
        w_ih: Input weights as PyTorch lays them out.
        w_hh: Hidden weights.
        bias: Input and hidden biases.
    """
    windows, length, size = steps.h.shape[0], steps.h.shape[1] - 1, w_hh.shape[1]
    if steps.kind == "gru":  # n has its hidden bias inside the product with r
        both = F.pad(bias[1][: 2 * size], (0, size))
        enter_inputs(steps, inputs, w_ih, bias[0] + both, bias[1][2 * size :])
    else:
        enter_inputs(steps, inputs, w_ih, bias[0] + bias[1])
    weights = steps.workspace.take("rnn:turned", (size, w_hh.shape[0]), w_hh).copy_(w_hh.t())
    step = {"gru": _gru_step, "lstm": _lstm_step}.get(steps.kind, _rnn_step)
    views = steps.views()
    for t in range(length):
        b = steps.at(t)
        if b == windows:
            step(steps.kind, weights, *(view[t] for view in views))
        else:
            step(steps.kind, weights, *(view[t][:b] for view in views))
            steps.h[b:, t + 1] = steps.h[b:, t]
            if steps.cells is not None:
                steps.cells[b:, t + 1] = steps.cells[b:, t]


def _gru_step(kind: str, weights: Tensor, *views: Tensor) -> None:
    h, after, n, r, z, hidden, rz, rest = views
    rest.addmm_(h, weights)
    rz.sigmoid_()
    n.addcmul_(r, hidden).tanh_()
    torch.lerp(n, h, z, out=after)


def _lstm_step(kind: str, weights: Tensor, *views: Tensor) -> None:
    h, c, after, cell, i, f, g, o, i_f, gates = views
    gates.addmm_(h, weights)
    i_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    torch.mul(f, c, out=cell)
    cell.addcmul_(i, g)
    torch.tanh(cell, out=after)
    after.mul_(o)


def _rnn_step(kind: str, weights: Tensor, *views: Tensor) -> None:
    h, after, gates = views
    activate = torch.tanh if kind == "rnn_tanh" else torch.relu
    after.copy_(activate(gates.addmm_(h, weights)))


def backward(
    steps: Steps,
    w_hh: Tensor,
    d_out: Tensor | None,
    d_last: Tensor | None,
    d_cell: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Turn `gates` into gradients of the pre-activations.

    Args:
        steps: Buffers as `forward` left them.
        w_hh: Hidden weights.
        d_out: Gradient of each step's output, `(windows, steps, hidden)`.
        d_last: Gradient of the last state, `(windows, hidden)`.
        d_cell: Gradient of the last cell.

    Returns:
        Gradients of the initial state and of the initial cell.
    """
    windows, length, size = steps.h.shape[0], steps.h.shape[1] - 1, w_hh.shape[1]
    take = steps.workspace.take
    dh = take("rnn:dh", (windows, size), w_hh).zero_()
    dc = take("rnn:dc", (windows, size), w_hh).zero_()
    for total, given in ((dh, d_last), (dc, d_cell)):
        if given is not None:
            total.copy_(given)
    # A GRU's gradients of both sigmoids' inputs lie side by side, as its gates do.
    scratch = take("rnn:one", (windows, 2 * size), w_hh), take("rnn:two", (windows, size), w_hh)
    rows = [dh, dc, scratch[0], scratch[0][:, :size], scratch[0][:, size:], scratch[1]]
    steps.gates[:, length].zero_()
    step = {"gru": _gru_back, "lstm": _lstm_back}.get(steps.kind, _rnn_back)
    views = steps.views()
    outer = None if d_out is None else d_out.unbind(1)
    for t in range(length - 1, -1, -1):
        b = steps.at(t)
        if b == windows:
            now, held = [view[t] for view in views], rows
        else:
            now, held = [view[t][:b] for view in views], [row[:b] for row in rows]
            steps.gates[b:, t].zero_()
        if outer is not None:
            held[0] += outer[t][:b]
        step(steps.kind, w_hh, held, now)
    return dh, dc if steps.kind == "lstm" else None


def _gru_back(kind: str, w_hh: Tensor, rows: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    dh, _, both, first, second, two = rows
    h, _, n, r, z, hidden, rz, rest = views
    torch.sub(h, n, out=second)
    second.mul_(dh)
    torch.mul(dh, n, out=two)
    torch.addcmul(dh, two, n, value=-1, out=two)  # dh·(1 − n²)
    torch.addcmul(two, two, z, value=-1, out=n)  # dn
    dh.mul_(z)
    torch.mul(n, hidden, out=first)
    torch.mul(n, r, out=hidden)  # d of the hidden part of n
    both.mul_(rz)
    torch.addcmul(both, both, rz, value=-1, out=rz)  # dr, dz
    dh.addmm_(rest, w_hh)


def _lstm_back(kind: str, w_hh: Tensor, rows: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    dh, dc, both, first, second, two = rows
    _, c, _, cell, i, f, g, o, i_f, gates = views
    torch.tanh(cell, out=first)
    torch.mul(dh, o, out=two)
    dc.add_(two)
    torch.mul(two, first, out=dh)  # dh·o·tanh(c)
    dc.addcmul_(dh, first, value=-1)  # … so dc += dh·o·(1 − tanh²)
    torch.addcmul(dh, dh, o, value=-1, out=o)  # do
    torch.mul(dc, i, out=two)
    torch.mul(two, g, out=first)  # dc·i·g
    torch.addcmul(two, first, g, value=-1, out=g)  # dg
    dc.mul_(f)
    torch.mul(dc, c, out=second)
    torch.addcmul(both, both, i_f, value=-1, out=i_f)  # di, df
    torch.mm(gates, w_hh, out=dh)


def _rnn_back(kind: str, w_hh: Tensor, rows: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    dh, (_, after, gates) = rows[0], views
    if kind == "rnn_tanh":
        torch.mul(after, after, out=gates)
        torch.addcmul(dh, dh, gates, value=-1, out=gates)
    else:
        torch.mul(dh, after > 0, out=gates)
    torch.mm(gates, w_hh, out=dh)
