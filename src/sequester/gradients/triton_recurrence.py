"""Recurrences on a GPU: the steps of `gradients.recurrence` in one Triton kernel each way.

Layouts are those of `gradients.recurrence`. A program carries ROWS windows through all steps, so
windows never meet, and nothing is launched between steps. What one step writes the next one reads
as other threads' work: hence the barriers, which order memory within a program.

Checked against plain PyTorch and the float64 oracle in Triton's interpreter (which runs no threads
and cannot miss a barrier), and compiled for GPUs of 8.0 and 9.0, but not yet measured on a GPU.
`difference` repeats the comparison on the GPU at hand before the engine trusts these kernels.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sequester.gradients import recurrence
from sequester.gradients.recurrence import WIDTH, Steps
from sequester.gradients.workspace import Workspace

# Windows of one program, columns computed together, and depth of a product taken at once.
# `num_stages=1`: no load of a step may be started before the barrier that ends the one before.
_TILES = {"ROWS": 16, "COLUMNS": 32, "DEPTH": 32, "num_warps": 4, "num_stages": 1}
_LENGTHS = ["windows", "steps"]  # chunks differ in them, and share one compiled kernel


def forward(steps: Steps, w_hh: Tensor, b_hh: Tensor) -> None:
    """Fill the buffers from the initial state on.

    Args:
        steps: A GRU's or LSTM's buffers, float32 and contiguous; gates hold the inputs' part
            (`recurrence.enter_inputs`), an LSTM's with both biases.
        w_hh: Hidden weights.
        b_hh: Hidden bias, added here for a GRU alone.
    """
    windows, length, size = steps.h.shape[0], steps.h.shape[1] - 1, w_hh.shape[1]
    hidden, running = w_hh.contiguous(), _running(steps)
    shape = (steps.h if running is None else running, windows, length, size)
    with torch.cuda.device_of(steps.h):
        if steps.kind == "gru":
            _gru_forward[_grid(windows)](
                steps.h, steps.gates, hidden, b_hh.contiguous(), *shape,
                RAGGED=running is not None, **_TILES,
            )  # fmt: skip
        else:
            _lstm_forward[_grid(windows)](
                steps.h, steps.cells, steps.gates, hidden, *shape,
                RAGGED=running is not None, **_TILES,
            )  # fmt: skip


def backward(
    steps: Steps, w_hh: Tensor, d_out: Tensor | None, dh: Tensor, dc: Tensor | None
) -> None:
    """Turn `gates` into gradients of the pre-activations.

    Args:
        steps: Buffers as `forward` left them.
        w_hh: Hidden weights.
        d_out: Gradient of each step's output, `(windows, steps, hidden)`, last stride 1; or None.
        dh: Gradient of the last state, contiguous; becomes that of the initial state.
        dc: Likewise of the cells; not read for a GRU.
    """
    windows, length, size = steps.h.shape[0], steps.h.shape[1] - 1, w_hh.shape[1]
    hidden, running = w_hh.contiguous(), _running(steps)
    steps.gates[:, length].zero_()
    out = dh if d_out is None else d_out
    given = (out, out.stride(0), out.stride(1) if d_out is not None else 0)
    shape = (steps.h if running is None else running, windows, length, size)
    choices = {"RAGGED": running is not None, "GIVEN": d_out is not None, **_TILES}
    with torch.cuda.device_of(steps.h):
        if steps.kind == "gru":
            _gru_backward[_grid(windows)](
                steps.h, steps.gates, hidden, *given, dh, *shape, **choices
            )
        else:
            _lstm_backward[_grid(windows)](
                steps.cells, steps.gates, hidden, *given, dh, dc, *shape, **choices
            )


def difference(like: Steps) -> float:
    """How far these kernels are from plain PyTorch for buffers like those.

    That is the largest relative error of states and of gradients of gates and initial states, NaN
    if one of them is.

    Args:
        like: Whose kind, device, size and raggedness to take; its numbers are not read.
    """
    size, device = like.h.shape[2], like.h.device
    windows, length = _TILES["ROWS"] + 1, 3
    running = None if like.running is None else [windows, 2, 1]

    def wave(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), device=device).float().sin().view(shape)

    rows = 3 * size if like.kind == "gru" else 4 * size
    w_hh, bias = wave(rows, size) / size**0.5, (wave(rows), wave(rows))
    inputs, d_out, last = (
        wave(windows, length + 1, 2),
        wave(windows, length, size),
        wave(windows, size),
    )
    inputs[..., 1] = 1.0
    found = []
    for by_triton in (True, False):
        steps = Steps(
            like.kind,
            h=wave(windows, length + 1, size),
            gates=wave(windows, length + 1, WIDTH[like.kind] * size),
            cells=wave(windows, length + 1, size) if like.kind == "lstm" else None,
            running=running,
            workspace=Workspace(),
        )
        if by_triton:
            apart = bias[1] if like.kind == "lstm" else 0.0
            recurrence.enter_inputs(steps, inputs, wave(rows, 1), bias[0] + apart)
            forward(steps, w_hh, bias[1])
            ends: tuple[Tensor, Tensor | None] = (last.clone(), last.clone())
            backward(steps, w_hh, d_out, *ends)
        else:
            recurrence.forward(steps, inputs, wave(rows, 1), w_hh, bias)
            ends = recurrence.backward(steps, w_hh, d_out, last, last)
        found.append((steps.h, steps.cells, steps.gates, *ends))
    errors = [
        (ours - theirs).norm() / theirs.norm()
        for ours, theirs in zip(*found, strict=True)
        if ours is not None and theirs is not None
    ]
    return float(torch.stack(errors).max())  # NaN if any is


def _grid(windows: int) -> tuple[int]:
    return (triton.cdiv(windows, _TILES["ROWS"]),)


def _running(steps: Steps) -> Tensor | None:
    if steps.running is None:
        return None
    return torch.tensor(steps.running, dtype=torch.int32, device=steps.h.device)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    square = x * x  # near zero by a polynomial: the quotient would lose a small x's digits
    p = square * -5.70498872745e-3 + 2.06390887954e-2
    p = p * square - 5.37397155531e-2
    p = p * square + 1.33314422036e-1
    p = p * square - 3.33332819422e-1
    return tl.where(square < 0.390625, p * square * x + x, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def _alive(row, windows, running, t, RAGGED: tl.constexpr):
    """Which of a program's windows have step t."""
    live = row < windows
    if RAGGED:
        live = row < tl.load(running + t)
    return live


@triton.jit
def _read(left, live, deep, depth):
    """`left[row][deep]`, zero outside; `left` points at each row's first number."""
    return tl.load(
        left[:, None] + deep[None, :], mask=live[:, None] & (deep < depth)[None, :], other=0.0
    )


@triton.jit
def _weights(w, deep, depth, along, column, size, across):
    """`w[deep · along + column · across]`, zero outside."""
    inside = (deep < depth)[:, None] & (column < size)[None, :]
    return tl.load(w + deep[:, None] * along + column[None, :] * across, mask=inside, other=0.0)


@triton.jit(do_not_specialize=_LENGTHS)
def _gru_forward(
    h, gates, w_hh, b_hh, running, windows, steps, size,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = row.to(tl.int64) * (steps + 1)
    for t in range(0, steps):
        live = _alive(row, windows, running, t, RAGGED)
        before = h + (place + t) * size
        gate = gates + (place + t) * 4 * size
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            r = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
            z = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
            hn = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
            for start in range(0, size, DEPTH):
                deep = start + tl.arange(0, DEPTH)
                a = _read(before, live, deep, size)
                w = w_hh
                r = tl.dot(a, _weights(w, deep, size, 1, column, size, size), r, "ieee")
                w += size * size
                z = tl.dot(a, _weights(w, deep, size, 1, column, size, size), z, "ieee")
                w += size * size
                hn = tl.dot(a, _weights(w, deep, size, 1, column, size, size), hn, "ieee")
            inside = column < size
            r += tl.load(b_hh + column, mask=inside, other=0.0)[None, :]
            z += tl.load(b_hh + size + column, mask=inside, other=0.0)[None, :]
            hn += tl.load(b_hh + 2 * size + column, mask=inside, other=0.0)[None, :]
            r = _sigmoid(r + _read(gate + size, live, column, size))
            z = _sigmoid(z + _read(gate + 2 * size, live, column, size))
            n = _tanh(_read(gate, live, column, size) + r * hn)
            here = live[:, None] & inside[None, :]
            at = gate[:, None] + column[None, :]
            tl.store(at, n, mask=here)
            tl.store(at + size, r, mask=here)
            tl.store(at + 2 * size, z, mask=here)
            tl.store(at + 3 * size, hn, mask=here)
            state = _read(before, row < windows, column, size)
            after = tl.where(live[:, None], n + z * (state - n), state)
            whole = (row < windows)[:, None] & inside[None, :]
            tl.store(before[:, None] + size + column[None, :], after, mask=whole)
        tl.debug_barrier()  # the next step reads all columns of h


@triton.jit(do_not_specialize=_LENGTHS)
def _lstm_forward(
    h, cells, gates, w_hh, running, windows, steps, size,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = row.to(tl.int64) * (steps + 1)
    for t in range(0, steps):
        live = _alive(row, windows, running, t, RAGGED)
        before = h + (place + t) * size
        cell = cells + (place + t) * size
        gate = gates + (place + t) * 4 * size
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            i = _read(gate, live, column, size)
            f = _read(gate + size, live, column, size)
            g = _read(gate + 2 * size, live, column, size)
            o = _read(gate + 3 * size, live, column, size)
            for start in range(0, size, DEPTH):
                deep = start + tl.arange(0, DEPTH)
                a = _read(before, live, deep, size)
                w = w_hh
                i = tl.dot(a, _weights(w, deep, size, 1, column, size, size), i, "ieee")
                w += size * size
                f = tl.dot(a, _weights(w, deep, size, 1, column, size, size), f, "ieee")
                w += size * size
                g = tl.dot(a, _weights(w, deep, size, 1, column, size, size), g, "ieee")
                w += size * size
                o = tl.dot(a, _weights(w, deep, size, 1, column, size, size), o, "ieee")
            i = _sigmoid(i)
            f = _sigmoid(f)
            g = _tanh(g)
            o = _sigmoid(o)
            here = live[:, None] & (column < size)[None, :]
            at = gate[:, None] + column[None, :]
            tl.store(at, i, mask=here)
            tl.store(at + size, f, mask=here)
            tl.store(at + 2 * size, g, mask=here)
            tl.store(at + 3 * size, o, mask=here)
            old = _read(cell, row < windows, column, size)
            state = _read(before, row < windows, column, size)
            c = tl.where(live[:, None], f * old + i * g, old)
            after = tl.where(live[:, None], o * _tanh(c), state)
            whole = (row < windows)[:, None] & (column < size)[None, :]
            tl.store(cell[:, None] + size + column[None, :], c, mask=whole)
            tl.store(before[:, None] + size + column[None, :], after, mask=whole)
        tl.debug_barrier()  # the next step reads all columns of h


@triton.jit(do_not_specialize=_LENGTHS)
def _gru_backward(
    h, gates, w_hh, d_out, d_window, d_step, dh, running, windows, steps, size,
    RAGGED: tl.constexpr, GIVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wide = row.to(tl.int64)
    place = wide * (steps + 1)
    grad = dh + wide * size
    for back in range(0, steps):
        t = steps - 1 - back
        live = _alive(row, windows, running, t, RAGGED)
        before = h + (place + t) * size
        gate = gates + (place + t) * 4 * size
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            # Windows without this step read zeros, so that their gates' gradients are zero.
            q = _read(grad, live, column, size)
            if GIVEN:
                q += _read(d_out + wide * d_window + t * d_step, live, column, size)
            n = _read(gate, live, column, size)
            r = _read(gate + size, live, column, size)
            z = _read(gate + 2 * size, live, column, size)
            hn = _read(gate + 3 * size, live, column, size)
            dn = q * (1.0 - z) * (1.0 - n * n)
            dz = q * (_read(before, live, column, size) - n) * z * (1.0 - z)
            whole = (row < windows)[:, None] & (column < size)[None, :]
            at = gate[:, None] + column[None, :]
            tl.store(at, dn, mask=whole)
            tl.store(at + size, dn * hn * r * (1.0 - r), mask=whole)
            tl.store(at + 2 * size, dz, mask=whole)
            tl.store(at + 3 * size, dn * r, mask=whole)
            here = live[:, None] & (column < size)[None, :]
            tl.store(grad[:, None] + column[None, :], q * z, mask=here)
        tl.debug_barrier()  # the product reads all columns of the gates' gradients
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            total = _read(grad, live, column, size)
            for start in range(0, 3 * size, DEPTH):
                deep = start + tl.arange(0, DEPTH)
                a = _read(gate + size, live, deep, 3 * size)
                w = _weights(w_hh, deep, 3 * size, size, column, size, 1)
                total = tl.dot(a, w, total, "ieee")
            here = live[:, None] & (column < size)[None, :]
            tl.store(grad[:, None] + column[None, :], total, mask=here)
        tl.debug_barrier()  # the step before reads dh


@triton.jit(do_not_specialize=_LENGTHS)
def _lstm_backward(
    cells, gates, w_hh, d_out, d_window, d_step, dh, dc, running, windows, steps, size,
    RAGGED: tl.constexpr, GIVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wide = row.to(tl.int64)
    place = wide * (steps + 1)
    grad = dh + wide * size
    grad_cell = dc + wide * size
    for back in range(0, steps):
        t = steps - 1 - back
        live = _alive(row, windows, running, t, RAGGED)
        cell = cells + (place + t) * size
        gate = gates + (place + t) * 4 * size
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            # Windows without this step read zeros, so that their gates' gradients are zero.
            q = _read(grad, live, column, size)
            if GIVEN:
                q += _read(d_out + wide * d_window + t * d_step, live, column, size)
            i = _read(gate, live, column, size)
            f = _read(gate + size, live, column, size)
            g = _read(gate + 2 * size, live, column, size)
            o = _read(gate + 3 * size, live, column, size)
            c = _tanh(_read(cell + size, live, column, size))
            d = _read(grad_cell, live, column, size) + q * o * (1.0 - c * c)
            whole = (row < windows)[:, None] & (column < size)[None, :]
            at = gate[:, None] + column[None, :]
            old = _read(cell, live, column, size)
            tl.store(at, d * g * i * (1.0 - i), mask=whole)
            tl.store(at + size, d * old * f * (1.0 - f), mask=whole)
            tl.store(at + 2 * size, d * i * (1.0 - g * g), mask=whole)
            tl.store(at + 3 * size, q * c * o * (1.0 - o), mask=whole)
            here = live[:, None] & (column < size)[None, :]
            tl.store(grad_cell[:, None] + column[None, :], d * f, mask=here)
        tl.debug_barrier()  # the product reads all columns of the gates' gradients
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
            for start in range(0, 4 * size, DEPTH):
                deep = start + tl.arange(0, DEPTH)
                a = _read(gate, live, deep, 4 * size)
                w = _weights(w_hh, deep, 4 * size, size, column, size, 1)
                total = tl.dot(a, w, total, "ieee")
            here = live[:, None] & (column < size)[None, :]
            tl.store(grad[:, None] + column[None, :], total, mask=here)
        tl.debug_barrier()  # the step before reads dh
