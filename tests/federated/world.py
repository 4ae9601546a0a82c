"""Small simulations for tests."""

from __future__ import annotations

import numpy as np

from sequester.core.rng import Keystream, key_from_test_seed
from sequester.federated.algorithms import FedAvg, LocalWork, ServerState
from sequester.federated.clients import Devices
from sequester.federated.engine import BatchedEngine
from sequester.federated.engine.base import layout_of, model_vector
from sequester.federated.engine.recurrent import lay, recognise
from sequester.federated.simulate import Guarantee, Simulation
from sequester.mechanism import NoiseStream, Plan
from sequester.models.tasks import Classes
from sequester.sampling import PoissonSampler
from tests.federated.clients import make_lot, make_model

TASK = Classes(3)
PEOPLE = 24


def make_engine(counts=None):
    lot = make_lot(TASK, counts=counts or (6,) * PEOPLE, ragged=False, seed=4)
    model = make_model(TASK, hidden=8)
    return BatchedEngine(recognise(model, TASK, lot), lay(lot), layout_of(model)), model


def make_plan(engine, **changes):
    fields = {
        "unit": "person",
        "population": PEOPLE,
        "sampling_rate": 0.5,
        "steps": 20,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "parameters": engine.layout.size,
        "delta": 1e-5,
    }
    return Plan(**(fields | changes))


def make_simulation(*, plan=None, rate=0.5, run="test", seed=1, counts=None, **changes):
    """A simulation of 24 people; `plan` may be a dict of changes to the default plan."""
    engine, model = make_engine(counts)
    key = key_from_test_seed(seed)
    guarantee = None
    if plan is not None:
        made = make_plan(engine, sampling_rate=rate, **plan)
        guarantee = Guarantee(made, NoiseStream(key, run, private=False))
    algorithm = changes.pop("algorithm", FedAvg())
    work = LocalWork(0.2, 1, 3)
    devices = {
        name: changes.pop(name)
        for name in ("tamper", "feedback", "personal", "protect")
        if name in changes
    }
    return Simulation(
        run=run,
        state=ServerState(model_vector(model).astype(np.float64)),
        crowd=Devices(engine, work, algorithm, 7, **devices),
        algorithm=algorithm,
        work=algorithm.local(work),
        cohort=PoissonSampler(PEOPLE, rate, Keystream(key, run, "lots")).draw,
        guarantee=guarantee,
        clip=guarantee.plan.clip if guarantee else 0.0,
        **changes,
    )
