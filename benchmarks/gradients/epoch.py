"""`python -m benchmarks.gradients.epoch`: epochs on real people, private and plain, in turn.

The main job on `physionet2012_hourly`: as the utility benchmark declares it (a small GRU, 40 steps
with everybody in each), or, with `--hidden`, a GRU of that size and as many lots an epoch as
`--steps` says. The first epoch has each path's first use and most of the comparisons with people
taken alone; the later ones are what a longer run is made of. Private is the whole job: solving for
the noise, reserving in a ledger on disk, Poisson lots, per-person clipping, cryptographic noise,
the step's figures, the position of the noise synced to disk, checkpoints. Plain is the loop anyone
would write: shuffled batches of as many people, or everybody, native modules, SGD. Reading and
preparing the data is the same for both and not timed, nor is what follows a run's last step: its
claim and its card.
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


def clock():
    """Wall and CPU seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def study_of(options, ledger):
    """The main job, or a GRU of the size asked for."""
    study = studies.physionet()
    change = msgspec.structs.replace
    study = change(
        study,
        training=change(study.training, steps=options.epochs * options.steps, average=0.0),
        ledger=LedgerSection(url=ledger, budget="epoch"),
    )
    if not options.hidden:
        return study
    return change(
        study,
        model=Model(kind="gru", pool="mean", options={"hidden": options.hidden}),
        privacy=change(study.privacy, epsilon=3.0),
        training=change(study.training, sampling_rate=1 / options.steps, learning_rate=0.1),
    )


def both(study, people, out, options):
    """Seconds of planning and reserving, of each private epoch, and of the plain one after it."""
    started = clock()
    folder, begun = resumption.start(study, out, people, "central")
    with folder.held():
        key = run_key(folder.checkpoints, test_seed=None)
        charge = charging.reserve(study, begun, people)
        planned = clock() - started
        session = Session.open(folder, study, charge.begun, people, key)
        rival, ours, theirs, done = plain(study, session, options.steps), [], [], 0
        gc.collect()
        began = clock()

        def watch(measured):
            nonlocal began, done
            done += 1
            if done % options.steps == 0:
                ours.append(clock() - began)
                theirs.append(next(rival))
                began = clock()

        assert session.run(watch)
        ours[-1] += clock() - began  # the last checkpoint
    return planned, np.stack(ours), np.stack(theirs), session


def plain(study, session, steps):
    """Epochs of as many steps without privacy, one after another; seconds of each."""
    lot, task = session.prepared.train, session.prepared.task
    model = build(study.model.kind, session.prepared.shape, study.model.options, seed=0)
    optimiser = torch.optim.SGD(model.parameters(), lr=study.training.learning_rate)
    while True:
        began = clock()
        for batch in torch.randperm(lot.people).chunk(steps) if steps > 1 else [None]:
            part = lot
            if batch is not None:  # each person has one window
                x, mask, target = (t.index_select(0, batch) for t in (lot.x, lot.mask, lot.target))
                owner, people = torch.arange(len(batch)), len(batch)
                part = replace(lot, x=x, mask=mask, target=target, owner=owner, people=people)
            optimiser.zero_grad()
            task.loss(model, part).mean().backward()
            optimiser.step()
        yield clock() - began


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients.epoch")
    parser.add_argument("--hidden", type=int, default=0, help="units; 0 for the main job's model")
    parser.add_argument("--steps", type=int, default=None, help="lots in an epoch")
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if not options.hidden and options.steps not in (None, 1):
        parser.error("the main job has everybody in each lot; give --hidden for another one")
    options.steps = options.steps or (60 if options.hidden else 1)
    options.epochs = options.epochs or (4 if options.hidden else 40)
    torch.set_num_threads(options.threads)
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/budget.db"
        study = study_of(options, url)
        with Ledger.create(url) as ledger:
            ledger.create_budget("epoch", "physionet2012", 1000.0, 1e-2)
        for number in range(options.rounds):
            people = studies.people_of(study.data.source, study)  # nothing is known of them yet
            *seconds, session = both(study, people, Path(name) / str(number), options)
            rounds.append(seconds)
    planned, ours, theirs = (np.stack(part) for part in zip(*rounds, strict=True))
    count = session.prepared.train.people
    print(f"{study.model.kind} {study.model.options['hidden']}, {count} people, {options.steps} "
          f"step(s) an epoch, {options.epochs} epochs, {options.threads} thread(s), medians of "
          f"{options.rounds} rounds")  # fmt: skip
    wall, cpu = np.median(planned, axis=0)
    print(f"noise solved for, data identified, ledger, once: {wall:.2f} s ({cpu:.2f} s of CPU)")
    print("| | private, s (CPU) | plain PyTorch, s (CPU) | private / plain (≤ 1.0) |")
    print("|---|---|---|---|")
    for title, a, b in (
        ("first epoch", ours[:, 0], theirs[:, 0]),
        ("a later epoch", ours[:, 1:].mean(1), theirs[:, 1:].mean(1)),
        ("an epoch on average", ours.mean(1), theirs.mean(1)),
        ("all, with what comes once", ours.sum(1) + planned, theirs.sum(1)),
    ):
        (wall, cpu), (wall_plain, cpu_plain) = np.median(a, axis=0), np.median(b, axis=0)
        ratio = np.median(a[:, 0] / b[:, 0])
        verdict = "met" if ratio <= 1.0 else "MISSED"
        print(f"| {title} | {wall:.2f} ({cpu:.2f}) | {wall_plain:.2f} ({cpu_plain:.2f}) "
              f"| {ratio:.2f} {verdict} |")  # fmt: skip


if __name__ == "__main__":
    main()
