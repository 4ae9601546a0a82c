"""Hostile clients among 40 clients of about nine people each: AUC for each robust rule."""

from __future__ import annotations

import numpy as np

from benchmarks.federated.cgm.data import everyone
from benchmarks.federated.cgm.runs import curve_of, simulation_of
from sequester.federated import algorithms as alg
from sequester.federated.hostile import ATTACKS

CLIENTS = 40
RULES = {
    "mean": None,
    "norm bound": alg.NormBound(0.5),
    "median": alg.CoordinateMedian(),
    "trimmed": alg.TrimmedMean(0.3),
    "Krum": alg.Krum(0.3),
    "multi-Krum": alg.Krum(0.3, 1000),
}
SHOWN = ("sign-flip", "flip-and-scale", "scale", "nan")


def table(sites, test, rounds):
    """Rows of attack and share, columns of rules."""
    people = everyone(sites)
    groups = [[people[k] for k in part] for part in np.array_split(np.arange(len(people)), CLIENTS)]
    print(f"\nhostile clients of {CLIENTS}, {rounds} rounds, uniform weights: AUC by rule")
    print(f"  {'attack':16}{'share':>6} " + " ".join(f"{name:>11}" for name in RULES))
    for attack in ("none", *SHOWN):
        for share in (0.0,) if attack == "none" else (0.1, 0.2, 0.3):
            chosen = np.random.default_rng(3).permutation(CLIENTS)[: round(CLIENTS * share)]
            tamper = {int(k): ATTACKS[attack] for k in chosen} if attack != "none" else {}
            cells = []
            for rule in RULES.values():
                simulation = simulation_of(
                    groups, 0, alg.FedAvg(), tamper=tamper, rule=rule, weighting=alg.Uniform()
                )
                cells.append(curve_of(simulation, rounds, test, (rounds,))[rounds])
            print(
                f"  {attack:16}{share:6.0%} " + " ".join(f"{cell:11.4f}" for cell in cells),
                flush=True,
            )
