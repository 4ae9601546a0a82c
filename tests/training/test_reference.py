"""The loop agrees, step for step, with the single-file reference on the same coins and noise."""

import importlib.util
from pathlib import Path

import numpy as np
import torch

from sequester.core.rng import Keystream, key_from_test_seed
from sequester.mechanism import NoiseStream, Plan
from sequester.models import Binary, Shape, build
from sequester.sampling import Lot, PoissonSampler
from sequester.training.chance import Chance
from sequester.training.checkpoint import State
from sequester.training.loop import Loop
from sequester.training.monitor import Monitor
from sequester.training.optimisers import Average, Optimiser
from tests.training.population import study

FILE = Path(__file__).resolve().parents[2] / "reference" / "dpsgd.py"
spec = importlib.util.spec_from_file_location("dpsgd", FILE)
assert spec is not None
assert spec.loader is not None
dpsgd = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dpsgd)

KEY = key_from_test_seed(21)
PEOPLE, RATE, STEPS, WIDTH = 60, 0.3, 25, 5


def everybody() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(4)
    found = []
    for _ in range(PEOPLE):
        x = generator.normal(size=(generator.integers(1, WIDTH + 1), 3)).astype(np.float32)
        found.append((x, (x[:, 0] + generator.normal(size=len(x)) > 0).astype(np.float32)))
    return found


def as_lot(people: list[tuple[np.ndarray, np.ndarray]]) -> Lot:
    x = np.zeros((PEOPLE, WIDTH, 3), dtype=np.float32)
    target = np.full((PEOPLE, WIDTH), np.nan, dtype=np.float32)
    for i, (rows, answers) in enumerate(people):
        x[i, : len(rows)], target[i, : len(rows)] = rows, answers
    return Lot(
        x=torch.from_numpy(x),
        mask=torch.from_numpy(~np.isnan(target)),
        target=torch.from_numpy(target),
        owner=torch.arange(PEOPLE),
        people=PEOPLE,
    )


def test_every_step_agrees_with_the_reference(tmp_path: Path):
    asked = study(
        training__optimizer="sgd",
        training__momentum=0.0,
        training__learning_rate=2.0,
        training__average=0.0,
        training__steps=STEPS,
        privacy__clip=0.3,
    )
    plan = Plan("person", 50, RATE, STEPS, 1.1, 0.3, 4, 1e-5)
    model = build("linear", Shape(3, (), WIDTH, 1, "none"), seed=1)
    sampler = PoissonSampler(PEOPLE, RATE, Keystream(KEY, "run", "lots"))
    loop = Loop(
        study=asked,
        plan=plan,
        train=as_lot(everybody()),
        task=Binary(),
        sampler=sampler,
        stream=NoiseStream(KEY, "run", private=False),
        monitor=Monitor(tmp_path),
        chance=Chance.of(KEY, "run"),
    )
    state = State(model, Optimiser(asked.training), Average(0.0), step=0, applied=0, clip=0.3)

    def weights() -> np.ndarray:
        named = dict(model.named_parameters())
        parts = [named["head.weight"].detach().flatten(), named["head.bias"].detach()]
        return torch.cat(parts).double().numpy()

    mine = weights()
    noise = NoiseStream(KEY, "run", private=False)
    people = everybody()
    for step in range(STEPS):
        mine = dpsgd.step(
            mine,
            [people[i] for i in sampler.draw(step)],
            noise.draw(step, 4, meets=b"").numpy(),
            bound=0.3,
            noise_multiplier=1.1,
            expected_lot=50 * RATE,
            learning_rate=2.0,
        )
        loop.step(state)
        assert np.allclose(weights(), mine, atol=2e-4), step
    assert np.abs(mine).max() > 0.2
