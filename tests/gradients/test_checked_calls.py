"""At which calls a check is due, and what a refusal leaves behind."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients import clipped_sum, oracle
from tests.gradients.lots import ragged, relative_error


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
