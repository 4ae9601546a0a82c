"""A loss that is another one, though its code is the same."""

import functools

import pytest
import torch.nn.functional as F

from sequester.gradients import clipped_sum, verify
from tests.gradients.lots import ragged
from tests.gradients.models import BODIES

COUNTS = [3, 1, 2]


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def squared(model, lot):
    return classify(model, lot).square()


def closing(over):
    return lambda model, lot: classify(model, lot) * (2.0 if over is True else 1.0)


LOSSES = {
    "another function": lambda: [closing(classify), closing(squared)],
    "another word": lambda: [closing("a"), closing("b")],
    "another truth": lambda: [closing(True), closing(False)],
    "partials": lambda: [
        functools.partial(lambda m, lot, way: classify(m, lot), way=way) for way in ("a", "b")
    ],
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_changed_closure_is_checked_anew_and_a_fresh_one_is_not(kind, monkeypatch):
    seen = []
    monkeypatch.setattr(verify, "check", lambda *_, number, **__: seen.append(number))
    model, lot = BODIES["linear without bias"](), ragged(COUNTS, steps=4)
    one, other = LOSSES[kind]()
    for loss in (one, other, one, LOSSES[kind]()[0], other):
        clipped_sum(model, loss, lot, 0.3)
    assert seen == [0, 0]
    for number in (1.0, 2.0):
        clipped_sum(model, closing(number), lot, 0.3)
    assert seen == [0, 0, 0]
