"""One training run, and the choice of settings by validation people."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.federated.cgm.data import TASK, everyone, lot_of, model_auc, network
from sequester.federated import algorithms as alg
from sequester.federated.algorithms.personal import Adapter, FineTune, LocalHead
from sequester.federated.clients import Devices
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.simulate import Simulation

BATCH = 32
RATES = (0.1, 0.3)
# What each algorithm's own settings may be; every pair with a local rate is tried.
GRID = {
    "FedAvg": [lambda sites: alg.FedAvg()],
    "FedProx": [lambda sites, mu=mu: alg.FedProx(mu=mu) for mu in (0.01, 0.1)],
    "SCAFFOLD": [lambda sites: alg.Scaffold(sites)],
    "FedNova": [lambda sites: alg.FedNova()],
    "FedAvgM": [lambda sites, beta=beta: alg.FedAvgM(momentum=beta) for beta in (0.5, 0.9)],
    "FedAdam": [
        lambda sites, rate=rate: alg.FedAdam(learning_rate=rate, tau=1e-2) for rate in (0.02, 0.05)
    ],
    "FedYogi": [
        lambda sites, rate=rate: alg.FedYogi(learning_rate=rate, tau=1e-2) for rate in (0.02, 0.05)
    ],
}
PERSONAL = {
    "local head": [lambda layout: LocalHead(layout, ("head",))],
    "adapter": [lambda layout, rank=rank: Adapter(layout, rank) for rank in (1, 2)],
    "fine-tuned": [lambda layout, pull=pull: FineTune(layout, pull) for pull in (0.1, 1.0)],
}


def simulation_of(groups, seed, algorithm, rate=0.2, *, personal=None, tamper=None, **options):
    """A simulation whose clients are `groups` of people, all of them in every round."""
    lot = lot_of(groups)
    model = network(seed)
    engine = choose_engine(model, TASK, lot)
    work = alg.LocalWork(rate, 1, BATCH)
    own = personal(engine.layout) if personal else None
    return Simulation(
        run="cgm",
        state=alg.ServerState(model_vector(model).astype(np.float64)),
        crowd=Devices(engine, work, algorithm, seed, personal=own, tamper=tamper or {}),
        algorithm=algorithm,
        work=algorithm.local(work),
        cohort=lambda _: np.arange(len(groups)),
        weighting=options.pop("weighting", alg.ByWindows()),
        **options,
    )


def curve_of(simulation, rounds, test, marks=()):
    """AUC on `test` after each round in `marks` (every round without), by round."""
    found = {}
    for r in range(1, rounds + 1):
        simulation.run_round()
        if not marks or r in marks:
            found[r] = model_auc(simulation.state.model, test)
    return found


def choose(split, rounds):
    """The settings of each algorithm that validation people like best: mean AUC over rounds.

    The mean over three moments, not the last round: a setting that is slow or unsteady loses.
    """
    sites, validation = list(split.train.values()), lot_of([everyone(split.validate)])
    marks = sorted({5, max(5, rounds // 2), rounds})
    chosen = {}
    for name, makers in GRID.items():
        scores = {}
        for place, rate in itertools.product(range(len(makers)), RATES):
            simulation = simulation_of(sites, 100, makers[place](len(sites)), rate)
            found = curve_of(simulation, rounds, validation, marks)
            scores[place, rate] = float(np.mean(list(found.values())))
        place, rate = max(scores, key=scores.get)
        chosen[name] = (makers[place], rate)
        print(f"  {name:12}{describe(makers[place](len(sites)), rate)}", flush=True)
    return chosen


def describe(algorithm, rate):
    """An algorithm's settings in words."""
    fields = {
        name: value
        for name, value in vars(algorithm).items()
        if name in ("mu", "momentum", "tau") or (name == "learning_rate" and value != 1.0)
    }
    return f"local rate {rate:g}" + "".join(f", {name} {value:g}" for name, value in fields.items())


def own_auc(simulation, test):
    """Each site's own model on its own test people: mean over windows, and the worst site."""
    crowd, shared = simulation.crowd, simulation.state.model.astype(np.float32)
    values, weights = [], []
    for place, people in enumerate(test.values()):
        own = shared
        if crowd.personal is not None:
            own = crowd.personal.start(shared, crowd.kept.get(place))
        lot = lot_of([people])
        values.append(model_auc(own, lot))
        weights.append(len(lot.owner))
    return float(np.average(values, weights=weights)), float(min(values))


def choose_personal(split, rate, rounds):
    """The settings of each kind of personalisation by validation people of the same sites."""
    sites, chosen = list(split.train.values()), {}
    for name, makers in PERSONAL.items():
        scores = []
        for maker in makers:
            simulation = simulation_of(sites, 100, alg.FedAvg(), rate, personal=maker)
            curve_of(simulation, rounds, lot_of([sites[0][:1]]), (rounds,))
            scores.append(own_auc(simulation, split.validate)[0])
        chosen[name] = makers[int(np.argmax(scores))]
    return chosen
