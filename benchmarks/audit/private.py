"""Training with a guarantee for the demonstrations: the product's own loop on invented people."""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from sequester.accounting import calibrate
from sequester.core.rng import Keystream, key_from_test_seed
from sequester.mechanism import NoiseStream, Plan
from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training import Data, Privacy, Study, Training
from sequester.training.chance import Chance
from sequester.training.checkpoint import State
from sequester.training.loop import Loop
from sequester.training.monitor import Monitor
from sequester.training.optimisers import Average, Optimiser


def train_private(
    model: nn.Module, task: Task, lot: Lot, plan: Plan, *, learning_rate: float, seed: int
) -> nn.Module:
    """A copy of `model` after the plan's steps of DP-Adam; the lot's owners are the unit."""
    trained = copy.deepcopy(model)
    training = Training(
        steps=plan.steps,
        sampling_rate=plan.sampling_rate,
        optimizer="adam",
        learning_rate=learning_rate,
    )
    study = Study(
        name="demonstration",
        data=Data(source="builtin:randhie", population=plan.population),
        privacy=Privacy(noise_multiplier=plan.noise_multiplier),
        training=training,
    )
    key = key_from_test_seed(seed)
    state = State(trained, Optimiser(training), Average(0.0), 0, 0, plan.clip)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(
            study=study,
            plan=plan,
            train=lot,
            task=task,
            sampler=PoissonSampler(lot.people, plan.sampling_rate, Keystream(key, "demo", "lots")),
            stream=NoiseStream(key, "demo", private=False),
            monitor=Monitor(Path(folder)),
            chance=Chance.of(key, "demo"),
        )
        for _ in range(plan.steps):
            loop.step(state)
    return trained


def plan_for(
    model: nn.Module, units: int, *, epsilon: float, delta: float, lot: int, steps: int
) -> Plan:
    """The plan of `steps` Poisson lots of `lot` expected units that costs ε."""
    rate = lot / units
    return Plan(
        unit="person",
        population=units,
        sampling_rate=rate,
        steps=steps,
        noise_multiplier=calibrate.noise_multiplier(
            epsilon, delta, sampling_rate=rate, steps=steps
        ),
        clip=1.0,
        parameters=sum(p.numel() for p in model.parameters()),
        delta=delta,
    )


def plots_folder() -> Path | None:
    """`--plots FOLDER` of the command line; None without it."""
    torch.set_num_threads(1)
    if "--plots" not in sys.argv:
        return None
    folder = Path(sys.argv[sys.argv.index("--plots") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    return folder
