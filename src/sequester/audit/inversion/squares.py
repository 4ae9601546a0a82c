"""Rebuilding a window by nonlinear least squares: Levenberg and Marquardt in double precision.

A recurrent network's gradient hardly moves with some directions of its window: first-order
methods and L-BFGS crawl along them, and stop at a correlation near 0.9. The residuals' Jacobian,
one gradient for each unknown number, knows these directions. It pays for windows of up to some
hundred numbers; longer ones are for `optimise.invert`.
Source: Marquardt 1963 (SIAM J. Appl. Math. 11:431), with his scaling by the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sequester.audit.inversion.optimise import Reconstruction, Target, invert
from sequester.models import Task
from sequester.sampling import Lot

_STEP = 1e-6
_EASIER, _HARDER, _TRIES = 5.0, 4.0, 12
_SOLVED = 1e-18

Residual = Callable[[Tensor], Tensor]


def invert_squares(
    model: nn.Module,
    task: Task,
    known: Lot,
    gradient: Sequence[Tensor],
    *,
    iterations: int = 50,
    first: int = 200,
    restarts: int = 1,
    seed: int = 0,
    clipped: bool = False,
) -> Reconstruction:
    """Find windows whose gradient is `gradient`; arguments and errors as `optimise.invert`.

    `first` iterations of L-BFGS find the valley, least squares its bottom. An iteration of these
    costs as many gradients as the windows hold numbers, plus one or two.
    """
    target = Target.of(model, task, known, gradient, clipped=clipped)
    shape = known.x.shape

    def residual(flat: Tensor) -> Tensor:
        return torch.cat([gap.detach().reshape(-1) for gap in target.gaps(flat.view(shape))])

    found = []
    for number in range(restarts):
        begun = invert(
            model,
            task,
            known,
            gradient,
            iterations=first,
            restarts=1,
            seed=seed + number,
            clipped=clipped,
        )
        x, mismatch = _descend(residual, begun.x.reshape(-1), iterations)
        found.append(Reconstruction(x.view(shape), mismatch))
        if mismatch < _SOLVED:
            break
    return min(found, key=lambda one: one.mismatch)


def _descend(residual: Residual, x: Tensor, iterations: int) -> tuple[Tensor, float]:
    """Damped Gauss–Newton steps: easier after each that helps, harder until one does."""
    there = residual(x)
    value, damping = float(there @ there), 1e-2
    for _ in range(iterations):
        slope = _jacobian(residual, x, there)
        square, downhill = slope.T @ slope, -(slope.T @ there)
        scale = torch.diag(square.diagonal().clamp_min(1e-12))
        for _ in range(_TRIES):
            step = torch.linalg.solve(square + damping * scale, downhill)
            tried = residual(x + step)
            new = float(tried @ tried)
            if new < value:
                x, there, value = x + step, tried, new
                damping = max(damping / _EASIER, 1e-14)
                break
            damping *= _HARDER
        else:
            break
        if value < _SOLVED:
            break
    return x, value


def _jacobian(residual: Residual, x: Tensor, there: Tensor) -> Tensor:
    """Forward differences, `(residuals, numbers)`; exact to about six digits in float64."""
    columns = []
    for index in range(len(x)):
        beside = x.clone()
        beside[index] += _STEP
        columns.append((residual(beside) - there) / _STEP)
    return torch.stack(columns, dim=1)
