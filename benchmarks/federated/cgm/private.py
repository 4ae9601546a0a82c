"""Person-level privacy across the real sites: each person is clipped inside the site."""

from __future__ import annotations

import numpy as np

from benchmarks.federated.cgm.data import TASK, lot_of, model_auc, network
from sequester import accounting
from sequester.core.rng import Keystream, fresh_key
from sequester.federated import algorithms as alg
from sequester.federated.clients import Silos
from sequester.federated.engine.base import layout_of, model_vector
from sequester.federated.messages import Layout
from sequester.federated.simulate import Guarantee, Simulation
from sequester.gradients import Flat
from sequester.mechanism import NoiseStream, Plan
from sequester.sampling import PoissonSampler
from sequester.training.chance import Chance

CLIP, DELTA = 0.5, 1e-5
POPULATION = 350  # declared; a round number below the people in training


def curve(sites, test, seed, rounds, epsilon):
    """AUC after each round at person-level `epsilon`, all people in every round."""
    model = network(seed)
    inner = layout_of(model)
    noise = accounting.calibrate.noise_multiplier(epsilon, DELTA, 1.0, rounds)
    plan = Plan("person", POPULATION, 1.0, rounds, noise, CLIP, inner.size, DELTA)
    key = fresh_key()
    layout = Layout((*inner.names, "below", "people"), (*inner.shapes, (), ()), "float64")
    lots = [lot_of([[person] for person in people]) for people in sites]
    silos = Silos(
        model=model,
        task=TASK,
        sites=lots,
        samplers=[
            PoissonSampler(lot.people, 1.0, Keystream(key, "cgm", f"lots/{place}"))
            for place, lot in enumerate(lots)
        ],
        plan=plan,
        rule=lambda _, clip: Flat(clip),
        layout=layout,
        chance=Chance.of(key, "cgm"),
    )
    algorithm = alg.FedAdam(learning_rate=0.05, tau=1e-3)
    simulation = Simulation(
        run="cgm",
        state=alg.ServerState(model_vector(model).astype(np.float64)),
        crowd=silos,
        algorithm=algorithm,
        work=alg.LocalWork(),
        cohort=lambda _: np.arange(len(lots)),
        guarantee=Guarantee(plan, NoiseStream(key, "cgm"), sites=True),
        clip=CLIP,
    )
    found = {}
    for r in range(1, rounds + 1):
        simulation.run_round()
        found[r] = model_auc(simulation.state.model, test)
    return found
