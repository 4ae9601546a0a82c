"""A loop that exists, guarded: only the given optimiser steps, and only along what was released."""

import gc

import pytest
import torch
import torch.nn.functional as F

from sequester.core.errors import UsageError
from sequester.gradients import Automatic, Flat, PrivateGradients
from tests.gradients.lots import ragged
from tests.gradients.models import BODIES


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def identity(result):
    return dict(result.sum)


def guarded(steps=9, kind=torch.optim.SGD):
    model = BODIES["gru"]()
    optimiser = kind(model.parameters(), lr=0.1)
    return model, optimiser, PrivateGradients(model, optimiser, identity, steps=steps, clip=1.0)


LOT = ragged([2, 1])


def refuses(step, match="SQ-407"):
    with pytest.raises(UsageError, match=match):
        step()


@pytest.mark.parametrize("clip", [1.01, 100.0, Flat(2.0), Automatic(1.5)])
def test_a_clip_beyond_what_the_noise_is_sized_for_is_refused(clip):
    _, optimiser, private = guarded()
    refuses(lambda: private.backward(classify, LOT, clip))
    refuses(optimiser.step)  # nothing was released
    private.backward(classify, LOT, 0.5)
    optimiser.step()


def test_the_optimisers_own_step_takes_what_was_released_once():
    model, optimiser, private = guarded()
    refuses(optimiser.step)
    for _ in range(2):
        before = [p.detach().clone() for p in model.parameters()]
        private.backward(classify, LOT, 1.0)
        optimiser.step()
        assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        refuses(optimiser.step)


def test_another_optimiser_of_the_same_model_is_refused_as_long_as_this_one_lives():
    model, optimiser, private = guarded()
    other = torch.optim.Adam(model.parameters())
    unrelated = torch.optim.SGD(BODIES["gru"]().parameters(), lr=0.1)
    private.backward(classify, LOT, 1.0)
    refuses(other.step)
    unrelated.step()
    private.step()
    del private
    gc.collect()
    other.step()
    optimiser.step()


def test_a_second_guard_does_not_free_another_optimiser():
    model, optimiser, first = guarded()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    second = PrivateGradients(model, other, identity, steps=1, clip=1.0)
    second.backward(classify, LOT, 1.0)
    refuses(second.step)
    refuses(optimiser.step)
    assert first is not None


def test_an_optimiser_of_other_parameters_is_refused():
    model, _, _ = guarded()
    refuses(
        lambda: PrivateGradients(
            model,
            torch.optim.SGD(BODIES["gru"]().parameters(), lr=0.1),
            identity,
            steps=1,
            clip=1.0,
        )
    )


def replaced(model):
    model.zero_grad()
    classify(model, LOT).mean().backward()


def added(model):
    """What `.backward()` does when a gradient is there: the same tensor, other numbers."""
    before = [p.grad for p in model.parameters()]
    classify(model, LOT).mean().backward()
    assert all(p.grad is b for p, b in zip(model.parameters(), before, strict=True))


def hidden(model):
    """A write that leaves no trace in the tensor's version."""
    model.head.bias.grad.data.add_(1.0)


def cleared(model):
    model.head.bias.grad = None


@pytest.mark.parametrize("tamper", [replaced, added, hidden, cleared])
@pytest.mark.parametrize("step", ["private", "optimiser"])
def test_a_raw_gradient_never_steps(tamper, step):
    model, optimiser, private = guarded()
    private.backward(classify, LOT, 1.0)
    weights = [p.detach().clone() for p in model.parameters()]
    tamper(model)
    refuses(private.step if step == "private" else optimiser.step)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_a_closure_is_refused():
    _, optimiser, private = guarded()
    private.backward(classify, LOT, 1.0)
    refuses(lambda: optimiser.step(lambda: 0.0))
    refuses(lambda: optimiser.step(closure=lambda: 0.0))


def test_a_parameter_that_is_thawed_later_has_no_release():
    model, optimiser, private = guarded()
    model.head.bias.requires_grad_(False)
    private.backward(classify, LOT, 1.0)
    model.head.bias.requires_grad_(True)
    refuses(optimiser.step)


def test_no_release_beyond_the_steps_that_were_charged():
    _, _, private = guarded(steps=2)
    for _ in range(2):
        private.backward(classify, LOT, 1.0)
        private.step()
    refuses(lambda: private.backward(classify, LOT, 1.0), "SQ-408")
    refuses(private.step)


def test_a_release_that_fails_leaves_nothing_to_step_on():
    model, _, private = guarded(steps=3)
    private.backward(classify, LOT, 1.0)

    def fails(result):
        raise RuntimeError("no noise")

    private._release = fails
    with pytest.raises(RuntimeError):
        private.backward(classify, LOT, 1.0)
    refuses(private.step)
    assert model is not None
