"""Models that draw numbers: in an order that no thread decides, each person's own."""

from __future__ import annotations

import copy
import time

import numpy as np
import pytest
import torch
from torch import nn

from sequester.gradients import clipped_sum
from sequester.models.tasks import Classes
from tests.federated.clients import make_lot

TASK = Classes(3)


class Net(nn.Module):
    def __init__(self, draw, slow=False):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 8), nn.Linear(8, 3)
        self.draw, self.slow = draw, slow

    def forward(self, x, mask=None, codes=None):
        if self.slow and time.perf_counter_ns() // 1000 % 2:
            time.sleep(0.01)
        return self.head(self.draw(torch.tanh(self.inner(x)))).mean(1)


def dropout(hidden):
    return nn.functional.dropout(hidden, 0.5)


def noise(hidden):
    return hidden + torch.randn_like(hidden)


def one_mask(hidden):
    return hidden * torch.rand(hidden.shape[-1])


def numpy_mask(hidden):
    return hidden * float(np.random.rand())


def unknown(hidden):
    """No rule follows this one, so people are taken alone, after a first try."""
    return dropout(hidden) + torch.special.bessel_j0(hidden).sort(0).values * 0


DRAWS = [dropout, noise, one_mask, numpy_mask, unknown]


def summed(model, lot, seed=1):
    torch.manual_seed(seed)
    np.random.seed(seed)
    found = clipped_sum(model, TASK.loss, lot, 0.1, chunk=4).sum
    return torch.cat([value.reshape(-1) for value in found.values()])


@pytest.fixture
def lot():
    return make_lot(TASK, counts=(3, 1, 2) * 8, ragged=False)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("draw", DRAWS)
def test_no_race_decides_who_gets_which_numbers(draw, lot, threads):
    torch.manual_seed(0)
    model = Net(draw, slow=True)
    sums = [summed(model, lot) for _ in range(6)]
    assert all(torch.equal(sums[0], other) for other in sums)
    assert not torch.equal(sums[0], summed(model, lot, seed=2))


@pytest.mark.parametrize("draw", DRAWS)
def test_a_fresh_process_draws_what_a_long_one_draws(draw, lot, threads):
    known = Net(draw)
    fresh = copy.deepcopy(known)
    for seed in range(3):
        summed(known, lot, seed)
    assert torch.equal(summed(known, lot), summed(fresh, lot))


@pytest.mark.parametrize("draw", [one_mask, numpy_mask])
def test_no_two_people_share_numbers(draw, lot, tmp_path):
    seen = tmp_path / "seen"  # a list would be something that the model keeps

    def watched(hidden):
        if hidden.requires_grad:
            with seen.open("a") as file:
                print(len(hidden), file=file)
        return draw(hidden)

    model = Net(watched)
    summed(model, lot)
    before = len(seen.read_text())
    summed(model, lot)
    # Each person's windows in a pass of their own.
    assert seen.read_text()[before:].split() == ["3", "1", "2"] * 8
