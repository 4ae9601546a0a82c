"""Gradient inversion: exact by equations, strong on a GRU, dead under noise."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sequester.audit.inversion import (
    Protection,
    first_linear,
    gradient_of,
    imprint,
    invert,
    invert_squares,
    positions,
    prepare_imprint,
    quality,
    receptive_field,
    refuse_prepared,
    seen,
)
from sequester.core.errors import UsageError
from sequester.models import Classes, Shape, build
from sequester.sampling import Lot

TASK = Classes(outputs=6)


def window(seed: int, steps: int, *, windows: int = 1) -> Lot:
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(steps) / steps
    rate, phase = torch.rand(2, windows, 1, 3, generator=g)
    x = torch.sin(6.28 * (1 + 2 * rate) * t[None, :, None] + 6.28 * phase)
    x = x + 0.3 * torch.randn(windows, steps, 3, generator=g)
    return Lot(
        x=x,
        mask=torch.ones(windows, steps, dtype=torch.bool),
        target=torch.randint(0, 6, (windows,), generator=g),
        owner=torch.zeros(windows, dtype=torch.int64),
        people=1,
    )


def network(
    kind: str, steps: int, *, pool: str = "mean", seed: int = 0, **options: int
) -> nn.Module:
    shape = Shape(features=3, vocabularies=(), steps=steps, outputs=6, pool=pool)
    return build(kind, shape, options, seed=seed)


def by_name(model: nn.Module, lot: Lot, protection: Protection) -> dict[str, torch.Tensor]:
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, seen(model, TASK, lot, protection), strict=True))


class Perceptron(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(steps * 3, 32), nn.Linear(32, 6)

    def forward(self, x, mask, categorical=None):
        return self.head(torch.relu(self.first(x.flatten(1))))


@pytest.mark.parametrize("seed", range(5))
def test_a_first_linear_layer_gives_its_window_away_exactly(seed):
    lot = window(seed, 20)
    torch.manual_seed(seed)
    weight, bias, *_ = gradient_of(Perceptron(20), TASK, lot)
    assert quality(first_linear(weight, bias), lot.x)[0] < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_a_transformer_with_learned_positions_gives_its_window_away_exactly(seed):
    lot, model = window(seed, 24), network("transformer", 24, seed=seed)
    gradient = by_name(model, lot, Protection())
    found = positions(gradient["lift.weight"], gradient["positions.weight"])
    assert quality(found, lot.x)[0] < 1e-6


def test_a_gru_gives_most_of_a_short_window_away_and_nothing_under_noise():
    lot, model = window(3, 6), network("gru", 6)
    bare = invert(model, TASK, lot, seen(model, TASK, lot, Protection()), iterations=60, restarts=1)
    assert quality(bare.x, lot.x)[1] > 0.8  # 48 steps: benchmarks/audit/inversion.py
    noisy = seen(model, TASK, lot, Protection(clip=1.0, noise_multiplier=0.5))
    guarded = invert(model, TASK, lot, noisy, iterations=15, restarts=1)
    assert abs(quality(guarded.x, lot.x)[1]) < 0.45  # 18 numbers: chance alone gives 0.24
    assert guarded.mismatch > bare.mismatch


def test_least_squares_rebuilds_a_recurrent_networks_window_to_the_last_digit():
    lot, model = window(3, 6), network("lstm", 6)
    update = seen(model, TASK, lot, Protection())
    found = invert_squares(model, TASK, lot, update, first=60, iterations=30, restarts=4)
    assert quality(found.x, lot.x)[0] < 1e-6  # 48 steps: benchmarks.audit.inversion


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("steps", "field"), [(20, 15), (9, 9)])
def test_a_convolutional_network_gives_its_receptive_field_away_exactly(seed, steps, field):
    """Three layers of three taps, dilated 1, 2 and 4, read by the last step: 15 steps."""
    lot, model = window(seed, steps), network("tcn", steps, pool="last", seed=seed)
    found = receptive_field(model, by_name(model, lot, Protection(clip=0.1)), steps=steps)
    assert found.shape == (field, 3)
    assert quality(found, lot.x[0, -field:])[0] < 1e-6


def test_padding_behind_a_window_does_not_hide_its_receptive_field():
    lot, model = window(2, 24), network("tcn", 24, pool="last")
    mask = lot.mask.clone()
    mask[:, 18:] = False
    found = receptive_field(model, by_name(model, replace(lot, mask=mask), Protection()), steps=18)
    assert quality(found, lot.x[0, 3:18])[0] < 1e-6


def test_equations_find_nothing_in_a_sum_or_under_noise():
    model = network("tcn", 20, pool="last")
    others = tuple(window(100 + k, 20) for k in range(20))
    for protection in (
        Protection(cohort=others),
        Protection(clip=1.0, noise_multiplier=0.5),
    ):
        lost = []
        for seed in range(12):
            lot = window(seed, 20)
            update = by_name(model, lot, replace(protection, seed=seed))
            found = receptive_field(model, update, steps=20)
            lost.append(quality(found, lot.x[0, -15:])[1])
        assert abs(sum(lost) / len(lost)) < 0.15


def test_noise_of_any_usable_run_kills_the_closed_form_too():
    lost = []
    for seed in range(12):
        lot, model = window(seed, 24), network("transformer", 24, seed=seed)
        gradient = by_name(model, lot, Protection(clip=1.0, noise_multiplier=0.5, seed=seed))
        found = positions(gradient["lift.weight"], gradient["positions.weight"])
        lost.append(quality(found, lot.x)[1])
    assert abs(sum(lost) / len(lost)) < 0.15


def test_clipping_alone_protects_nothing_and_a_cohort_does():
    lot, model = window(3, 24), network("transformer", 24)

    def attacked(protection: Protection) -> float:
        gradient = by_name(model, lot, protection)
        found = positions(gradient["lift.weight"], gradient["positions.weight"])
        return quality(found, lot.x)[0]

    assert attacked(Protection(clip=0.1)) < 1e-6
    others = tuple(window(100 + k, 24) for k in range(20))
    assert attacked(Protection(cohort=others)) > 0.3
    assert attacked(Protection(local_steps=5)) < 0.3  # a few small steps hardly help


def test_a_prepared_layer_catches_windows_from_a_sum_and_the_client_sees_it():
    lot = window(5, 16, windows=20)
    flat = lot.x.flatten(1).double()
    layer, back = nn.Linear(48, 512).double(), nn.Linear(512, 6).double()
    direction = torch.randn(48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    measured = flat @ direction
    edges = torch.linspace(float(measured.min()) - 1, float(measured.max()) + 1, 512).double()
    prepare_imprint(layer, direction, edges)
    with torch.no_grad():
        back.weight.copy_(back.weight[:, :1].expand_as(back.weight))
    loss = nn.functional.cross_entropy(back(torch.relu(layer(flat))) * 1e-3, lot.target)
    weight, bias = torch.autograd.grad(loss, [layer.weight, layer.bias])
    found = imprint(weight, bias)
    errors = (flat[:, None] - found[None]).square().mean(2) / flat.var(1)[:, None]
    assert float((errors.min(1).values < 1e-3).double().mean()) > 0.6
    with pytest.raises(UsageError, match="SQ-831"):
        refuse_prepared(nn.Sequential(layer, back))
    for kind in ("gru", "lstm", "transformer", "tcn", "linear"):
        refuse_prepared(network(kind, 16))


def test_inputs_that_cannot_be_inverted_are_refused():
    lot, model = window(0, 6), network("gru", 6)
    with pytest.raises(UsageError, match="SQ-832"):
        invert(model, TASK, lot, gradient_of(model, TASK, lot)[1:])
    with pytest.raises(UsageError, match="SQ-830"):
        first_linear(torch.zeros(4, 6), torch.zeros(4))
    pooling, deep = network("tcn", 6), network("tcn", 40, pool="last", layers=6)
    for tcn, where in ((pooling, 6), (deep, 40)):
        gradient = by_name(tcn, window(0, where), Protection())
        with pytest.raises(UsageError, match="SQ-834"):
            receptive_field(tcn, gradient, steps=where)
    with pytest.raises(UsageError, match="SQ-833"):
        Protection(noise_multiplier=1.0)
    assert replace(Protection(), clip=1.0).clip == 1.0
