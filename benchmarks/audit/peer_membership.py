"""RMIA beside ml_privacy_meter's on the same signals: AUC, and seconds for the scores alone.

    python -m benchmarks.audit.peer_membership PATH/TO/ml_privacy_meter/attacks.py

The peer's file needs numpy and scikit-learn only. Its release on PyPI (privacy-meter 1.0.1, 2023)
has no RMIA and does not declare what it imports; the file is from its repository. Both sides get
one target, the same eight reference models and 400 people. The peer takes those references that
were trained without a person, and compares with 400 others whom no model saw; ours takes all
references and compares with the non-members.
"""

import importlib.util
import sys
import time

import numpy as np
import torch
from benchmarks.audit.membership import EACH, SHAPE, TASK, everybody

from sequester.audit.lots import join
from sequester.audit.membership import (
    adam,
    halves,
    measure,
    reference_signals,
    rmia,
    signals,
)
from sequester.models import build


def load_peer(path: str):
    specification = importlib.util.spec_from_file_location("peer_attacks", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main() -> None:
    torch.set_num_threads(1)
    peer = load_peer(sys.argv[1])
    print("epochs   ours AUC  TPR@1%      s   peer AUC  TPR@1%      s   (AUC ours - peer)")
    for epochs in (10, 25, 60):
        lot, model = everybody(0), build("gru", SHAPE, {"hidden": 32})
        member = np.arange(lot.people) < EACH
        train = adam(epochs=epochs)
        rows = halves(lot.people, 8)
        wide = join(lot, everybody(1))
        known = np.concatenate([rows, np.zeros_like(rows)], axis=1)
        everything = reference_signals(model, TASK, wide, known, train)
        all_targets = signals(train(model, TASK, lot.select(0, EACH)), TASK, wide)
        references, target = everything[:, : lot.people], all_targets[: lot.people]
        start = time.process_time()
        ours = rmia(target, references, population=~member)
        our_seconds = time.process_time() - start
        columns = np.exp(np.concatenate([[all_targets], [all_targets], everything])).T
        people, others = columns[: lot.people], columns[lot.people :]
        inside = np.concatenate([[member], [member], rows]).T
        start = time.process_time()
        theirs = peer.run_rmia(0, people, others, inside, 4, 1.0)
        peer_seconds = time.process_time() - start
        found = [measure("rmia", s[member], s[~member]) for s in (ours, theirs)]
        words = [
            f"{a.auc.value:8.3f}  {a.tpr_at_fpr[0.01].value:6.3f}  {s:.4f}"
            for a, s in zip(found, (our_seconds, peer_seconds), strict=True)
        ]
        gap = found[0].auc.value - found[1].auc.value
        print(f"{epochs:6d}   {words[0]}   {words[1]}   {gap:+.3f}")


if __name__ == "__main__":
    main()
