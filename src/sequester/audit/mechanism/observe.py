"""Run the real training step with canaries among the people, and write down what it releases.

The observer knows what the strongest attacker of differential privacy knows: weights, the lot
and everybody's gradient but the canary's. It rebuilds each step's clipped sum by itself and
takes it off what the step hands to the optimiser. Nothing of the step is replaced or patched:
the optimiser notes the update it is given, the lot notes who was picked.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sequester.audit.mechanism.canaries import LENGTH, CanaryLot, CanaryTask, Design
from sequester.audit.mechanism.trace import Floats, Trace
from sequester.core.rng import Keystream, key_from_test_seed
from sequester.gradients import ClippingRule, clipped_sum, oracle
from sequester.mechanism import NoiseStream, Plan
from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training import Study
from sequester.training.checkpoint import State
from sequester.training.loop import Loop, rule_of
from sequester.training.monitor import Monitor
from sequester.training.optimisers import Average, Optimiser

_EXACT_EVERY = 10  # every so many steps the reference sum comes from the float64 oracle


@dataclass(frozen=True)
class Subject:
    """What is audited: the real loop on people, as a study sets it up.

    Attributes:
        study: Says how to clip and how to use updates.
        plan: What is charged for the audited steps.
        people: Everybody who may be in a lot.
        task: Their loss.
        model: Initial weights; copied, never changed.
        make_loop: The loop; the real one unless a test plants a fault.
    """

    study: Study
    plan: Plan
    people: Lot
    task: Task
    model: nn.Module
    make_loop: Callable[..., Loop] = Loop


@dataclass(frozen=True)
class Observation:
    """What one audited run gave.

    Attributes:
        trace: Residual noise and lots.
        signals: Released minus the people's sum at each canary's coordinate, in clipping
            bounds, `(steps, canaries)`.
        multipliers: Noise of each step in clipping bounds, `(steps,)`.
        design: The canaries.
    """

    trace: Trace
    signals: Floats
    multipliers: Floats
    design: Design


@dataclass
class _Notes(Optimiser):
    """The study's optimiser, which also keeps what it was given."""

    given: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def apply(self, model: nn.Module, update: dict[str, Tensor], rate: float) -> None:
        """Keep the update in float64, then apply it."""
        self.given.append(torch.cat([v.detach().double().reshape(-1) for v in update.values()]))
        super().apply(model, update, rate)


def observe(subject: Subject, *, canaries: int, windows: int = 3, seed: int = 0) -> Observation:
    """Run `subject.plan.steps` real steps with canaries and take them apart.

    Args:
        subject: What to run.
        canaries: How many coins; half of them take part on average.
        windows: Windows of each canary; more than one shows clipping of the wrong unit.
        seed: Of canaries, lots and noise; an audit's secrets are nobody's.
    """
    windows = 1 if subject.plan.unit == "window" else windows
    design = Design.draw(subject.model, canaries, windows=windows, seed=seed)
    everybody = CanaryLot.of(subject.people, design)
    task = CanaryTask.of(subject.task, design, subject.model, LENGTH * subject.plan.clip)
    model = copy.deepcopy(subject.model)
    notes = _Notes(subject.study.training)
    state = State(
        model=model,
        optimiser=notes,
        average=Average(subject.study.training.average),
        step=0,
        applied=0,
        clip=subject.plan.clip,
    )
    key = key_from_test_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        loop = subject.make_loop(
            study=subject.study,
            plan=subject.plan,
            train=everybody,
            task=task,
            sampler=PoissonSampler(
                everybody.people, subject.plan.sampling_rate, Keystream(key, "audit", "lots")
            ),
            stream=NoiseStream(key, "audit", private=False),
            monitor=Monitor(Path(folder)),
        )
        ledger = _Ledger(subject, design, task, everybody)
        while state.step < subject.plan.steps and ledger.tries < 2 * subject.plan.steps:
            before, clip = copy.deepcopy(model), state.clip
            if everybody.picked is not None:
                everybody.picked.clear()
            already = len(notes.given)
            loop.step(state)
            ledger.add(before, clip, notes.given[already:], state.clip)
    return ledger.close(charged=state.step)


class _Ledger:
    """Accumulates one step after the other."""

    def __init__(
        self, subject: Subject, design: Design, task: CanaryTask, everybody: CanaryLot
    ) -> None:
        self.subject, self.design, self.task, self.everybody = subject, design, task, everybody
        self.tries = 0
        self._residual: list[Tensor] = []
        self._signal: list[float] = []
        self._presence: list[float] = []
        self._count: list[float] = []
        self._drawn: list[np.ndarray] = []
        self._signals: list[Floats] = []
        self._multipliers: list[float] = []
        self._coordinates = torch.from_numpy(design.coordinate)

    def add(self, before: nn.Module, clip: float, given: list[Tensor], next_clip: float) -> None:
        """Take one step apart; `given` is what it released, none or several included."""
        self.tries += 1
        picked = self.everybody.picked or []
        positions = picked[0] if picked else np.empty(0, dtype=np.int64)
        drawn = np.zeros(self.everybody.people, dtype=bool)
        drawn[positions] = True
        self._drawn.append(drawn)
        plan = self.subject.plan
        rule = rule_of(self.subject.study, before, clip)
        people, norms = self._people(before, rule, positions)
        members = positions[positions >= self.subject.people.people] - self.subject.people.people
        canaries = self._canaries(before, rule, members)
        deviation = noise_multiplier(plan) * clip
        for update in given:
            released = update * (plan.population * plan.sampling_rate)
            noise = (released - people - canaries) / deviation
            self._residual.append(noise)
            self._signal.append(_along(noise, people + canaries))
            self._presence.append(self._at(noise, members))
            signal = (released - people)[self._coordinates] / clip
            self._signals.append(signal.numpy())
            self._multipliers.append(deviation / clip)
            if plan.adaptive is not None:
                below = int((norms <= clip).sum()) - 0.5 * len(positions)
                self._count.append(_count_noise(plan, clip, next_clip, below))

    def close(self, *, charged: int) -> Observation:
        """Everything as arrays."""
        names, offsets = self.design.names, self.design.offsets
        trace = Trace(
            residual=torch.stack(self._residual).numpy(),
            tensors={n: (offsets[i], offsets[i + 1]) for i, n in enumerate(names)},
            signal=np.array(self._signal),
            presence=np.array(self._presence),
            drawn=np.array(self._drawn),
            rate=self.subject.plan.sampling_rate,
            steps_charged=charged,
            steps_released=len(self._residual),
            count=np.array(self._count),
        )
        return Observation(trace, np.array(self._signals), np.array(self._multipliers), self.design)

    def _people(
        self, model: nn.Module, rule: ClippingRule, positions: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Sum and norms of the people in the lot, by the claimed rule, in float64."""
        real = positions[positions < self.subject.people.people]
        lot = self.subject.people.pick(real)
        exact = (self.tries - 1) % _EXACT_EVERY == 0
        sum_of = oracle.clipped_sum if exact else clipped_sum
        found = sum_of(model, self.subject.task.loss, lot, rule)
        flat = torch.cat([found.sum[n].double().reshape(-1) for n in self.design.names])
        return flat, found.norms

    def _canaries(self, model: nn.Module, rule: ClippingRule, members: np.ndarray) -> Tensor:
        """What the canaries in the lot may add: one coordinate each, clipped by the rule."""
        groups = rule.groups(list(self.design.names))
        total = torch.zeros(self.design.offsets[-1], dtype=torch.float64)
        inside = self.design.inside[members]
        norms = torch.zeros(len(inside), max(groups) + 1, dtype=torch.float64)
        group = torch.tensor([groups[t] for t in self.design.tensor[inside]], dtype=torch.int64)
        rows = torch.arange(len(inside))
        norms[rows, group] = self.task.length
        factors = rule.factors(norms)[rows, group]
        total[self._coordinates[torch.from_numpy(inside)]] = factors * self.task.length
        return total

    def _at(self, noise: Tensor, members: np.ndarray) -> float:
        inside = self.design.inside[members]
        if not len(inside):
            return math.nan
        at = noise[self._coordinates[torch.from_numpy(inside)]]
        return float(at.sum()) / math.sqrt(len(inside))


def noise_multiplier(plan: Plan) -> float:
    """Noise of the gradient by the plan's public fields, not by its own methods."""
    if plan.adaptive is None:
        return plan.noise_multiplier
    rest = plan.noise_multiplier**-2 - (2.0 * plan.adaptive.count_noise) ** -2
    return float(rest**-0.5)


def _count_noise(plan: Plan, clip: float, next_clip: float, below: float) -> float:
    """The noise that must have been on the count for the bound to move as it did."""
    adaptive = plan.adaptive
    if adaptive is None:
        return 0.0
    moved = -math.log(next_clip / clip) / adaptive.learning_rate
    noisy = (moved + adaptive.quantile - 0.5) * plan.population * plan.sampling_rate
    return (noisy - below) / adaptive.count_noise


def _along(noise: Tensor, direction: Tensor) -> float:
    length = float(direction.norm())
    return float(noise @ direction) / length if length > 0 else math.nan
