"""Equal calls give equal sums on several threads, whatever is found out, drawn or raised."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.gradients import PerLayer, clipped_sum, fast, verify
from tests.gradients.lots import ragged
from tests.gradients.models import BODIES


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def weights():
    torch.manual_seed(0)
    return nn.Linear(3, 7)


def squares(model, lot):
    return model(lot.x).tanh().square().mean((1, 2))


def numbers(found):
    return torch.cat([value.reshape(-1) for value in found.sum.values()])


def reasons(model):
    return [known.refused for known in fast._KNOWN[model].values()]


def test_a_chunk_that_mixes_people_late_gives_one_sum_however_threads_race(threads, caplog):
    """Some chunks take the fast engine and are done before another is found to mix people."""

    def late(model, lot):
        each = squares(model, lot)
        return each + 0 * each.roll(1) if len(lot.owner) >= 9 else each

    lot = ragged([1] * 25 + [9] + [1] * 14)
    with caplog.at_level(logging.ERROR):
        sums = [numbers(clipped_sum(weights(), late, lot, 0.05, chunk=2)) for _ in range(8)]
    assert all(torch.equal(sums[0], other) for other in sums)


@pytest.mark.parametrize("mixes", [False, True])
def test_a_first_call_gives_the_bits_of_later_ones(threads, mixes):
    def loss(model, lot):
        each = squares(model, lot)
        return each + 0 * each.flip(0) if mixes else each

    model, lot = weights(), ragged([1, 3, 0, 2] * 10)
    sums = [numbers(clipped_sum(model, loss, lot, 0.05, chunk=3)) for _ in range(17)]
    assert all(torch.equal(sums[0], other) for other in sums)
    assert bool(reasons(model)[0]) == mixes


def classes(model, lot):
    return F.cross_entropy(model(lot.x).mean(1), lot.target, reduction="none")


@pytest.mark.parametrize("place", [0, 5, 39])
def test_an_error_of_the_users_is_theirs_and_the_call_does_not_count(threads, place, monkeypatch):
    checks, original = [], verify.check
    monkeypatch.setattr(verify, "check", lambda *a, **k: checks.append(1) or original(*a, **k))
    model, good, bad = weights(), ragged([1] * 40), ragged([1] * 40)
    bad.target[place] = 99
    for _ in range(2):
        with pytest.raises(IndexError, match="out of bounds"):
            clipped_sum(model, classes, bad, 1.0, chunk=10)
    checks.clear()
    first = numbers(clipped_sum(model, classes, good, 1.0, chunk=10))
    assert reasons(model) == [None]
    assert len(checks) == 1  # as at a first call
    assert torch.equal(first, numbers(clipped_sum(model, classes, good, 1.0, chunk=10)))


def test_numbers_that_are_drawn_from_some_call_on_are_everybodys_own(threads):
    lot, sums = ragged([1] * 40), []
    for _ in range(4):
        model = nn.Sequential(nn.Dropout(0.0), weights())
        clipped_sum(model, squares, lot, 1.0, chunk=3)
        model[0].p = 0.5
        torch.manual_seed(1)
        sums.append(numbers(clipped_sum(model, squares, lot, 1.0, chunk=3)))
    assert all(torch.equal(sums[0], other) for other in sums)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-3, 1e-5])
def test_recurrences_of_small_inputs_are_as_exact(kind, size):
    """A tanh as a quotient loses a small number's digits."""
    torch.manual_seed(3)
    rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](5, 32, batch_first=True, bias=False)
    lot = ragged([2] * 6, features=5)
    lot = replace(lot, x=size * lot.x)

    def loss(model, lot):
        return model(lot.x)[0].mean((1, 2)) / size

    found = clipped_sum(rnn, loss, lot, 1e9)
    assert reasons(rnn) == [None]
    rnn.double()
    exact = clipped_sum(rnn, loss, replace(lot, x=lot.x.double()), 1e9)
    for name, value in exact.sum.items():
        error = torch.linalg.vector_norm(found.sum[name] - value)
        assert error <= 1e-5 * torch.linalg.vector_norm(value), name


def test_per_layer_clipping_of_a_layer_whose_weight_is_anothers():
    model = nn.ModuleDict({"a": nn.Embedding(9, 4), "b": nn.Linear(4, 9, bias=False)})
    model["b"].weight = model["a"].weight

    def loss(model, lot):
        return model["b"](model["a"](lot.target)).square().mean(1)

    found = clipped_sum(model, loss, ragged([1, 2]), PerLayer.of(model, 1.0))
    assert list(found.sum) == ["a.weight"]
    assert 0 < float(found.sum["a.weight"].norm()) <= 2.0


@pytest.mark.parametrize("native", [True, False])
def test_a_tiny_gradient_is_not_taken_for_none(native, monkeypatch):
    if not native:
        monkeypatch.setenv("SEQUESTER_NO_NATIVE", "1")

    def loss(model, lot):
        return 1e-30 * classes(model, lot)

    found = clipped_sum(weights(), loss, ragged([1, 2]), 1.0)
    assert found.zero == 0
    assert bool((found.norms > 0).all())


@pytest.mark.parametrize("wrong", [(1, -2), (1, 1)])
def test_a_mean_that_pytorch_refuses_is_refused_at_every_call(wrong):
    def loss(model, lot):
        return model(lot.x).mean(wrong).mean(1)

    for _ in range(3):
        with pytest.raises(RuntimeError, match="dim"):
            clipped_sum(weights(), loss, ragged([1, 2]), 1.0)


def test_a_recurrence_over_no_steps_is_refused_as_pytorch_does():
    body = BODIES["gru"]()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            clipped_sum(body, classes, ragged([1, 2], steps=0), 1.0)
