"""`python -m benchmarks.gradients.epoch`: one epoch on real people, private and plain, in turn.

The main job's GRU on `physionet2012_hourly`: as many steps as make an epoch, about 65 people in
each. Private is the whole job: solving for the noise, reserving in a ledger on disk, Poisson
lots, per-person clipping, cryptographic noise, the step's figures, the position of the noise
synced to disk, checkpoints. Plain is the loop anyone would write: shuffled batches of as many
people, native modules, SGD. Reading and preparing the data is the same for both and not timed.
"""

import argparse
import gc
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.training import studies
from sequester.ledger import Ledger
from sequester.models import build
from sequester.training import Model, charging, resumption
from sequester.training.checkpoint import run_key
from sequester.training.session import Session
from sequester.training.study import LedgerSection

STEPS = 60


def clock():
    """Wall and CPU seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def study_of(hidden, ledger):
    study = studies.physionet()
    change = msgspec.structs.replace
    return change(
        study,
        model=Model(kind="gru", pool="mean", options={"hidden": hidden}),
        privacy=change(study.privacy, epsilon=3.0),
        training=change(study.training, steps=STEPS, sampling_rate=1.0 / STEPS, average=0.0),
        ledger=LedgerSection(url=ledger, budget="epoch"),
    )


def private(study, people, out):
    """Seconds of planning and reserving, and of the steps."""
    started = clock()
    folder, begun = resumption.start(study, out, people, "central")
    with folder.held():
        key = run_key(folder.checkpoints, test_seed=None)
        charge = charging.reserve(study, begun, people)
        planned = clock() - started
        session = Session.open(folder, study, charge.begun, people, key)
        gc.collect()
        started = clock()
        assert session.run(lambda measured: None)
        return planned, clock() - started, session


def plain(study, session):
    """Seconds of the same number of steps without privacy."""
    lot, task = session.prepared.train, session.prepared.task
    model = build(study.model.kind, session.prepared.shape, study.model.options, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    started = clock()
    for batch in torch.randperm(lot.people).chunk(STEPS):
        part = replace(  # each person has one window
            lot, x=lot.x[batch], mask=lot.mask[batch], target=lot.target[batch],
            owner=torch.arange(len(batch)), people=len(batch),
        )  # fmt: skip
        optimiser.zero_grad()
        task.loss(model, part).mean().backward()
        optimiser.step()
    return clock() - started


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients.epoch")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/budget.db"
        study = study_of(options.hidden, url)
        with Ledger.create(url) as ledger:
            ledger.create_budget("epoch", "physionet2012", 1000.0, 1e-2)
        for number in range(options.rounds):
            people = studies.people_of(study.data.source, study)  # nothing is known of them yet
            planned, steps, session = private(study, people, Path(name) / str(number))
            pairs.append((planned, steps, plain(study, session)))
    print(f"GRU {options.hidden}, {session.prepared.train.people} people, {STEPS} steps, "
          f"{options.threads} thread(s), {options.rounds} rounds in turn")  # fmt: skip
    print("| | wall, s | CPU, s |")
    print("|---|---|---|")
    names = (
        "private: noise solved for, data identified, ledger",
        "private: steps",
        "plain PyTorch",
    )
    for name, column in zip(names, zip(*pairs, strict=True), strict=True):
        wall, cpu = np.median(column, axis=0)
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |")
    for name, parts in (("steps", slice(1, 2)), ("all", slice(0, 2))):
        wall, cpu = np.median([sum(pair[parts]) / pair[2] for pair in pairs], axis=0)
        verdict = "met" if wall <= 1.0 else "MISSED"
        print(f"| private, {name} / plain (≤ 1.0) | {wall:.2f} {verdict} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
