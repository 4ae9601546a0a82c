"""Reference networks are causal, ignore padding, and keep torch's own weight names."""

import pytest
import torch
from torch import nn

from sequester.core.errors import UsageError
from sequester.models import KINDS, Shape, build

STEPS, FEATURES = 7, 3
SHAPE = Shape(FEATURES, (4, 4), STEPS, 4, "none")


def inputs(windows: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.empty(windows, STEPS, FEATURES).normal_(generator=generator)
    codes = torch.empty(windows, STEPS, 2).uniform_(0, 5.99, generator=generator).long()
    return x, torch.ones(windows, STEPS, dtype=torch.bool), codes


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_step_sees_the_future(kind: str):
    model = build(kind, SHAPE).eval()
    x, mask, codes = inputs()
    before = model(x, mask, codes)
    later, later_codes = x.clone(), codes.clone()
    later[:, 4:] += 3.0
    later_codes[:, 4:] = 0
    after = model(later, mask, later_codes)
    assert before.shape == (5, STEPS, 4)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"copy"}))
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_padding_changes_nothing(kind: str, pool: str):
    model = build(kind, Shape(FEATURES, (4, 4), STEPS, 1, pool)).eval()
    x, mask, codes = inputs()
    mask[:, 5:] = False
    other, other_codes = x.clone(), codes.clone()
    other[:, 5:] = 9.0
    other_codes[:, 5:] = 1
    first, second = model(x, mask, codes), model(other, mask, other_codes)
    assert first.shape == (5, 1)
    assert torch.allclose(first, second, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"copy"}))
def test_a_window_without_steps_is_finite(kind: str):
    model = build(kind, Shape(FEATURES, (), STEPS, 1, "mean"))
    x = torch.zeros(2, STEPS, FEATURES)
    out = model(x, torch.zeros(2, STEPS, dtype=torch.bool), None)
    out.sum().backward()
    assert bool(torch.isfinite(out).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


def test_first_weights_follow_the_public_seed_and_leave_torch_alone():
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    one, same, other = (build("gru", SHAPE, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), expected)
    assert torch.equal(one.head.weight, same.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_recurrent_networks_are_plain_torch():
    model = build("gru", SHAPE, {"hidden": 6})
    assert type(model.cell) is nn.GRU
    assert nn.GRU(FEATURES + 16, 6).load_state_dict(model.cell.state_dict())


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [
        ("grru", {}, 252),
        ("os:getcwd", {"hidden": 1}, 252),
        ("no.such:Class", {}, 252),
        ("gru", {"width": 3}, 253),
        ("transformer", {"width": 5, "heads": 2}, 250),
    ],
)
def test_networks_that_cannot_be_built_are_refused(kind: str, options: dict, code: int):
    with pytest.raises(UsageError, match=f"SQ-{code}"):
        build(kind, SHAPE, options)


def test_what_is_no_network_is_never_called(tmp_path):
    for name, options in (
        ("os:makedirs", {"exist_ok": True}),
        ("pathlib:Path", {}),
        ("tests.models.test_networks:inputs", {}),
    ):
        with pytest.raises(UsageError, match=r"^SQ-252 "):
            build(name, tmp_path / "made", options)
    assert not (tmp_path / "made").exists()


def test_copying_needs_the_labels_own_vocabulary():
    with pytest.raises(UsageError, match="SQ-251"):
        build("copy", Shape(2, (3,), STEPS, 5, "none"))
    with pytest.raises(UsageError, match="SQ-251"):
        build("copy", Shape(2, (5,), STEPS, 5, "mean"))
