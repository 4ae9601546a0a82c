"""Federated training on eight real sites, every claim about it in one run.

    python -m benchmarks.federated.cgm [--rounds 40] [--seeds 3] [--plots DIR]

1. Settings of every algorithm are chosen by validation people inside the sites.
2. One table over rounds: all algorithms on the sites and on the same people dealt at random,
   and how much of FedAvg's gap between the two each closes.
3. Personal models, on each site's own test people.
4. Each site left out of training in turn.
5. Hostile clients against robust rules.

Test people (a fifth of each site) are looked at once, by settings already chosen. Seeds change
first weights and the order of visits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.federated.cgm import hostile, private
from benchmarks.federated.cgm.data import dealt, everyone, load, lot_of, pooled_logistic, split
from benchmarks.federated.cgm.runs import (
    GRID,
    choose,
    choose_personal,
    curve_of,
    own_auc,
    simulation_of,
)
from sequester.federated import algorithms as alg

EPSILON = 8.0


def marks_of(rounds):
    """The rounds that tables show."""
    return sorted({r for r in (2, 5, 10, 20) if r < rounds} | {rounds})


def compare(people, chosen, rounds, seeds):
    """Mean curves by algorithm and kind of split; prints the table over rounds."""
    final = people.final()
    test = lot_of([everyone(people.test)])
    kinds = {"sites": list(final.values()), "dealt": dealt(final)}
    print(f"\npooled logistic regression: AUC {pooled_logistic(everyone(final), test):.4f}")
    curves = {}
    for name in GRID:
        maker, rate = chosen[name]
        for kind, groups in kinds.items():
            found = [
                curve_of(simulation_of(groups, seed, maker(len(groups)), rate), rounds, test)
                for seed in range(seeds)
            ]
            curves[name, kind] = np.array([list(curve.values()) for curve in found])
    marks = marks_of(rounds)
    print(f"AUC on test people, mean of {seeds} seeds (± sd at the end); gap closed at each round")
    head = " ".join(f"{f'r{r}':>6}" for r in marks)
    print(f"{'':10} {head}  (sites)        {head}  (dealt)   {head}  (gap closed)")
    for name in GRID:
        sites, mixed = curves[name, "sites"], curves[name, "dealt"]
        base, goal = curves["FedAvg", "sites"].mean(0), curves["FedAvg", "dealt"].mean(0)
        closed = [(sites.mean(0)[r - 1] - base[r - 1]) / (goal[r - 1] - base[r - 1]) for r in marks]
        print(
            f"{name:10} "
            + " ".join(f"{sites.mean(0)[r - 1]:6.4f}" for r in marks)
            + f" ±{sites[:, -1].std():.4f}         "
            + " ".join(f"{mixed.mean(0)[r - 1]:6.4f}" for r in marks)
            + "            "
            + " ".join(f"{share:6.0%}" for share in closed),
            flush=True,
        )
    return curves, kinds, test


def personal(people, rate, rounds, seeds):
    """Personal models over rounds, on each site's own test people."""
    sites, test = list(people.final().values()), people.test
    chosen = {"shared": None} | choose_personal(people, rate, rounds)
    marks = marks_of(rounds)
    print("\npersonal models on their own site's test people, over FedAvg")
    head = " ".join(f"{f'r{r}':>6}" for r in marks)
    print(f"{'':12} {head}  (mean over windows)  {head}  (worst site)")
    for name, maker in chosen.items():
        found = []
        for seed in range(seeds):
            simulation = simulation_of(sites, seed, alg.FedAvg(), rate, personal=maker)
            curve = []
            for r in range(1, rounds + 1):
                simulation.run_round()
                if r in marks:
                    curve.append(own_auc(simulation, test))
            found.append(curve)
        mean, worst = np.mean(found, axis=0).T
        print(
            f"{name:12} "
            + " ".join(f"{value:6.4f}" for value in mean)
            + "                       "
            + " ".join(f"{value:6.4f}" for value in worst),
            flush=True,
        )


def left_out(people, rate, rounds, seeds):
    """Each site left out of training in turn; AUC on all its people."""
    final = people.final()
    print("\none site left out of training, AUC on all its people: mean, worst seed")
    means = {}
    for name in final:
        rest = [group for site, group in final.items() if site != name]
        lot = lot_of([final[name] + people.test[name]])
        found = [
            curve_of(simulation_of(rest, seed, alg.FedAvg(), rate), rounds, lot, (rounds,))[rounds]
            for seed in range(seeds)
        ]
        means[name] = float(np.mean(found))
        print(f"  {name:24}{means[name]:8.4f} {min(found):8.4f}", flush=True)
    return min(means.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plots", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    people = split(load())
    counts = [len(everyone(role)) for role in (people.train, people.validate, people.test)]
    print("people to train, validate, test:", *counts, "\nsettings chosen by validation people:")
    chosen = choose(people, given.rounds)
    curves, kinds, test = compare(people, chosen, given.rounds, given.seeds)
    rate = chosen["FedAvg"][1]
    personal(people, rate, given.rounds, given.seeds)
    worst = left_out(people, rate, given.rounds, given.seeds)
    noisy = [
        list(private.curve(kinds["sites"], test, seed, given.rounds, EPSILON).values())
        for seed in range(given.seeds)
    ]
    ends = np.array(noisy)[:, -1]
    print(
        f"\nsites at person-level ε = {EPSILON:g}, δ = {private.DELTA:g}: "
        f"AUC {ends.mean():.4f} ± {ends.std():.4f}"
    )
    best = max(curves[name, "sites"][:, -1].mean() for name in GRID)
    for name, value, goal in (
        ("federated AUC, FedAvg", curves["FedAvg", "sites"][:, -1].mean(), 0.945),
        ("federated AUC, best algorithm", best, 0.945),
        ("worst left-out site", worst, 0.88),
    ):
        print(f"{name:32}{value:8.4f}  goal {goal}  {'met' if value >= goal else 'MISSED'}")
    if given.plots:
        plot(curves, np.array(noisy), given.plots)
    hostile.table(people.final(), test, given.rounds // 2)


def plot(curves, noisy, folder):
    """AUC against round: dealt at random, sites, sites with noise; and all algorithms on sites."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    pyplot.rcParams["svg.fonttype"] = "none"
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    lines = {
        "FedAvg, dealt at random (IID)": curves["FedAvg", "dealt"],
        "FedAvg, real sites (non-IID)": curves["FedAvg", "sites"],
        f"FedAdam on each person, real sites, ε = {EPSILON:g}": noisy,
    }
    for name, values in lines.items():
        rounds = np.arange(1, values.shape[1] + 1)
        left.plot(rounds, values.mean(0), label=name)
        left.fill_between(rounds, values.min(0), values.max(0), alpha=0.2)
    for name in GRID:
        values = curves[name, "sites"].mean(0)
        right.plot(np.arange(1, len(values) + 1), values, label=name)
    for axis, title in ((left, "split and noise"), (right, "algorithms on the real sites")):
        axis.set(xlabel="round", title=title, ylim=(0.85, 0.98))
        axis.legend(fontsize=7, loc="lower right")
    left.set_ylabel("AUC on held-out people")
    figure.tight_layout()
    figure.savefig(folder / "cgm_rounds.svg")


if __name__ == "__main__":
    main()
