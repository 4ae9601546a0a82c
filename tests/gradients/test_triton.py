"""Triton's recurrences: in its interpreter where Triton is installed, on a GPU where there is one.

The interpreter runs each program's steps one after another on the CPU: it checks the arithmetic,
the masks and the order of what is written, and cannot show what threads would do.
"""

import copy
import dataclasses
import importlib.util
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sequester.gradients import clipped_sum, native, oracle, recurrence
from sequester.gradients.layers import recurrent
from sequester.gradients.recurrence import WIDTH, Steps
from sequester.gradients.workspace import Workspace
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import First, Packed, Sequence, Wide

triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: its recurrences are checked where it is",
)
gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: sums on one are checked where there is one"
)


@pytest.fixture(scope="module")
def interpreted():
    """A copy of the module whose kernels Triton interprets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec = importlib.util.find_spec("sequester.gradients.triton_recurrence")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def buffers(kind, windows, length, size, running):
    """Buffers full of NaN but for the initial states, and everything else a recurrence needs."""
    torch.manual_seed(size)
    steps = Steps(
        kind,
        h=torch.full((windows, length + 1, size), torch.nan),
        gates=torch.full((windows, length + 1, WIDTH[kind] * size), torch.nan),
        cells=torch.full((windows, length + 1, size), torch.nan) if kind == "lstm" else None,
        running=running,
        workspace=Workspace(),
    )
    steps.h[:, 0] = torch.randn(windows, size)
    if steps.cells is not None:
        steps.cells[:, 0] = torch.randn(windows, size)
    rows = (3 if kind == "gru" else 4) * size
    inputs = torch.randn(windows, length + 1, 4)
    inputs[..., 3] = 1.0
    weights = torch.randn(rows, 3), torch.randn(rows, size) / size**0.5
    return steps, inputs, *weights, (torch.randn(rows), torch.randn(rows))


def doubled(value):
    if isinstance(value, Tensor):
        return value.double()
    if isinstance(value, tuple):
        return tuple(doubled(part) for part in value)
    if isinstance(value, Steps):
        parts = {k: doubled(getattr(value, k)) for k in ("h", "gates", "cells")}
        return dataclasses.replace(value, **parts, workspace=Workspace())
    return value


# Hidden sizes beside and across the tiles; windows that fill no block, or more than one.
SHAPES = [
    (1, 3, 1, None),
    (17, 3, 16, None),
    (21, 3, 33, [21, 18, 2]),
    (2, 1, 128, [2]),
]


@triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_tape_and_gradients_are_those_of_the_pure_path(interpreted, kind, shape):
    windows, length, size, running = shape
    steps, inputs, w_ih, w_hh, bias = buffers(kind, windows, length, size, running)
    d_out = torch.randn(length, windows, size).transpose(0, 1) if windows > 1 else None
    d_cell = torch.randn(windows, size) if kind == "lstm" else None
    gradients = (d_out, torch.randn(windows, size), d_cell)
    whole = doubled(steps)
    single = copy.deepcopy(steps)
    ours = native.Triton(interpreted)
    ours.recur(steps, inputs, w_ih, w_hh, bias)
    recurrence.forward(whole, *doubled((inputs, w_ih, w_hh, bias)))
    recurrence.forward(single, inputs, w_ih, w_hh, bias)
    lengths = torch.full((windows,), length)
    if running is not None:
        lengths = (torch.tensor(running)[:, None] > torch.arange(windows)).sum(0)
    live = torch.arange(length) < lengths[:, None]

    def agree(found, *expected):
        for want in expected:
            assert float((found - want).double().norm() / want.double().norm()) < 1e-5

    agree(steps.h, single.h, whole.h)
    agree(*(s.gates[:, :length][live] for s in (steps, single, whole)))
    if steps.cells is not None:
        agree(steps.cells, single.cells, whole.cells)
    first = ours.recur_back(steps, w_hh, gradients)
    second = recurrence.backward(single, w_hh, *gradients)
    third = recurrence.backward(whole, *doubled((w_hh, *gradients)))
    agree(steps.gates, single.gates, whole.gates)
    agree(first[0], second[0], third[0])
    if kind == "lstm":
        agree(first[1], second[1], third[1])
    assert not steps.gates[:, length].any()
    assert not steps.gates[:, :length][~live].any()


@triton
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_one_windows_nan_stays_in_its_rows(interpreted, kind):
    steps, inputs, w_ih, w_hh, bias = buffers(kind, 6, 2, 5, None)
    inputs[2, 0, 0] = torch.nan
    ours = native.Triton(interpreted)
    ours.recur(steps, inputs, w_ih, w_hh, bias)
    dh, _ = ours.recur_back(steps, w_hh, (torch.randn(6, 2, 5), None, None))
    for found in (steps.h[:, 1:], steps.gates, dh):
        odd = found.isnan().flatten(1).any(1)
        assert odd.tolist() == [False, False, True, False, False, False]


MODELS = {
    "gru both ways": lambda: Sequence(
        First(nn.GRU(8, 5, 2, batch_first=True, bidirectional=True)), 10
    ),
    "lstm": lambda: Sequence(First(nn.LSTM(8, 17, batch_first=True)), 17),
    "packed gru": lambda: Sequence(Packed(nn.GRU), 10),
    "packed lstm": lambda: Sequence(Packed(nn.LSTM), 10),
}


@triton
@pytest.mark.parametrize("name", MODELS)
def test_sums_agree_with_the_oracle(interpreted, name, monkeypatch, caplog):
    torch.manual_seed(5)
    model, lot = MODELS[name](), ragged([2, 0, 15], steps=2)
    ours = native.Triton(interpreted)
    monkeypatch.setattr(recurrent, "kernels", lambda device: ours)
    found = clipped_sum(model, classify, lot, 0.3)
    assert relative_error(found, oracle.clipped_sum(model, classify, lot, 0.3)) < 1e-5
    assert set(ours._trusted.values()) == {True}
    assert not caplog.records


@pytest.mark.parametrize("fault", ["differs", "nan", "raises"])
def test_a_kernel_that_fails_its_check_is_left_to_pytorch(fault, caplog):
    def difference(steps):
        if fault == "raises":
            raise RuntimeError("no compiler for this GPU")
        return 0.1 if fault == "differs" else float("nan")

    def never(*args):
        raise AssertionError("ran a kernel that failed its check")

    ours = native.Triton(SimpleNamespace(difference=difference, forward=never, backward=never))
    for _ in range(2):
        steps, inputs, w_ih, w_hh, bias = buffers("gru", 4, 2, 3, None)
        whole = doubled(steps)
        ours.recur(steps, inputs, w_ih, w_hh, bias)
        recurrence.forward(whole, *doubled((inputs, w_ih, w_hh, bias)))
        torch.testing.assert_close(steps.h.double(), whole.h, rtol=1e-5, atol=1e-6)
        ours.recur_back(steps, w_hh, (None, torch.randn(4, 3), None))
    assert len(caplog.records) == 1
    assert "Triton kernel of a gru" in caplog.text


@triton
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_broken_kernel_fails_its_check(interpreted, kind, monkeypatch):
    steps = buffers(kind, 4, 2, 3, [4, 2])[0]
    assert interpreted.difference(steps) < 1e-5
    right = interpreted.backward

    def wrong(steps, w_hh, d_out, dh, dc):
        right(steps, w_hh, d_out, dh, dc)
        steps.gates[1, 1, 0] *= 1.01

    monkeypatch.setattr(interpreted, "backward", wrong)
    assert interpreted.difference(steps) > 1e-5


@gpu
@pytest.mark.parametrize("name", [*MODELS, "wide"])
def test_sums_on_a_gpu_are_those_of_the_cpu(name, caplog):
    torch.manual_seed(6)
    wide = name == "wide"
    model = Wide(300) if wide else MODELS[name]()
    lot = ragged([3, 0, 1, 40, 2], steps=9, tokens=300 if wide else None)

    def loss(model, lot):
        if not wide:
            return classify(model, lot)
        each = F.cross_entropy(model(lot.x).flatten(0, 1), lot.x.flatten(), reduction="none")
        return each.view(lot.x.shape).sum(1)

    want, near = oracle.clipped_sum(model, loss, lot, 0.3), clipped_sum(model, loss, lot, 0.3)
    parts = {k: v.cuda() for k, v in vars(lot).items() if isinstance(v, Tensor)}
    found = clipped_sum(model.cuda(), loss, dataclasses.replace(lot, **parts), 0.3)
    assert all(value.is_cuda for value in found.sum.values())
    found = dataclasses.replace(found, sum={k: v.cpu() for k, v in found.sum.items()})
    assert relative_error(found, want) < 1e-5
    assert relative_error(found, near) < 1e-5
    assert not caplog.records
