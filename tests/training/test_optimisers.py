"""Optimisers, schedules and averages do what torch's and pandas' do."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sequester.training import Training
from sequester.training.optimisers import Average, Optimiser, learning_rate

STEPS = 12


def gradients() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        {name: torch.randn(p.shape, generator=generator) for name, p in net().named_parameters()}
        for _ in range(STEPS)
    ]


def net() -> nn.Module:
    made = nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.linspace(-1.0, 1.0, parameter.numel()).reshape(parameter.shape))
    return made


@pytest.mark.parametrize(
    ("settings", "make", "options"),
    [
        ({"optimizer": "sgd", "momentum": 0.0}, torch.optim.SGD, {}),
        ({"optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
        ({"optimizer": "adam"}, torch.optim.Adam, {}),
        ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_updates_are_torchs(settings: dict[str, Any], make: Any, options: dict[str, Any]) -> None:
    mine, theirs = net(), net()
    optimiser = Optimiser(Training(**settings))
    other = make(theirs.parameters(), lr=0.05, **options)
    for gradient in gradients():
        optimiser.apply(mine, gradient, 0.05)
        for name, parameter in theirs.named_parameters():
            parameter.grad = gradient[name].clone()
        other.step()
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    assert not torch.equal(mine.weight, net().weight)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_decay_shrinks_weights_that_nothing_moves(optimizer: Any) -> None:
    model, optimiser = net(), Optimiser(Training(optimizer=optimizer, weight_decay=0.5))
    nothing = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(3):
        optimiser.apply(model, nothing, 0.1)
    torch.testing.assert_close(model.weight, net().weight * 0.95**3)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_are_torchs(schedule: Any) -> None:
    from torch.optim import lr_scheduler

    made = torch.optim.SGD(net().parameters(), lr=2.0)
    theirs = {
        "constant": lambda: lr_scheduler.ConstantLR(made, factor=1.0),
        "linear": lambda: lr_scheduler.LinearLR(made, 1.0, 0.0, total_iters=STEPS),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(made, STEPS),
    }[schedule]()
    settings = Training(learning_rate=2.0, schedule=schedule)
    for step in range(STEPS):
        assert learning_rate(settings, step, STEPS) == pytest.approx(theirs.get_last_lr()[0])
        made.step()
        theirs.step()


def test_a_warm_up_rises_evenly_to_the_rate_and_the_schedule_follows() -> None:
    settings = Training(learning_rate=1.0, schedule="linear", warmup=4)
    rates = [learning_rate(settings, step, 14) for step in range(14)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == pytest.approx(np.linspace(1.0, 0.0, 11)[:-1])


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_averages_are_pandas_weighted_means(decay: float) -> None:
    model, average = net(), Average(decay)
    seen = []
    for gradient in gradients():
        Optimiser(Training(optimizer="sgd", momentum=0.0)).apply(model, gradient, 0.1)
        average.add(model)
        seen.append(model.weight.detach().flatten().numpy().copy())
    expected = pd.DataFrame(np.array(seen)).ewm(alpha=1.0 - decay, adjust=True).mean().iloc[-1]
    average.write_into(model)
    np.testing.assert_allclose(model.weight.detach().flatten().numpy(), expected, rtol=1e-4)
