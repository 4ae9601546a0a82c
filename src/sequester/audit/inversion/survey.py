"""What protects a client's windows from its own update: one attack, one protection at a time."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sequester.audit.inversion.optimise import gradient_of
from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.models import Task
from sequester.sampling import Lot


@dataclass(frozen=True)
class Protection:
    """What happens to a client's update before the attacker sees it.

    Attributes:
        local_steps: Steps of plain SGD; more than one sends a difference of weights.
        learning_rate: Of those steps.
        clip: Bound on the update's L2 norm; None leaves it.
        noise_multiplier: Noise over the clip, as the run adds to the sum.
        cohort: Gradients of other clients in the same sum (secure aggregation).
        seed: Of the noise.
    """

    local_steps: int = 1
    learning_rate: float = 0.1
    clip: float | None = None
    noise_multiplier: float = 0.0
    cohort: tuple[Lot, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse noise without a bound to scale it.

        Raises:
            UsageError: SQ-833.
        """
        if self.local_steps < 1 or (self.noise_multiplier > 0 and self.clip is None):
            raise UsageError(833, "noise needs a clip to scale it, and local steps must be ≥ 1")


def seen(model: nn.Module, task: Task, lot: Lot, protection: Protection) -> list[Tensor]:
    """What a server sees of the client who holds `lot`, as a gradient per parameter, float64."""
    total = _protected(model, task, lot, protection)
    for other in protection.cohort:
        more = _protected(model, task, other, protection)
        total = [a + b for a, b in zip(total, more, strict=True)]
    if protection.clip is not None and protection.noise_multiplier:
        generator = public_generator(protection.seed)
        deviation = protection.noise_multiplier * protection.clip
        total = [
            g + deviation * torch.from_numpy(generator.normal(size=tuple(g.shape))) for g in total
        ]
    return total


def _protected(model: nn.Module, task: Task, lot: Lot, protection: Protection) -> list[Tensor]:
    update = _update(model, task, lot, protection)
    if protection.clip is None:
        return update
    norm = float(torch.sqrt(torch.stack([g.square().sum() for g in update]).sum()))
    return [g * min(1.0, protection.clip / max(norm, 1e-300)) for g in update]


def _update(model: nn.Module, task: Task, lot: Lot, protection: Protection) -> list[Tensor]:
    """Mean gradient over local steps: the difference of weights over the summed step lengths."""
    local = copy.deepcopy(model).double()
    total: list[Tensor] | None = None
    for _ in range(protection.local_steps):
        gradient = gradient_of(local, task, lot)
        total = gradient if total is None else [a + b for a, b in zip(total, gradient, strict=True)]
        with torch.no_grad():
            moving = (p for p in local.parameters() if p.requires_grad)
            for parameter, step in zip(moving, gradient, strict=True):
                parameter.sub_(step, alpha=protection.learning_rate)
    return [g / protection.local_steps for g in total or []]
