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

from dataclasses import dataclass

import torch
from torch import Tensor

from sequester.gradients.workspace import Workspace

WIDTH = {"gru": 4, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}


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


def enter_inputs(steps: Steps, inputs: Tensor, w_ih: Tensor, bias: Tensor) -> None:
    """Write the inputs' part of every step's gates where the recurrence will add the rest.

    Args:
        steps: Buffers; a GRU's gates are ordered (n, r, z).
        inputs: `(windows, steps + 1, features + 1)`, contiguous; the last feature is 1.
        w_ih: Input weights as PyTorch lays them out.
        bias: What to add, `(k·hidden,)`.
    """
    weights = torch.cat([w_ih, bias.unsqueeze(1)], 1)
    if steps.kind == "gru":
        size = steps.h.shape[2]
        weights = torch.cat([weights[2 * size :], weights[: 2 * size]])
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
    apart = bias[1].clone()  # a GRU's n has its hidden bias inside the product with r
    if steps.kind == "gru":
        apart[2 * size :] = 0.0
    enter_inputs(steps, inputs, w_ih, bias[0] + apart)
    turned = steps.workspace.take("rnn:turned", (size, w_hh.shape[0]), w_hh).copy_(w_hh.t())
    step = {"gru": _gru_step, "lstm": _lstm_step}.get(steps.kind, _rnn_step)
    for t in range(length):
        b = steps.at(t)
        step(steps, t, b, turned, bias[1])
        if b < windows:
            steps.h[b:, t + 1] = steps.h[b:, t]
            if steps.cells is not None:
                steps.cells[b:, t + 1] = steps.cells[b:, t]


def _gru_step(steps: Steps, t: int, b: int, turned: Tensor, bias: Tensor) -> None:
    size = turned.shape[0]
    h, gates = steps.h[:b, t], steps.gates[:b, t]
    n, rz, hn = gates[:, :size], gates[:, size : 3 * size], gates[:, 3 * size :]
    rz.addmm_(h, turned[:, : 2 * size]).sigmoid_()
    torch.addmm(bias[2 * size :], h, turned[:, 2 * size :], out=hn)
    n.addcmul_(rz[:, :size], hn).tanh_()
    torch.lerp(n, h, rz[:, size:], out=steps.h[:b, t + 1])


def _lstm_step(steps: Steps, t: int, b: int, turned: Tensor, bias: Tensor) -> None:
    size = turned.shape[0]
    assert steps.cells is not None  # noqa: S101 - an LSTM's buffers have cells
    gates = steps.gates[:b, t]
    gates.addmm_(steps.h[:b, t], turned)
    gates[:, : 2 * size].sigmoid_()
    gates[:, 2 * size : 3 * size].tanh_()
    gates[:, 3 * size :].sigmoid_()
    i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
    c = steps.cells[:b, t + 1]
    torch.mul(f, steps.cells[:b, t], out=c)
    c.addcmul_(i, g)
    h = steps.h[:b, t + 1]
    torch.tanh(c, out=h)
    h.mul_(o)


def _rnn_step(steps: Steps, t: int, b: int, turned: Tensor, bias: Tensor) -> None:
    activate = torch.tanh if steps.kind == "rnn_tanh" else torch.relu
    steps.h[:b, t + 1] = activate(steps.gates[:b, t].addmm_(steps.h[:b, t], turned))


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
    steps.gates[:, length].zero_()
    step = {"gru": _gru_back, "lstm": _lstm_back}.get(steps.kind, _rnn_back)
    for t in range(length - 1, -1, -1):
        b = steps.at(t)
        if d_out is not None:
            dh[:b] += d_out[:b, t]
        step(steps, t, dh[:b], dc[:b], w_hh)
        if b < windows:
            steps.gates[b:, t].zero_()
    return dh, dc if steps.kind == "lstm" else None


def _gru_back(steps: Steps, t: int, dh: Tensor, dc: Tensor, w_hh: Tensor) -> None:
    b, size = dh.shape
    take = steps.workspace.take
    one, two = take("rnn:one", (b, size), dh), take("rnn:two", (b, size), dh)
    gates = steps.gates[:b, t]
    n, r, z, hn = (gates[:, k * size : (k + 1) * size] for k in range(4))
    torch.sub(steps.h[:b, t], n, out=one)
    one.mul_(dh).mul_(z)
    torch.mul(dh, n, out=two)
    torch.addcmul(dh, two, n, value=-1, out=two)  # dh·(1 − n²)
    torch.addcmul(two, two, z, value=-1, out=n)  # dn
    dh.mul_(z)
    torch.addcmul(one, one, z, value=-1, out=z)  # dz
    torch.mul(n, r, out=two)  # d of the hidden part of n
    torch.mul(two, hn, out=one)
    torch.addcmul(one, one, r, value=-1, out=r)  # dr
    hn.copy_(two)
    dh.addmm_(gates[:, size:], w_hh)


def _lstm_back(steps: Steps, t: int, dh: Tensor, dc: Tensor, w_hh: Tensor) -> None:
    b, size = dh.shape
    assert steps.cells is not None  # noqa: S101 - an LSTM's buffers have cells
    take = steps.workspace.take
    one, two = take("rnn:one", (b, size), dh), take("rnn:two", (b, size), dh)
    gates = steps.gates[:b, t]
    i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
    torch.tanh(steps.cells[:b, t + 1], out=one)
    torch.mul(dh, o, out=two)
    dc.add_(two)
    torch.mul(two, one, out=dh)  # dh·o·tanh(c)
    dc.addcmul_(dh, one, value=-1)  # … so dc += dh·o·(1 − tanh²)
    torch.addcmul(dh, dh, o, value=-1, out=o)  # do
    torch.mul(dc, i, out=two)
    torch.mul(two, g, out=one)  # dc·i·g
    torch.mul(g, g, out=g)
    torch.addcmul(two, two, g, value=-1, out=g)  # dg
    torch.addcmul(one, one, i, value=-1, out=i)  # di
    dc.mul_(f)
    torch.mul(dc, steps.cells[:b, t], out=one)
    torch.addcmul(one, one, f, value=-1, out=f)  # df
    torch.mm(gates, w_hh, out=dh)


def _rnn_back(steps: Steps, t: int, dh: Tensor, dc: Tensor, w_hh: Tensor) -> None:
    b = dh.shape[0]
    after, gates = steps.h[:b, t + 1], steps.gates[:b, t]
    if steps.kind == "rnn_tanh":
        torch.mul(after, after, out=gates)
        torch.addcmul(dh, dh, gates, value=-1, out=gates)
    else:
        torch.mul(dh, after > 0, out=gates)
    torch.mm(gates, w_hh, out=dh)
