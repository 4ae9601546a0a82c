"""At which calls a check is due, and what a refusal leaves behind."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients import Flat, clipped_sum, fast, oracle, verify
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import BODIES


class Kept(nn.Module):
    """Subtracts what `keep` gives for what it sees."""

    def __init__(self, keep):
        super().__init__()
        self.lift, self.head = nn.Linear(3, 8), nn.Linear(8, 4)
        self.keep = keep

    def forward(self, x):
        return self.head(torch.tanh(self.lift(x - self.keep(x.detach().mean((0, 1))))).mean(1))


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def first_seen():
    held = {}
    return lambda seen: held.setdefault("first", seen)


def running():
    """In a running generator, where nobody looks."""

    def follow():
        was = now = torch.zeros(3)
        while True:
            fresh = yield was
            was, now = now, fresh

    last = follow()
    next(last)
    return last.send


def window():
    held = [torch.zeros(3)]

    def keep(seen):
        held.append(seen)
        return held[-2]

    return keep


KINDS = {"what came first": first_seen, "what nobody sees": running, "the last": window}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_refused_stays_refused(kind):
    model = Kept(KINDS[kind]())
    for call in range(6):
        with pytest.raises(UsageError, match="SQ-406") as refusal:
            clipped_sum(model, classify, ragged([2, 1, 3], steps=4, seed=call), 0.3)
        assert ("refused so before" in str(refusal.value)) == (call > 0)


def by_the_lot(model, lot):
    return classify(model, lot) * 8 / len(lot.x)


def by_place(model, lot):
    return classify(model, lot) * torch.arange(1, len(lot.x) + 1)


@pytest.mark.parametrize("loss", [by_the_lot, by_place])
@pytest.mark.parametrize("first", [[3], [0, 3, 0, 0], [1]])
def test_one_person_alone_is_no_check_of_several(first, loss):
    model = Kept(lambda seen: 0.0)
    for call, counts in enumerate([first, first, [2, 1, 4, 2], [1, 1, 2, 1]]):
        lot = ragged(counts, steps=4, seed=call)
        got = clipped_sum(model, loss, lot, 1e3)
        assert relative_error(got, oracle.clipped_sum(model, loss, lot, 1e3)) < 1e-5


WRITES = {
    "halves": lambda x: x.mul_(0.5),
    "adds": lambda x: x.add_(1.0),
    "into a step": lambda x: x[:, 0].add_(1.0),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_lot_that_is_written_into_is_named(kind):
    class Lot(type(ragged([1]))):
        def select(self, start, stop):  # views, as lots of the sampling room give
            first, last = torch.searchsorted(self.owner, torch.tensor([start, stop])).tolist()
            parts = [getattr(self, n)[first:last] for n in ("x", "mask", "target", "owner")]
            return Lot(*parts[:3], parts[3] - start, stop - start, self.weight[first:last])

    given = ragged([2, 1, 3], steps=4)
    lot = Lot(given.x, given.mask, given.target, given.owner, 3, given.weight)

    def loss(model, lot):
        WRITES[kind](lot.x)
        return classify(model, lot)

    with pytest.raises(UsageError, match=r"SQ-406 .*writes into the lot.*clone"):
        clipped_sum(Kept(lambda seen: 0.0), loss, lot, 0.3)


@pytest.mark.parametrize("native", [True, False])
def test_a_network_that_diverged_stays_fast(native, monkeypatch):
    """Its gradients explode: a weight's last digit changes them as another order does."""
    if not native:
        monkeypatch.setenv("SEQUESTER_NO_NATIVE", "1")
    torch.manual_seed(5)
    model = nn.GRU(3, 64, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0.mul_(10.0)

    def loss(model, lot):
        return model(lot.x)[0][:, -1].square().sum(1)

    found = clipped_sum(model, loss, ragged([1] * 12, steps=40), 1.0)
    assert [known.refused for known in fast._KNOWN[model].values()] == [None]
    assert float(found.norms.max()) > 1e6


class Own(nn.Module):
    """Multiplies by a number of a NumPy generator of its own, one for everybody in a pass."""

    def __init__(self):
        super().__init__()
        self.head, self.numbers = nn.Linear(3, 4), np.random.default_rng(0)

    def forward(self, x):
        return self.head(x).mean(1) * float(self.numbers.random())


def test_what_does_not_repeat_is_not_put_down_to_rounding():
    """Two passes alone differ by far more than a last digit: that explains nothing."""
    model = Own()
    counts, lot = torch.full((6,), 2), ragged([2] * 6)
    job = fast.Job(model, classify, dict(model.named_parameters()), Flat(0.3))
    assert job.plan_check([(0, 6)], counts)
    with pytest.raises(fast.SteppedBack):
        job.add_chunk(lot, (0, 6), counts, None, 1 << 30, nullcontext())
    assert "alone is not the one among others" in job.refused()


def test_weights_are_nudged_by_their_last_digit_and_put_back():
    model = BODIES["gru"]()
    parameters = dict(model.named_parameters())
    before = {n: (p.data_ptr(), p.detach().clone(), p._version) for n, p in parameters.items()}

    def fail():
        with verify._nudged(parameters):
            for name, p in parameters.items():
                change = (p.detach() / before[name][1] - 1).abs().nan_to_num()
                assert 0 < float(change.max()) < 4e-7
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    for name, p in parameters.items():
        assert p.data_ptr() == before[name][0]
        assert p._version == before[name][2]
        assert torch.equal(p, before[name][1])
