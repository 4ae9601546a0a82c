"""`nn.GRU`, `nn.LSTM` and `nn.RNN` as the user built them: layers, directions, packed sequences.

PyTorch's own recurrences add people together inside their backward pass; here each layer and
direction runs through `gradients.recurrence` (or its compiled twin), and the products
`Dᵀ[h | x | 1]` over all of a person's rows give that person's gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients import recurrence
from sequester.gradients.layers.packing import lengths_of, unpacked_owners
from sequester.gradients.layout import laid, shaped
from sequester.gradients.native import kernels
from sequester.gradients.recurrence import Steps
from sequester.gradients.rows import Rows, products, sums
from sequester.gradients.tape import RULES, Tape, mixing, record


@dataclass(frozen=True)
class _Spec:
    """One layer and direction."""

    kind: str
    weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None]
    rows: Rows
    running: list[int] | None
    place: str
    tape: Tape


class _Recurrence(torch.autograd.Function):
    sequester_tape = True

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, x: Tensor, h0: Tensor, c0: Tensor | None, spec: _Spec
    ) -> Any:
        """Outputs `(windows, steps, hidden)`, the last state and the last cell."""
        w_ih, w_hh, b_ih, b_hh = (None if w is None else w.detach() for w in spec.weights)
        if w_ih is None or w_hh is None:
            raise spec.tape.unsupported("has no weights")
        windows, length, features = x.shape
        size, width = w_hh.shape[1], recurrence.WIDTH[spec.kind]
        take = spec.tape.book.workspace.take
        cells = take(spec.place + "c", (windows, length + 1, size), x) if c0 is not None else None
        steps = Steps(
            kind=spec.kind,
            h=take(spec.place + "h", (windows, length + 1, size), x),
            gates=take(spec.place + "g", (windows, length + 1, width * size), x),
            cells=cells,
            running=spec.running,
            workspace=spec.tape.book.workspace,
        )
        steps.h[:, 0] = h0
        if cells is not None and c0 is not None:
            cells[:, 0] = c0
        inputs = take(spec.place + "x", (windows, length + 1, features + 1), x)
        inputs[:, :length, :features] = x
        inputs[:, length, :features] = 0.0
        inputs[..., features] = 1.0
        zero = w_hh.new_zeros(w_hh.shape[0])
        bias = (zero if b_ih is None else b_ih, zero if b_hh is None else b_hh)
        kernels(x.device).recur(steps, inputs, w_ih, w_hh, bias)
        ctx.steps, ctx.inputs, ctx.spec = steps, inputs, spec
        ctx.save_for_backward(w_ih, w_hh)
        last_cell = cells[:, length].clone() if cells is not None else None
        return steps.h[:, 1:], steps.h[:, length].clone(), last_cell

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of inputs and initial states; each person's weights go into the book."""
        d_out, d_last, d_cell = (*gradients, None)[:3]
        w_ih, w_hh = ctx.saved_tensors
        steps, spec = ctx.steps, ctx.spec
        dh, dc = kernels(w_hh.device).recur_back(steps, w_hh, (d_out, d_last, d_cell))
        _enter(spec, steps, ctx.inputs)
        back = None
        if ctx.needs_input_grad[1]:
            size = w_hh.shape[1]
            if spec.kind == "gru":
                turned = torch.cat([w_ih[2 * size :], w_ih[: 2 * size]])
                back = steps.gates[:, :-1, : 3 * size] @ turned
            else:
                back = steps.gates[:, :-1] @ w_ih
        first = dh.clone() if ctx.needs_input_grad[2] else None
        cell = dc.clone() if dc is not None and ctx.needs_input_grad[3] else None
        return None, back, first, cell, None


def _enter(spec: _Spec, steps: Steps, inputs: Tensor) -> None:
    """Enter each person's four gradients."""
    book, owners = spec.tape.book, spec.rows.owners
    w_ih, w_hh, b_ih, b_hh = spec.weights
    size, gru = w_hh.shape[1], spec.kind == "gru"
    d, order = steps.gates, owners.order
    h = steps.h
    if order is not None:
        d, h, inputs = d[order], h[order], inputs[order]
    learns = [w is not None and spec.tape.is_weight(w) for w in spec.weights]
    if learns[1]:
        out, fresh = book.target(w_hh)
        products(d[..., size:] if gru else d, h, owners, out)
        if not fresh:
            book.add(w_hh, out)
    if not (learns[0] or learns[2] or learns[3]):
        return
    width, features = w_ih.shape[0], inputs.shape[2]
    # The book keeps the first use of a weight as it lies here; later ones are added to it at once.
    kept = learns[0] and not book.holds(w_ih)
    name = spec.place + "dx" if kept else "rnn:dx"
    numbers = book.workspace.take(name, (book.people, width * features), d)
    whole = shaped(numbers, (width, features))
    if gru:  # gates lie as (n, r, z, hidden part of n), and PyTorch wants (r, z, n)
        products(d[..., size : 3 * size], inputs, owners, whole[:, : 2 * size])
        products(d[..., :size], inputs, owners, whole[:, 2 * size :])
    else:
        products(d, inputs, owners, whole)
    if learns[0]:
        book.add(w_ih, laid(whole[..., :-1]))
    last = whole[..., -1]
    if b_ih is not None and learns[2]:
        book.add(b_ih, last.clone())
    if b_hh is not None and learns[3] and gru:
        n = sums(d[..., 3 * size :].sum(1), owners)
        book.add(b_hh, torch.cat([last[:, : 2 * size], n], 1))
    elif b_hh is not None and learns[3]:
        book.add(b_hh, last.clone())


KINDS = {
    torch.gru: "gru",
    torch.lstm: "lstm",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}


@dataclass(frozen=True)
class _Call:
    """One call of `torch.gru` and its kin, its arguments sorted out.

    Attributes:
        x: `(windows, steps, features)`.
        running: Windows left at each step of a packed sequence, else None.
    """

    kind: str
    x: Tensor
    rows: Rows
    running: list[int] | None
    states: tuple[Tensor, ...]
    flat: list[Tensor]
    biased: bool
    layers: int
    dropout: float
    directions: int


def _run(tape: Tape, call: _Call) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """All layers and directions; labelled outputs and last states."""
    per = 4 if call.biased else 2
    if any(tape.state(weight) is not None for weight in call.flat):
        raise tape.unsupported("has weights computed from people's data")
    if len(call.flat) != per * call.layers * call.directions:
        raise tape.unsupported("has a projection (proj_size), which the fast engine has not")
    x, last, cells = call.x, [], []
    for layer in range(call.layers):
        outputs = []
        for direction in range(call.directions):
            index = layer * call.directions + direction
            weights = (*call.flat[index * per : (index + 1) * per], None, None)[:4]
            with tape:
                start = [state[index] for state in call.states]
            for state in start:
                held = tape.rows(state)
                if held is not None and (held.axis != 0 or not held.matches(call.rows)):
                    raise tape.unsupported("begins with states that lie other than its windows")
            given = x if direction == 0 else _turned(tape, x, call)
            out, h, c = _one(tape, call, given, start, weights)
            outputs.append(out if direction == 0 else _turned(tape, out, call))
            last.append(h)
            cells.extend([] if c is None else [c])
        with tape:
            x = outputs[0] if call.directions == 1 else torch.cat(outputs, dim=-1)
            if call.dropout and layer < call.layers - 1:
                x = F.dropout(x, call.dropout, training=True)
    return x, last, cells


def _one(
    tape: Tape, call: _Call, x: Tensor, start: list[Tensor], weights: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = call.rows
    begun = [tape.attach(s, -2, rows) if tape.is_weight(s) else s for s in start]
    place = f"rnn:{tape.count('rnn')}:"
    spec = _Spec(call.kind, weights, Rows(0, rows.entries), call.running, place, tape)
    out, h, c = record(_Recurrence, tape.root, x, begun[0], (*begun, None)[1], spec)
    for tensor in (out, h, c):
        if tensor is not None:
            tape.label(tensor, rows)
    tape.keep(out)
    return out, h, c


def _turned(tape: Tape, x: Tensor, call: _Call) -> Tensor:
    """Each window's own steps in reverse order."""
    if call.running is None:
        return tape.label(x.flip(1), call.rows)
    lengths = lengths_of(call.running, x.shape[0]).to(x.device)
    steps = torch.arange(x.shape[1], device=x.device)
    index = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    picked = x.gather(1, index[..., None].expand(x.shape))
    return tape.label(picked, call.rows)


def recur(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Follow `torch.gru`, `torch.lstm`, `torch.rnn_tanh` or `torch.rnn_relu`."""
    kind = KINDS[func]
    if not isinstance(args[3], bool):
        return _packed(tape, kind, args)
    x, hx, flat, biased, layers, dropout, train, both, batch_first = args
    rows = tape.state(x)
    if not isinstance(rows, Rows) or x.dim() != 3:
        return mixing(tape, func, args, kwargs)
    if 0 in (x.shape[0 if rows.axis else 1], x.shape[2]):
        raise tape.unsupported("runs over no steps or no features")
    if rows.axis != (0 if batch_first else 1):
        raise tape.unsupported("runs over something other than windows of steps")
    first = rows.moved(0)
    if not batch_first:
        x = tape.label(x.transpose(0, 1), first)
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    call = _Call(kind, x, first, None, states, list(flat), biased, layers,
                 dropout if train else 0.0, 1 + both)  # fmt: skip
    out, last, cells = _run(tape, call)
    if not batch_first:
        out = tape.label(out.transpose(0, 1), rows.moved(1))
    return (out, *_stacked(tape, last, cells, first))


def _stacked(tape: Tape, last: list[Tensor], cells: list[Tensor], rows: Rows) -> list[Tensor]:
    return [tape.label(torch.stack(part), rows.moved(1)) for part in (last, cells) if part]


def _packed(tape: Tape, kind: str, args: tuple[Any, ...]) -> Any:
    """A packed sequence: pad, run with the windows that are left at each step, pack again."""
    data, sizes, hx, flat, biased, layers, dropout, train, both = args
    owners = unpacked_owners(tape, data, sizes)
    if owners is None:
        raise tape.unsupported("runs over a packed sequence that was not packed here")
    running = sizes.tolist()
    rows = Rows(0, owners)
    steps = torch.arange(len(running))
    kept = steps[None, :] < lengths_of(running, running[0])[:, None]
    window = torch.arange(running[0])
    place = torch.cumsum(sizes, 0) - sizes  # where each step's rows begin
    index = torch.where(kept, place[None, :] + window[:, None], 0).to(data.device)
    kept = kept.to(data.device)  # a packed sequence's sizes lie on the CPU
    x = tape.label(data[index.reshape(-1)].view(*index.shape, -1), rows)
    # Places past a window's end read the first row of the data, whoever's it is: blanked, since a
    # product with zero would let that person's NaN through.
    x = tape.label(x.masked_fill(~kept[..., None], 0.0), rows)
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    call = _Call(kind, x, rows, running, states, list(flat), biased, layers,
                 dropout if train else 0.0, 1 + both)  # fmt: skip
    out, last, cells = _run(tape, call)
    packed = out.transpose(0, 1)[kept.t()]
    tape.label(packed, tape.state(data))
    return (packed, *_stacked(tape, last, cells, rows))


for _function in KINDS:
    RULES[_function] = recur
