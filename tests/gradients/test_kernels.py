"""The compiled kernels and PyTorch give the same numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.gradients import clipped_sum, native, oracle
from sequester.gradients.recurrence import Steps
from sequester.gradients.rows import Owners, products
from sequester.gradients.workspace import Workspace
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import First, Packed, Sequence, Wide

compiled = pytest.mark.skipif(native.describe() != "compiled", reason="no compiled kernels here")


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def both(model, loss, lot, monkeypatch):
    """The sum with compiled kernels, and with PyTorch's."""
    fast = clipped_sum(model, loss, lot, 0.3)
    monkeypatch.setenv("SEQUESTER_NO_NATIVE", "1")
    assert native.describe() == "pytorch"
    return fast, clipped_sum(model, loss, lot, 0.3)


class Wider(Packed):
    def __init__(self, kind):
        nn.Module.__init__(self)
        self.rnn = kind(8, 32, 2, batch_first=True, bidirectional=True)


MODELS = {
    "gru": lambda: Sequence(First(nn.GRU(8, 48, batch_first=True)), 48),
    "lstm": lambda: Sequence(First(nn.LSTM(8, 48, batch_first=True)), 48),
    "both ways": lambda: Sequence(
        First(nn.GRU(8, 16, 2, batch_first=True, bidirectional=True)), 32
    ),
    # Sizes that fill no vector, or a part of the last one.
    "small gru": lambda: Sequence(First(nn.GRU(8, 8, batch_first=True)), 8),
    "odd gru": lambda: Sequence(First(nn.GRU(8, 37, batch_first=True)), 37),
    "least gru": lambda: Sequence(First(nn.GRU(8, 1, batch_first=True)), 1),
    "small lstm": lambda: Sequence(First(nn.LSTM(8, 5, 2, batch_first=True)), 5),
    "odd lstm": lambda: Sequence(First(nn.LSTM(8, 50, batch_first=True)), 50),
    "packed gru": lambda: Sequence(Wider(nn.GRU), 96),
    "packed lstm": lambda: Sequence(Wider(nn.LSTM), 96),
}


@compiled
@pytest.mark.parametrize("counts", [[3, 0, 1, 60, 2], [1], [49]])
@pytest.mark.parametrize("name", MODELS)
def test_recurrences(name, counts, monkeypatch):
    torch.manual_seed(7)
    model, lot = MODELS[name](), ragged(counts, steps=9)
    fast, slow = both(model, classify, lot, monkeypatch)
    assert relative_error(fast, oracle.clipped_sum(model, classify, lot, 0.3)) < 1e-5
    assert max(float((fast.sum[k] - slow.sum[k]).abs().max()) for k in fast.sum) < 1e-6


@compiled
def test_softmax(monkeypatch):
    torch.manual_seed(8)
    model, lot = Wide(331), ragged([2, 1, 5], tokens=331)

    def loss(model, lot):
        each = F.cross_entropy(30 * model(lot.x).flatten(0, 1), lot.x.flatten(), reduction="none")
        return each.view(lot.x.shape).sum(1)

    def steep(model, lot):
        each = F.cross_entropy(model(lot.x).flatten(0, 1), lot.x.flatten(), reduction="none")
        return each.view(lot.x.shape).sum(1)

    with torch.no_grad():
        model.head.weight.mul_(50)
    for chosen in (loss, steep):
        fast, slow = both(model, chosen, lot, monkeypatch)
        assert relative_error(fast, oracle.clipped_sum(model, chosen, lot, 0.3)) < 1e-5
        assert max(float((fast.sum[k] - slow.sum[k]).abs().max()) for k in fast.sum) < 1e-6
        monkeypatch.delenv("SEQUESTER_NO_NATIVE")


@compiled
def test_targets_outside_the_vocabulary_are_refused():
    model, lot = Wide(300), ragged([2], tokens=300)
    with pytest.raises((IndexError, RuntimeError)):
        clipped_sum(
            model,
            lambda m, lot: F.cross_entropy(m(lot.x)[:, 0], lot.target + 300, reduction="none"),
            lot,
            0.3,
        )


@compiled
@pytest.mark.parametrize("numbers", [1, 31, 64, 1000])
@pytest.mark.parametrize("apart", [0, 3])
def test_norms_and_sums(numbers, apart, monkeypatch):
    torch.manual_seed(9)
    flat = torch.randn(5, numbers + apart) * torch.tensor([1e-12, 1.0, 1e12, 0.0, 3.0])[:, None]
    flat = flat[:, :numbers]  # as an input's weights lie before the biases that come after them
    scale, total = torch.rand(5, dtype=torch.float64), torch.rand(numbers, dtype=torch.float64)
    expected = total + (flat.double() * scale[:, None]).sum(0)
    squares = flat.double().square().sum(1)
    for environment in ("", "1"):
        monkeypatch.setenv("SEQUESTER_NO_NATIVE", environment)
        found = total.clone()
        native.kernels(flat.device).add_weighted(found, flat, scale)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-3)
        assert float(((found - expected) / expected.abs().clamp_min(1e9)).abs().max()) < 1e-12
        torch.testing.assert_close(
            native.kernels(flat.device).square_norms(flat), squares, rtol=1e-6, atol=0
        )


@compiled
def test_norms_pass_on_what_is_not_finite():
    flat = torch.ones(3, 100)
    flat[0, 7], flat[1, 99] = float("nan"), float("inf")
    found = native.kernels(flat.device).square_norms(flat)
    assert found[0].isnan()
    assert found[1].isinf()
    assert found[2] == 100


@pytest.mark.parametrize("counts", [[1], [3, 0, 128, 60, 2], [5] * 7])
@pytest.mark.parametrize(("p", "d"), [(1, 32), (6, 16), (17, 48), (384, 128), (31, 33)])
def test_products(counts, p, d):
    torch.manual_seed(11)
    people = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    owners, rows = Owners(people, len(counts)), 1
    wide = torch.randn(len(people), rows, p + 7)
    left, right = wide[..., 7:], torch.randn(len(people), rows, d)
    out = torch.full((len(counts), p, d), torch.nan)
    products(left, right, owners, out)
    for person, mine in enumerate(out):
        a, b = left[people == person, 0].double(), right[people == person, 0].double()
        torch.testing.assert_close(mine.double(), a.t() @ b, rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("wrong", ["dtype", "features", "hidden"])
def test_weights_that_do_not_go_with_their_inputs_are_not_read(wrong):
    steps = Steps("gru", torch.zeros(2, 4, 16), torch.zeros(2, 4, 64), None, None, Workspace())
    w_ih, w_hh = torch.randn(48, 5), torch.randn(48, 16)
    if wrong == "dtype":
        w_ih = w_ih.double()
    elif wrong == "features":
        w_ih = w_ih[:, :4]
    else:
        w_hh = w_hh.double()
    with pytest.raises(RuntimeError):
        native.kernels(w_ih.device).recur(
            steps, torch.randn(2, 4, 6), w_ih, w_hh, (torch.zeros(48), torch.zeros(48))
        )


class Bare(nn.Module):
    def __init__(self, kind, size):
        super().__init__()
        self.rnn, self.head = kind(3, size, batch_first=True), nn.Linear(size, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("size", [32, 35])
def test_a_shut_gate_lets_nothing_through(kind, size):
    # Of a number near the last, a gate that is shut but for 1e-38 would let through about one.
    for seed in range(20):
        torch.manual_seed(seed)
        model, lot = Bare(kind, size), ragged([1] * 6, steps=1)
        lot.x[2] = torch.tensor([3e38, 0.0, 0.0])
        among, alone = (clipped_sum(model, classify, part, 1.0) for part in (lot, lot.select(2, 3)))
        assert float(among.norms[2]) == pytest.approx(float(alone.norms[0]), rel=1e-4)
