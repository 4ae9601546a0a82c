"""Run the real training step with canaries among the people, and write down what it releases.

The observer knows what the strongest attacker of differential privacy knows: weights, the lot
and everybody's gradient but the canary's. It rebuilds each step's clipped sum by itself and
takes it off what the step hands to the optimiser. Nothing of the step is replaced or patched:
the optimiser notes the update it is given, the lot notes who was picked.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sequester.audit.mechanism.canaries import LENGTH, CanaryLot, CanaryTask, Design
from sequester.audit.mechanism.notebook import (
    Contrast,
    Notebook,
    Observation,
    Seen,
    noise_multiplier,
)
from sequester.audit.mechanism.reference import Reference
from sequester.core.rng import Keystream, key_from_test_seed
from sequester.mechanism import NoiseStream, Plan
from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training import Study
from sequester.training.chance import Chance
from sequester.training.checkpoint import State
from sequester.training.loop import Loop, rule_of
from sequester.training.monitor import Monitor
from sequester.training.optimisers import Average, Optimiser

Progress = Callable[[int, int], None]
"""Told how many of how many steps are done."""


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
        progress: Told after every step.
        what: Is run, in words.
        key: Of lots and noise, where people are real; None takes them from the audit's seed.
    """

    study: Study
    plan: Plan
    people: Lot
    task: Task
    model: nn.Module
    make_loop: Callable[..., Loop] = Loop
    progress: Progress = lambda done, of: None
    what: str = "training steps with canary persons"
    key: bytes | None = field(default=None, repr=False)

    @property
    def contrast(self) -> Contrast:
        """A canary takes part or not."""
        return Contrast(noise_multiplier(self.plan))

    def observe(self, *, canaries: int, windows: int, seed: int) -> Observation:
        """As `observe`."""
        return observe(self, canaries=canaries, windows=windows, seed=seed)


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
        seed: Of canaries; of lots and noise too where the subject has no key.
    """
    plan = subject.plan
    windows = windows if plan.unit == "person" else 1
    design = Design.draw(subject.model, canaries, windows=windows, seed=seed)
    everybody = CanaryLot.of(subject.people, design)
    task = CanaryTask.of(subject.task, design, subject.model, LENGTH * plan.clip)
    state = _begin(subject)
    reference = Reference(subject.people, subject.task.loss, design.names, seed)
    notebook = Notebook(plan, design, subject.people.people)
    key = subject.key or key_from_test_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        loop = subject.make_loop(
            study=subject.study,
            plan=plan,
            train=everybody,
            task=task,
            sampler=PoissonSampler(
                everybody.people, plan.sampling_rate, Keystream(key, "audit", "lots")
            ),
            stream=NoiseStream(key, "audit", private=False),
            monitor=Monitor(Path(folder)),
            chance=Chance.of(key, "audit"),
        )
        while state.step < plan.steps and notebook.tries < 2 * plan.steps:
            _one(subject, loop, state, reference, notebook)
            subject.progress(state.step, plan.steps)
    moved = _weights(state.model) - _weights(subject.model)
    return notebook.close(charged=state.step, gaps=reference.gaps, moved=moved)


def _begin(subject: Subject) -> State:
    return State(
        model=copy.deepcopy(subject.model),
        optimiser=_Notes(subject.study.training),
        average=Average(subject.study.training.average),
        step=0,
        applied=0,
        clip=subject.plan.clip,
    )


def _one(
    subject: Subject, loop: Loop, state: State, reference: Reference, notebook: Notebook
) -> None:
    """One real step, and what it released."""
    before, clip = copy.deepcopy(state.model), state.clip
    everybody, notes = loop.train, state.optimiser
    if not (isinstance(everybody, CanaryLot) and isinstance(notes, _Notes)):
        raise TypeError("the audited loop has to run on the audit's lot and optimiser")
    picked = everybody.picked if everybody.picked is not None else []
    picked.clear()
    notes.given.clear()
    measured = loop.step(state)
    drawn = picked[0] if picked else np.empty(0, dtype=np.int64)
    rule = rule_of(subject.study, before, clip)
    people, norms = reference.sum(before, rule, drawn[drawn < subject.people.people])
    expected = subject.plan.population * subject.plan.sampling_rate
    notebook.write(
        Seen(
            drawn=drawn,
            clip=clip,
            rule=rule,
            people=people,
            below=int((norms <= clip).sum()) - 0.5 * len(drawn),
            released=[update * expected for update in notes.given],
            next_clip=state.clip,
            clipped=None if measured is None else measured.clipped_released,
        )
    )


def _weights(model: nn.Module) -> Tensor:
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([p.detach().double().reshape(-1) for p in trainable])
