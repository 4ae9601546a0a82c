"""The twin without privacy: the same lots, steps and optimiser, no clipping and no noise.

It shows what the guarantee costs in accuracy. Its claim says NOT PRIVATE and ε = ∞.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training.chance import Chance
from sequester.training.checkpoint import State
from sequester.training.loop import Save, Watch
from sequester.training.monitor import Measure, Monitor
from sequester.training.optimisers import learning_rate
from sequester.training.signals import Interruption
from sequester.training.study import Study

_PEOPLE_AT_ONCE = 512


@dataclass
class TwinLoop:
    """The steps of the twin; the same objective: each person's mean loss.

    Attributes:
        study: What was asked for.
        train: Everybody.
        task: The loss.
        sampler: Draws the lots.
        monitor: Keeps what the operator may see.
        chance: What the model's layers draw.
    """

    study: Study
    train: Lot
    task: Task
    sampler: PoissonSampler
    monitor: Monitor
    chance: Chance

    def run(self, state: State, *, save: Save, watch: Watch) -> bool:
        """Run the remaining steps; False if interrupted."""
        steps = self.study.training.steps
        interval = self.study.training.checkpoint_every
        with Interruption() as interruption:
            while state.step < steps:
                measured = self.step(state)
                self.monitor.add(measured)
                watch(measured)
                last = state.step >= steps
                if last or interruption.asked or state.step % interval == 0:
                    save(state)
                if interruption.asked and not last:
                    return False
        return True

    def step(self, state: State) -> Measure:
        """One ordinary step."""
        lot = self.train.pick(self.sampler.draw(state.step))
        with self.chance.at(state.step):
            total, loss = mean_gradient(state.model, self.task, lot)
        rate = learning_rate(self.study.training, state.step, self.study.training.steps)
        step = state.step
        state.optimiser.apply(state.model, total, rate)
        state.average.add(state.model)
        state.step += 1
        state.applied += 1
        return Measure(
            step=step,
            people=lot.people,
            loss=loss,
            clip=0.0,
            clipped=0.0,
            norms=[],
            signal_to_noise=0.0,
            nonfinite=0,
            groups={},
        )


def mean_gradient(model: nn.Module, task: Task, lot: Lot) -> tuple[dict[str, Tensor], float | None]:
    """Gradient of the mean over people of each one's mean loss, and that loss."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    loss_sum = 0.0
    for start in range(0, lot.people, _PEOPLE_AT_ONCE):
        part = lot.select(start, min(start + _PEOPLE_AT_ONCE, lot.people))
        if not len(part.owner):
            continue
        windows = torch.bincount(part.owner, minlength=part.people).clamp_min(1)
        weight = 1.0 / windows[part.owner].to(part.x.dtype)
        objective = (task.loss(model, part) * weight).sum() / lot.people
        gradients = torch.autograd.grad(objective, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient
        loss_sum += float(objective.detach())
    return total, loss_sum if lot.people else None
