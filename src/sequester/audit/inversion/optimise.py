"""Rebuilding windows by matching gradients: L-BFGS in double precision.

The objective weighs each tensor by its own size, `Σ ‖g − g'‖² / ‖g‖²`, so that small tensors,
which say most about a recurrent cell's input, are not drowned. Single precision and the cosine
objective of image attacks do markedly worse on recurrent models.
Sources: Zhu, Liu, Han 2019 (NeurIPS); Geiping et al. 2020 (NeurIPS).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.models import Task
from sequester.sampling import Lot


@dataclass(frozen=True)
class Reconstruction:
    """What an attack rebuilt.

    Attributes:
        x: Windows, `(windows, steps, features)` float64.
        mismatch: Objective at `x`, 0 for a perfect match.
    """

    x: Tensor
    mismatch: float


def gradient_of(model: nn.Module, task: Task, lot: Lot) -> list[Tensor]:
    """What an honest client would send for one step: the gradient of the mean loss, float64."""
    double = copy.deepcopy(model).double()
    return [g.detach() for g in loss_gradient(double, task, as_double(lot))]


def invert(
    model: nn.Module,
    task: Task,
    known: Lot,
    gradient: Sequence[Tensor],
    *,
    iterations: int = 400,
    restarts: int = 2,
    seed: int = 0,
    clipped: bool = False,
) -> Reconstruction:
    """Find windows whose gradient is `gradient`.

    The attacker knows weights, shapes, masks and answers, and nothing of the features.

    Args:
        model: At the weights the gradient was taken at.
        task: Its loss.
        known: Shapes, masks, owners and targets; `x` is not read.
        gradient: By trainable parameter, in order.
        iterations: Most L-BFGS iterations of each start.
        restarts: Random starts near zero; the best match is kept.
        seed: Of the starts.
        clipped: The gradient was scaled by a factor that the attacker does not know.

    Raises:
        UsageError: SQ-832 if gradient and parameters do not fit.
    """
    target = Target.of(model, task, known, gradient, clipped=clipped)
    generator = public_generator(seed)
    found = [
        _descend(target, iterations, start)
        for start in (
            torch.from_numpy(0.1 * generator.normal(size=tuple(known.x.shape)))
            for _ in range(restarts)
        )
    ]
    return min(found, key=lambda one: one.mismatch)


def quality(found: Tensor, true: Tensor) -> tuple[float, float]:
    """Normalised squared error (over the variance) and correlation of all values."""
    first, second = found.double().reshape(-1), true.double().reshape(-1)
    if not bool(torch.isfinite(first).all()):
        return float("inf"), 0.0
    error = float((first - second).square().mean() / second.var(unbiased=False))
    if float(first.std()) == 0.0:
        return error, 0.0
    return error, float(torch.corrcoef(torch.stack([first, second]))[0, 1])


@dataclass(frozen=True)
class Target:
    """What is to be matched, and by what.

    Attributes:
        model: In float64.
        task: Its loss.
        known: Shapes, masks and answers in float64.
        wanted: The gradient.
        clipped: It was scaled by an unknown factor, which is fitted.
    """

    model: nn.Module
    task: Task
    known: Lot
    wanted: list[Tensor]
    clipped: bool

    @classmethod
    def of(
        cls, model: nn.Module, task: Task, known: Lot, gradient: Sequence[Tensor], *, clipped: bool
    ) -> Target:
        """In float64, of copies.

        Raises:
            UsageError: SQ-832 if gradient and parameters do not fit.
        """
        double = copy.deepcopy(model).double()
        if [g.shape for g in gradient] != [p.shape for p in double.parameters() if p.requires_grad]:
            raise UsageError(832, "the gradient needs one tensor per trainable parameter, in order")
        return cls(double, task, as_double(known), [g.double() for g in gradient], clipped)

    def gaps(self, x: Tensor, *, create_graph: bool = False) -> list[Tensor]:
        """By tensor, `(s g − w) / ‖w‖` at windows `x`; s is 1 unless it is fitted."""
        lengths = [w.norm().clamp_min(1e-15) for w in self.wanted]
        guessed = loss_gradient(
            self.model, self.task, replace(self.known, x=x), create_graph=create_graph
        )
        parts = [g / size for g, size in zip(guessed, lengths, strict=True)]
        aims = [w / size for w, size in zip(self.wanted, lengths, strict=True)]
        if self.clipped:
            along = torch.stack([(p * a).sum() for p, a in zip(parts, aims, strict=True)]).sum()
            factor = along / torch.stack([p.square().sum() for p in parts]).sum()
            parts = [factor * p for p in parts]
        return [p - a for p, a in zip(parts, aims, strict=True)]


def _descend(target: Target, iterations: int, start: Tensor) -> Reconstruction:
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [x],
        max_iter=iterations,
        history_size=50,
        tolerance_grad=1e-14,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def mismatch() -> Tensor:
        gaps = target.gaps(x, create_graph=True)
        return torch.stack([gap.square().sum() for gap in gaps]).sum()

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = mismatch()
        x.grad = torch.autograd.grad(value, [x])[0].contiguous()
        return value.detach()

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return Reconstruction(x.detach(), float(mismatch().detach()))


def loss_gradient(
    model: nn.Module, task: Task, lot: Lot, *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Gradient of the mean loss by trainable parameter, in the model's precision."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = task.loss(model, lot).mean()
    return torch.autograd.grad(
        loss, parameters, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )


def as_double(lot: Lot) -> Lot:
    """The lot in float64."""
    target = lot.target.double() if lot.target.is_floating_point() else lot.target
    return replace(lot, x=lot.x.double(), target=target)
