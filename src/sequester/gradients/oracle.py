"""The float64 loop every engine must agree with: slow, short, obvious.

It shares no code with the engines beyond the clipping rules, and runs a copy of the model in
double precision, one person at a time, under PyTorch's own autograd.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sequester.gradients.clipping import ClippingRule, as_rule
from sequester.gradients.lots import Loss, LotLike, person_offsets
from sequester.gradients.result import ClippedSum


def person_gradients(model: nn.Module, loss: Loss, lot: LotLike) -> list[dict[str, Tensor]]:
    """Each person's gradient in float64, by parameter name."""
    double = copy.deepcopy(model).double()
    offsets = person_offsets(lot)
    return [
        _gradient(double, loss, lot, person, offsets[person + 1] - offsets[person])
        for person in range(len(offsets) - 1)
    ]


def clipped_sum(
    model: nn.Module, loss: Loss, lot: LotLike, clip: float | ClippingRule
) -> ClippedSum:
    """As `gradients.clipped_sum`, in float64 and without any shortcut."""
    rule = as_rule(clip)
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    names = list(shapes)
    groups = torch.tensor(rule.groups(names))
    total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    norms, zero, nonfinite = [], 0, 0
    for gradient in person_gradients(model, loss, lot):
        squares = torch.stack([g.square().sum() for g in gradient.values()])
        per_group = torch.zeros(int(groups.max()) + 1, dtype=torch.float64)
        per_group = per_group.index_add(0, groups, squares).sqrt()
        norms.append(per_group.norm())
        zero += int(norms[-1] == 0)
        if not all(bool(g.isfinite().all()) for g in gradient.values()):
            nonfinite += 1
            continue
        factors = rule.factors(per_group.unsqueeze(0))[0]
        for index, name in enumerate(names):
            total[name] += gradient[name] * factors[groups[index]]
    stacked = torch.stack(norms) if norms else torch.zeros(0, dtype=torch.float64)
    return ClippedSum(total, stacked, zero, nonfinite)


def _gradient(
    model: nn.Module, loss: Loss, lot: LotLike, person: int, windows: int
) -> dict[str, Tensor]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if windows == 0:
        return {name: torch.zeros_like(p, device="cpu") for name, p in parameters.items()}
    with torch.enable_grad():
        objective = loss(model, _Double(lot.select(person, person + 1))).double().mean()
        found = torch.autograd.grad(objective, list(parameters.values()), allow_unused=True)
    return {
        name: (torch.zeros_like(p) if g is None else g).detach().cpu()
        for (name, p), g in zip(parameters.items(), found, strict=True)
    }


class _Double:
    """A lot whose float32 tensors read as float64."""

    def __init__(self, lot: Any) -> None:
        self._lot = lot

    def __getattr__(self, name: str) -> Any:
        return _double(getattr(self._lot, name))


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _double(item) for key, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(_double(item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_double(item) for item in value)
    return value
