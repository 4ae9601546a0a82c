"""Whole federated runs on real data: charged, noised by a key of the system, claimed.

    python -m benchmarks.federated.utility [--seeds 3] [--only randhie]

randhie         six sites, person-level ε = 1 inside the silos (goal AUC ≥ 0.775); the same with
                two noisy steps of each site in a round, where the server is not trusted
foursquare_nyc  a client is a person: 193 people, about 155 in training

foursquare_nyc takes minutes a run (a network with categories trains client by client): one seed of
it for three of the others. Seeds differ in noise, lots and first weights; people are split once.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.training import studies
from sequester.federated.run import federate
from sequester.sequences import datasets
from sequester.training import Privacy, Study, Training, demos


def rounds_of(study, **training):
    """What of a central study's training also holds in rounds."""
    kept = {"sampling_rate": study.training.sampling_rate, "steps": study.training.steps}
    return Training(**(kept | training))


def randhie(federated, **training) -> tuple[Study, object]:
    """The demo's study with a federated part."""
    study = demos.randhie()
    changed = rounds_of(study, **({"steps": 40} | training))
    privacy = msgspec.structs.replace(study.privacy, clip=0.5)
    return msgspec.structs.replace(
        study, training=changed, privacy=privacy, federated=federated
    ), datasets.randhie()


def foursquare(epsilon, federated, **training) -> tuple[Study, object]:
    """The study of the central benchmark; a client is a person."""
    study = studies.foursquare()
    privacy = (
        Privacy(mode="none")
        if math.isinf(epsilon)
        else msgspec.structs.replace(study.privacy, epsilon=epsilon)
    )
    changed = rounds_of(study, **training)
    asked = msgspec.structs.replace(study, privacy=privacy, training=changed, federated=federated)
    return asked, studies.people_of("foursquare_nyc", asked)


SILO = {"placement": "cross-silo", "algorithm": "fedadam", "tau": 1e-8}
DEVICE = {"placement": "cross-device", "algorithm": "fedavgm", "local_learning_rate": 1.0}
ROWS = {
    "randhie, 6 sites, ε = 1": (
        "randhie",
        lambda: randhie(SILO | {"server_learning_rate": 0.03}),
        0.775,
    ),
    "randhie, 6 sites, ε = 1, 2 steps a round, server not trusted": (
        "randhie",
        lambda: randhie(
            SILO | {"server_learning_rate": 0.03, "local_steps": 2, "local_learning_rate": 0.5}
        ),
        None,
    ),
    "foursquare_nyc, by person, no guarantee": (
        "foursquare_nyc",
        lambda: foursquare(math.inf, DEVICE, steps=100, sampling_rate=0.5),
        0.302,
    ),
    "foursquare_nyc, by person, ε = 8": (
        "foursquare_nyc",
        lambda: foursquare(8.0, DEVICE, steps=30, sampling_rate=1.0),
        None,
    ),
    "foursquare_nyc, by person, ε = 1": (
        "foursquare_nyc",
        lambda: foursquare(1.0, DEVICE, steps=30, sampling_rate=1.0),
        None,
    ),
}


def run(study, people, seed):
    """Figure of merit, its name, ε and seconds of one run."""
    training = msgspec.structs.replace(study.training, seed=seed)
    asked = msgspec.structs.replace(study, training=training)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        done = federate(asked, out=Path(out), people=people)
    if done.utility is None:  # Ctrl-C ends a run in good order; it ends this table too
        raise SystemExit(130)
    return done.utility.value, done.utility.metric, done.epsilon, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, (data, make, goal) in ROWS.items():
        if given.only not in (data, ""):
            continue
        study, people = make()
        seeds = given.seeds if data == "randhie" else max(1, given.seeds // 3)
        found = [run(study, people, seed) for seed in range(seeds)]
        values = np.array([value for value, *_ in found])
        verdict = (
            "" if goal is None else f"  goal {goal}: {'met' if values.mean() >= goal else 'MISSED'}"
        )
        print(
            f"{name:62} {found[0][1]} {values.mean():.4f} ± {values.std():.4f}  "
            f"ε {max(f[2] for f in found):.3g}  {found[0][3]:.1f} s{verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
