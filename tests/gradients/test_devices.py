"""The engine on another device than the CPU: no tensor of the CPU may meet it."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients import PrivateGradients, clipped_sum, oracle
from sequester.sampling import Lot
from tests.gradients.elsewhere import Fenced, back, elsewhere
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import BODIES, Tied, Wide


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def predict(model, lot):
    each = F.cross_entropy(model(lot.x).flatten(0, 1), lot.x.flatten(), reduction="none")
    return each.view(lot.x.shape).sum(1)


def far(model, loss, lot):
    """The clipped sum where model and lot lie elsewhere, its numbers brought back."""
    parts = {k: Fenced(v) for k, v in vars(lot).items() if isinstance(v, Tensor)}
    with elsewhere(model):
        found = clipped_sum(model, loss, dataclasses.replace(lot, **parts), 0.3)
    assert all(isinstance(value, Fenced) for value in found.sum.values())
    assert not isinstance(found.norms, Fenced)
    return dataclasses.replace(found, sum={k: back(v) for k, v in found.sum.items()})


# One of each layer and of each way to reach one.
FAR = [
    "embedding", "rows", "gru two layers both ways", "lstm", "rnn tanh", "initial state from data",
    "packed gru", "packed lstm both ways", "lstm cells", "causal attention", "cross attention",
    "group norm", "prelu", "conv grouped", "raw positions", "low rank, merged",
]  # fmt: skip


@pytest.mark.parametrize("name", FAR)
def test_sums_elsewhere_agree_with_the_oracle(name, caplog):
    torch.manual_seed(3)
    model, lot = BODIES[name](), ragged([3, 0, 1, 2], tokens=11 if name == "embedding" else None)
    found = far(model, classify, lot)
    want = oracle.clipped_sum(model, classify, lot, 0.3)
    assert relative_error(found, want) < 1e-5
    assert torch.allclose(found.norms, want.norms, rtol=2e-5)
    assert not caplog.records  # nobody was taken one at a time


@pytest.mark.parametrize("network", [Wide, Tied])
def test_wide_logits_and_tables_elsewhere(network, caplog):
    torch.manual_seed(4)
    model, lot = network(300), ragged([3, 0, 1, 2], tokens=300)
    found = far(model, predict, lot)
    assert relative_error(found, oracle.clipped_sum(model, predict, lot, 0.3)) < 1e-5
    assert not caplog.records


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-38, 1e30])
def test_odd_people_elsewhere(value, monkeypatch):
    torch.manual_seed(5)
    model, lot = BODIES["gru"](), ragged([2, 1, 3])

    def weighted(model, lot):
        return classify(model, lot) * lot.weight

    lot.weight[2] = value
    found = far(model, weighted, lot)
    monkeypatch.setenv("SEQUESTER_NO_NATIVE", "1")
    near = clipped_sum(model, weighted, lot, 0.3)
    assert (found.nonfinite, found.zero) == (near.nonfinite, near.zero)
    assert relative_error(found, near) < 1e-5


class Halves(torch.nn.Module):
    """Its halves may lie on two devices; it takes its numbers from one to the other itself."""

    def __init__(self):
        super().__init__()
        self.near, self.far = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.far(self.near(x).mean(1).to(self.far.weight.device))


def test_a_model_on_two_devices_is_taken_one_person_at_a_time(caplog):
    torch.manual_seed(6)
    model, lot = Halves(), ragged([2, 0, 1])

    def loss(model, lot):
        return model(lot.x).square().sum(1)

    want = oracle.clipped_sum(model, loss, lot, 0.3)
    with elsewhere(model.far):
        found = clipped_sum(model, loss, lot, 0.3)
    assert "several devices" in caplog.text
    found = dataclasses.replace(found, sum={k: back(v) for k, v in found.sum.items()})
    assert relative_error(found, want) < 1e-5


def test_released_gradients_follow_the_parameters():
    model, lot = BODIES["identity"](), ragged([2, 1])
    with elsewhere(model):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        private = PrivateGradients(
            model, optimiser, lambda s: {k: back(v) for k, v in s.sum.items()}, steps=1, clip=0.3
        )
        parts = {k: Fenced(v) for k, v in vars(lot).items() if isinstance(v, Tensor)}
        private.backward(classify, dataclasses.replace(lot, **parts), 0.3)
        assert all(isinstance(p.grad, Fenced) for p in model.parameters())


def test_the_fence_refuses_what_cuda_would():
    here, there = torch.ones(3), Fenced(torch.ones(3))
    with pytest.raises(RuntimeError, match="two devices"):
        here + there
    with pytest.raises(RuntimeError, match="two devices"):
        there.mul_(here)
    assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)
    assert there.cpu().add(here).sum() == 6


def test_a_lot_may_lie_elsewhere():
    near = Lot(
        x=torch.randn(5, 4, 3),
        mask=torch.ones(5, 4, dtype=torch.bool),
        target=torch.arange(5),
        owner=torch.tensor([0, 0, 1, 3, 3]),
        people=5,
    )
    with elsewhere(torch.nn.Linear(3, 2)):
        held = {k: Fenced(v) for k, v in vars(near).items() if isinstance(v, Tensor)}
        parts = [Lot(**held, people=5), Lot(**(held | {"owner": near.owner}), people=5)]
        for lot in parts:
            picked, chosen = lot.pick(np.array([0, 3])), lot.select(1, 4)
            assert torch.equal(back(picked.x), near.x[[0, 1, 3, 4]])
            assert torch.equal(back(picked.target), near.target[[0, 1, 3, 4]])
            assert torch.equal(back(chosen.x), near.x[2:])
