"""Glucose of 443 people at 8 real sites: will it be ≥ 140 mg/dl in 30 minutes?

    python -m benchmarks.federated.cgm [--rounds 60] [--plots DIR]

One table over rounds: FedAvg, FedProx, SCAFFOLD, FedNova, FedAdam and personalisation where the
clients are the eight sites; the same with people dealt at random (IID); hostile sites;
the pooled logistic regression as the yardstick. Test people are one fifth of each site.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import torch
from tests.shared import shared

from sequester.federated import algorithms as alg
from sequester.federated.algorithms.personal import Adapter, FineTune, LocalHead
from sequester.federated.clients import Devices
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.hostile import ATTACKS
from sequester.federated.simulate import Simulation
from sequester.models.build import build
from sequester.models.inputs import Shape
from sequester.models.tasks import Binary, auc, predict
from sequester.sampling import Lot

STEPS, PER_PERSON, HIDDEN = 12, 48, 16
TASK = Binary()
SHAPE = Shape(3, (), STEPS, 1, "last")


def load():
    """Windows of the last hour before each label: value, change and gap; by person and site."""
    table = parquet.read_table(shared("data", "real", "cgm", "data.parquet")).to_pandas()
    generator = np.random.default_rng(0)
    parts = []
    for (site, person), rows in table.groupby(["site", "person"], observed=True, sort=True):
        value = (rows.glucose.to_numpy(float) - 120.0) / 60.0
        seconds = rows.time.to_numpy(float)
        label = rows.label.to_numpy(float)
        step = np.diff(seconds, prepend=seconds[0]) / 900.0
        features = np.stack(
            [value, np.diff(value, prepend=value[0]) * 4, np.clip(step, 0, 4)], axis=1
        )
        ends = np.flatnonzero(~np.isnan(label) & (np.arange(len(label)) >= STEPS - 1))
        ends = np.sort(generator.choice(ends, min(PER_PERSON, len(ends)), replace=False))
        window = ends[:, None] + np.arange(1 - STEPS, 1)
        parts.append((str(site), str(person), features[window].astype(np.float32), label[ends]))
    return parts


def lot_of(groups):
    """A lot whose owners are `groups`, each a list of people's parts."""
    x = np.concatenate([p[2] for group in groups for p in group])
    y = np.concatenate([p[3] for group in groups for p in group]).astype(np.float32)
    counts = [sum(len(p[3]) for p in group) for group in groups]
    return Lot(
        x=torch.from_numpy(x),
        mask=torch.ones(x.shape[:2], dtype=torch.bool),
        target=torch.from_numpy(y),
        owner=torch.from_numpy(np.repeat(np.arange(len(groups)), counts)),
        people=len(groups),
    )


def split(parts):
    """Four fifths of each site's people train, one fifth tests."""
    generator = np.random.default_rng(1)
    train, test = {}, {}
    for site in sorted({p[0] for p in parts}):
        people = [p for p in parts if p[0] == site]
        order = generator.permutation(len(people))
        cut = max(1, len(people) // 5)
        test[site] = [people[k] for k in order[:cut]]
        train[site] = [people[k] for k in order[cut:]]
    return train, test


def model_auc(vector, lot):
    """AUC of a flat model on a lot."""
    model = build("gru", SHAPE, {"hidden": HIDDEN}, seed=0)
    at, flat = 0, torch.from_numpy(np.asarray(vector, np.float32))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
    return auc(lot.target.numpy() > 0.5, predict(model, lot)[:, 0].numpy())


def train(groups, test, rounds, algorithm=None, *, every=0, tamper=None, rule=None, **options):
    """AUC on `test` over rounds; returns curve, simulation and seconds."""
    lot = lot_of(groups)
    model = build("gru", SHAPE, {"hidden": HIDDEN}, seed=0)
    engine = choose_engine(model, TASK, lot)
    algorithm = algorithm or alg.FedAvg()
    work = alg.LocalWork(options.pop("rate", 0.2), 1, 32)
    personal = options.pop("personal", lambda layout: None)(engine.layout)
    simulation = Simulation(
        run="cgm",
        state=alg.ServerState(model_vector(model).astype(np.float64)),
        crowd=Devices(engine, work, algorithm, 0, personal=personal, tamper=tamper or {}),
        algorithm=algorithm,
        work=algorithm.local(work),
        cohort=lambda _: np.arange(len(groups)),
        weighting=options.pop("weighting", alg.ByWindows()),
        rule=rule,
        **options,
    )
    start, curve = time.perf_counter(), []
    for r in range(rounds):
        simulation.run_round()
        if (every and (r + 1) % every == 0) or r + 1 == rounds:
            curve.append((r + 1, model_auc(simulation.state.model, test)))
    return curve, simulation, time.perf_counter() - start


def pooled_logistic(train_groups, test_lot):
    """The yardstick: logistic regression on the same windows, pooled."""
    from sklearn.linear_model import LogisticRegression

    lot = lot_of(train_groups)
    fitted = LogisticRegression(max_iter=2000).fit(lot.x.flatten(1).numpy(), lot.target.numpy())
    score = fitted.decision_function(test_lot.x.flatten(1).numpy())
    return auc(test_lot.target.numpy() > 0.5, score)


def personal_auc(simulation, test):
    """Each site's own model on its own test people, pooled."""
    crowd = simulation.crowd
    shared_model = simulation.state.model.astype(np.float32)
    values, weights = [], []
    for k, people in enumerate(test.values()):
        own = crowd.personal.start(shared_model, crowd.kept.get(k))
        lot = lot_of([people])
        values.append(model_auc(own, lot))
        weights.append(len(lot.owner))
    return float(np.average(values, weights=weights)), float(min(values))


def compare(train_sites, test_sites, rounds):
    """The table of algorithms, non-IID beside IID."""
    test = lot_of([[p for people in test_sites.values() for p in people]])
    sites = list(train_sites.values())
    everyone = [p for people in sites for p in people]
    order = np.random.default_rng(2).permutation(len(everyone))
    dealt = [[everyone[k] for k in part] for part in np.array_split(order, len(sites))]
    print(f"pooled logistic regression: AUC {pooled_logistic(sites, test):.4f}")
    marks = [5, 20, rounds]
    head = " ".join(f"{f'r{m}':>7}" for m in marks)
    print(f"{'algorithm':24}{head}   (sites)   {head}   (dealt at random)  seconds")
    rows = {
        "FedAvg": alg.FedAvg(),
        "FedProx mu 0.1": alg.FedProx(mu=0.1),
        "SCAFFOLD": alg.Scaffold(len(sites)),
        "FedNova": alg.FedNova(),
        "FedAvgM 0.7": alg.FedAvgM(momentum=0.7),
        "FedAdam": alg.FedAdam(learning_rate=0.02, tau=1e-2),
        "FedYogi": alg.FedYogi(learning_rate=0.02, tau=1e-2),
        "FedAdagrad": alg.FedAdagrad(learning_rate=0.05, tau=1e-2),
    }
    curves = {}
    for name, algorithm in rows.items():
        cells = []
        for kind, groups in (("sites", sites), ("dealt", dealt)):
            curve, _, seconds = train(groups, test, rounds, algorithm, every=1)
            curves[name, kind] = curve
            found = dict(curve)
            cells.append(" ".join(f"{found[min(m, rounds)]:7.4f}" for m in marks))
        print(f"{name:24}{cells[0]}             {cells[1]}              {seconds:9.1f}", flush=True)
    return curves, sites, test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--plots", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train_sites, test_sites = split(load())
    curves, sites, test = compare(train_sites, test_sites, given.rounds)
    print("\npersonal models on their own site's test people (mean by windows, worst site)")
    for name, personal in {
        "local head": lambda layout: LocalHead(layout, ("head",)),
        "adapter of rank 2": lambda layout: Adapter(layout, 2),
        "fine-tuned, pull 0.1": lambda layout: FineTune(0.1),
    }.items():
        _, simulation, _ = train(sites, test, given.rounds, personal=personal)
        mean, worst = personal_auc(simulation, test_sites)
        print(f"  {name:24}{mean:7.4f} {worst:7.4f}", flush=True)
    _, simulation, _ = train(sites, test, given.rounds)
    values = [model_auc(simulation.state.model, lot_of([p])) for p in test_sites.values()]
    sizes = [sum(len(p[3]) for p in people) for people in test_sites.values()]
    print(
        f"  {'the shared FedAvg model':24}{np.average(values, weights=sizes):7.4f}"
        f" {min(values):7.4f}"
    )
    print("\none site left out of training, AUC on all its people")
    for name in train_sites:
        rest = [people for site, people in train_sites.items() if site != name]
        out = lot_of([train_sites[name] + test_sites[name]])
        curve, _, _ = train(rest, out, given.rounds)
        print(f"  {name:24}{curve[-1][1]:7.4f}", flush=True)
    hostile(train_sites, test, given.rounds)
    if given.plots:
        plot(curves, given.plots)


def hostile(train_sites, test, rounds):
    """Hostile clients among 40 clients of about nine people each."""
    everyone = [p for people in train_sites.values() for p in people]
    groups = [[everyone[k] for k in part] for part in np.array_split(np.arange(len(everyone)), 40)]
    rules = {
        "mean": None,
        "norm bound 0.5": alg.NormBound(0.5),
        "median": alg.CoordinateMedian(),
        "trimmed 0.3": alg.TrimmedMean(0.3),
        "Krum 0.3": alg.Krum(0.3),
        "multi-Krum 0.3": alg.Krum(0.3, 1000),
    }
    print("\nAUC with hostile clients of 40 (uniform weights)")
    print(f"  {'attack':16}{'share':>6} " + " ".join(f"{name:>15}" for name in rules))
    for attack in ("none", "flip-and-scale", "scale", "nan"):
        for share in (0.0,) if attack == "none" else (0.1, 0.2, 0.3):
            chosen = np.random.default_rng(3).permutation(40)[: round(40 * share)]
            tamper = {int(k): ATTACKS[attack] for k in chosen} if attack != "none" else {}
            cells = []
            for rule in rules.values():
                curve, _, _ = train(
                    groups, test, rounds // 2, tamper=tamper, rule=rule, weighting=alg.Uniform()
                )
                cells.append(f"{curve[-1][1]:15.4f}")
            print(f"  {attack:16}{share:6.0%} " + " ".join(cells), flush=True)


def plot(curves, folder):
    """AUC against round, sites beside dealt people."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, kind in zip(axes, ("sites", "dealt"), strict=True):
        for (name, which), curve in curves.items():
            if which == kind:
                axis.plot(*zip(*curve, strict=True), label=name)
        axis.set(xlabel="round", title="real sites" if kind == "sites" else "dealt at random")
        axis.set_ylim(0.85, 0.97)
    axes[0].set_ylabel("AUC on held-out people")
    axes[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / "cgm_rounds.png", dpi=120)


if __name__ == "__main__":
    main()
