"""The loop: draw a lot, clip and sum, add noise, move the weights; stop at the plan's end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from sequester.gradients import Automatic, ClippingRule, Flat, PerLayer, clipped_sum
from sequester.gradients.randomness import Generators
from sequester.mechanism import NoiseStream, Plan, invariants, release
from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training.chance import Chance
from sequester.training.checkpoint import State
from sequester.training.monitor import Measure, Monitor, measure
from sequester.training.optimisers import learning_rate
from sequester.training.signals import Interruption
from sequester.training.study import Study

# The sensitivity of the real sum is re-measured at these intervals, in production too.
CHECK_EVERY = 100

Watch = Callable[[Measure], None]
Save = Callable[[State], None]


@dataclass
class Losses:
    """A task's loss that remembers the mean of what it returned; private.

    Attributes:
        task: Whose loss.
        seen: What it returned; reduced only when asked, because an engine may watch what is
            done with losses.
    """

    task: Task
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, model: nn.Module, lot: Lot) -> Tensor:
        """The task's loss of each window."""
        losses = self.task.loss(model, lot)
        self.seen.append(losses)
        return losses

    @property
    def mean(self) -> float | None:
        """Mean loss of a window, None before the first; forgets what it saw."""
        if not self.seen:
            return None
        value = float(torch.cat([losses.detach() for losses in self.seen]).mean())
        self.seen.clear()
        return value


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Without dropout meanwhile; every module's own mode comes back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def rule_of(study: Study, model: nn.Module, clip: float) -> ClippingRule:
    """The study's way of clipping, at the present bound."""
    if study.privacy.clipping == "per-layer":
        return PerLayer.of(model, clip)
    return Automatic(clip) if study.privacy.clipping == "automatic" else Flat(clip)


@dataclass
class Loop:
    """One run's steps.

    Attributes:
        study: What was asked for.
        plan: What is charged.
        train: Everybody who may be in a lot.
        task: The loss.
        groups: Group of each person, or None.
        chance: What the model's layers draw; public, it would hide nobody where they draw.
        sampler: Draws the lots.
        stream: Draws the noise.
        monitor: Keeps what the operator may see.
    """

    study: Study
    plan: Plan
    train: Lot
    task: Task
    sampler: PoissonSampler
    stream: NoiseStream
    monitor: Monitor
    chance: Chance
    groups: np.ndarray | None = None
    _charged: int = field(default=0, init=False)

    def run(self, state: State, *, save: Save, watch: Watch) -> bool:
        """Run the remaining steps; False if interrupted.

        Args:
            state: Where to start; moved along.
            save: Writes a checkpoint.
            watch: Sees every step; for the operator's terminal.
        """
        # Noise drawn before a crash but lost with it stays charged: those steps are skipped.
        state.step = max(state.step, self.stream.next_step)
        with Interruption() as interruption:
            while state.step < self.plan.steps:
                measured = self.step(state)
                self.monitor.add(measured)
                watch(measured)
                last = state.step >= self.plan.steps
                if last or interruption.asked or state.step % self._interval() == 0:
                    save(state)
                if interruption.asked and not last:
                    return False
        invariants.check_draws(self.stream.draws, self._charged)
        return True

    def _interval(self) -> int:
        return self.study.training.checkpoint_every

    def step(self, state: State) -> Measure:
        """One private step: exactly one lot, one draw of noise, one charge, one update."""
        step = state.step
        positions = self.sampler.draw(step)
        invariants.check_sampler(self.sampler, self.plan)
        invariants.check_lot_size(len(positions), self.sampler.people, self.plan.sampling_rate)
        self.stream.prepare(step)
        lot = self.train.pick(positions)
        losses = Losses(self.task)
        rule = rule_of(self.study, state.model, state.clip)
        chunk = self.study.training.micro_batch or None
        with self.chance.at(step):
            clipped = clipped_sum(state.model, losses, lot, rule, chunk=chunk)
            if step % CHECK_EVERY == 0:
                self._check_sensitivity(state, lot, rule, clipped.sum, clipped.norms)
        released = release(
            clipped.sum,
            clipped.norms,
            plan=self.plan,
            stream=self.stream,
            step=step,
            clip=state.clip,
        )
        self._charged += 1
        groups = None if self.groups is None else self.groups[positions]
        measured = measure(step, clipped.norms, clip=state.clip, loss=losses.mean, groups=groups)
        self._apply(state, released.update)
        state.clip = released.clip
        noise = released.noise_std * math.sqrt(self.plan.parameters)
        signal = math.hypot(*(float(torch.linalg.vector_norm(v)) for v in clipped.sum.values()))
        return msgspec.structs.replace(
            measured,
            signal_to_noise=signal / self.plan.expected_lot / noise,
            clipped_released=None if released.below is None else 1.0 - released.below,
        )

    def _apply(self, state: State, update: dict[str, Tensor]) -> None:
        rate = learning_rate(self.study.training, state.step, self.plan.steps)
        state.optimiser.apply(state.model, update, rate)
        state.average.add(state.model)
        state.step += 1
        state.applied += 1

    def _check_sensitivity(
        self, state: State, lot: Lot, rule: ClippingRule, total: dict[str, Tensor], norms: Tensor
    ) -> None:
        """Take the person with the largest gradient out of the real lot and compare the sums."""
        if not lot.people:
            return
        person = int(torch.nan_to_num(norms, nan=math.inf).argmax())
        others = np.delete(np.arange(lot.people), person)
        alone = lot.pick(np.array([person])), lot.pick(np.empty(0, dtype=np.int64))
        fewer = lot.pick(others)
        loss = Losses(self.task)  # of the same kind as the step's: checked already, not anew
        before = Generators(torch.device("cpu"))
        without = clipped_sum(state.model, loss, fewer, rule).sum
        if before.moved():
            # Dropout: the others' masks differ with and without the person. Compare without any;
            # a model that draws all the same is compared for that person alone.
            with still(state.model):
                before = Generators(torch.device("cpu"))
                total = clipped_sum(state.model, loss, lot, rule).sum
                without = clipped_sum(state.model, loss, fewer, rule).sum
                if before.moved():
                    total, without = (
                        clipped_sum(state.model, loss, part, rule).sum for part in alone
                    )
        # Two float sums over the same others may differ by their rounding.
        slack = 1e-6 * math.sqrt(max(1, lot.people))
        invariants.check_sensitivity(total, without, rule.sensitivity() * (1.0 + slack))
