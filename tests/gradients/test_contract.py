"""What every engine promises, whatever the model."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients import Automatic, Flat, PerLayer, clipped_sum, oracle
from tests.gradients.lots import ragged, relative_error


class Pooled(nn.Module):
    def __init__(self, hidden=7, features=3, classes=4):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(1))


def cross_entropy(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


COUNTS = [3, 0, 1, 7, 2]


@pytest.mark.parametrize(
    "clip", [0.05, 1e6, Automatic(0.3), PerLayer(limit=0.1, layers=("rnn", "head"))]
)
def test_agrees_with_the_oracle(clip):
    torch.manual_seed(1)
    model, lot = Pooled(), ragged(COUNTS)
    got, want = (
        clipped_sum(model, cross_entropy, lot, clip),
        oracle.clipped_sum(model, cross_entropy, lot, clip),
    )
    assert relative_error(got, want) < 1e-5
    assert torch.allclose(got.norms, want.norms, rtol=1e-5)
    assert got.zero == want.zero == 1
    assert list(got.sum) == [name for name, _ in model.named_parameters()]


def test_a_lot_without_people_is_zero():
    got = clipped_sum(Pooled(), cross_entropy, ragged([]), 1.0)
    assert got.norms.shape == (0,)
    assert all(not v.any() for v in got.sum.values())


def test_a_lot_whose_people_own_nothing_is_zero():
    got = clipped_sum(Pooled(), cross_entropy, ragged([0, 0]), 1.0)
    assert got.zero == 2
    assert all(not v.any() for v in got.sum.values())


@pytest.mark.parametrize("value", [0.0, math.inf, -math.inf, math.nan, 1e-42, 1e20, 1e38])
@pytest.mark.parametrize("hidden", [7, 16])
def test_one_odd_person_changes_nobody_else(value, hidden):
    torch.manual_seed(2)
    model, lot = Pooled(hidden), ragged(COUNTS)

    def loss(model, lot):
        return cross_entropy(model, lot) * lot.weight

    others = clipped_sum(model, loss, lot.select(0, 4), 0.1)
    lot.weight[lot.owner == 4] = value
    got = clipped_sum(model, loss, lot, 0.1)
    part = [got.sum[name] - others.sum[name] for name in got.sum]
    norm = math.sqrt(sum(float(p.double().square().sum()) for p in part))
    assert math.isfinite(norm)
    assert norm <= 0.1 * (1 + 1e-6)
    assert got.nonfinite == (not math.isfinite(value))
    if value in (1e20, 1e38):
        assert norm == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize(
    ("layer", "fix"),
    [
        (nn.BatchNorm1d(7), "GroupNorm"),
        (nn.SyncBatchNorm(7), "GroupNorm"),
        (nn.InstanceNorm1d(7, track_running_stats=True), "track_running_stats=False"),
        (nn.Embedding(9, 7, max_norm=1.0), "max_norm=None"),
    ],
)
def test_layers_that_mix_or_remember_people_are_refused(layer, fix):
    model = nn.Sequential(Pooled(), nn.ModuleDict({"norm": layer}))
    with pytest.raises(UsageError, match=rf"SQ-401 layer '1.norm'.*{fix}"):
        clipped_sum(model, cross_entropy, ragged(COUNTS), 1.0)


def test_a_buffer_that_keeps_data_is_refused():
    class Keeps(Pooled):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen += x.detach().mean((0, 1))
            return super().forward(x)

    with pytest.raises(UsageError, match="SQ-406 'seen'"):
        clipped_sum(Keeps(), cross_entropy, ragged(COUNTS), 1.0)


@pytest.mark.parametrize("kept", ["parameter", "frozen", "buffer", "registered later"])
def test_a_module_that_hides_data_in_what_is_released_is_refused(kept):
    class Hides(Pooled):
        def __init__(self):
            super().__init__()
            if kept == "buffer":
                self.register_buffer("seen", torch.zeros(3))
            elif kept != "registered later":
                self.seen = nn.Parameter(torch.zeros(3), requires_grad=kept == "parameter")

        def forward(self, x):
            if kept == "registered later":
                self.register_buffer("seen", x.detach()[0, 0, :3].clone())
            else:
                self.seen.data.copy_(x.detach()[0, 0, :3])  # seen by no version counter
            return super().forward(x)

    with pytest.raises(UsageError, match="SQ-406 'seen'"):
        clipped_sum(Hides(), cross_entropy, ragged(COUNTS), 1.0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_module_that_keeps_an_attribute_is_refused(threads):
    """Threads would share it, and the next lot meet it: people through no layer."""

    class Remembers(Pooled):
        def forward(self, x):
            out = super().forward(x + getattr(self, "state", 0.0))
            self.state = x.detach().mean(0)
            return out

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(UsageError, match=r"SQ-406 .*'state'"):
            clipped_sum(Remembers(), cross_entropy, ragged(COUNTS), 1.0, chunk=2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan, "1", True])
def test_a_clip_that_is_no_bound_is_refused(clip):
    with pytest.raises(UsageError, match="SQ-402"):
        clipped_sum(Pooled(), cross_entropy, ragged(COUNTS), clip)


def test_losses_must_be_one_per_window():
    with pytest.raises(UsageError, match="SQ-404"):
        clipped_sum(Pooled(), lambda m, lot: cross_entropy(m, lot).mean(), ragged(COUNTS), 1.0)


def test_owners_must_ascend():
    lot = ragged([1, 1])
    lot.owner.copy_(torch.tensor([1, 0]))
    with pytest.raises(UsageError, match="SQ-403"):
        clipped_sum(Pooled(), cross_entropy, lot, 1.0)


def test_nothing_to_train_is_refused():
    with pytest.raises(UsageError, match="SQ-405"):
        clipped_sum(Pooled().requires_grad_(False), cross_entropy, ragged(COUNTS), 1.0)


def test_the_model_is_left_as_it_was():
    model = Pooled()
    keys, attributes = list(model.state_dict()), dict(vars(model.rnn))
    clipped_sum(model, cross_entropy, ragged(COUNTS), 1.0)
    assert list(model.state_dict()) == keys
    assert vars(model.rnn).keys() == attributes.keys()
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_sensitivities():
    assert Flat(0.5).sensitivity() == 0.5
    assert Automatic(2.0).sensitivity() == 2.0
    assert PerLayer(limits={"a": 3.0, "b": 4.0}).sensitivity() == pytest.approx(5.0)
    assert PerLayer(limit=0.7, layers=("a", "b", "c")).sensitivity() == pytest.approx(0.7)


FIRST = """
import sys
import torch
from sequester.gradients import clipped_sum
from tests.gradients.test_surroundings import Body, classify
from tests.gradients.lots import ragged
clipped_sum(Body(), classify, ragged([2, 1]), 1.0)
print([name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""


def test_the_first_step_imports_no_compiler():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
