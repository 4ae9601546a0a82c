"""Utility on real data: ours, the twin without privacy, logistic regression, and the goal.

    python -m benchmarks.training.utility [--seeds 3] [--only physionet2012_hourly] [--target 1]

Prints one row per data set and ε. Every run is a whole run (`sequester.train`): noised by a key
of the operating system, accounted for and claimed. Seeds differ in noise, lots and first weights;
people are split once. Settings are those of `chosen.json`, which `choose` found on a split of the
training people. "logistic" is scikit-learn on the summaries of the training people (unprotected),
on the same held-out people.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from benchmarks.training import studies
from benchmarks.training.choose import changed, chosen, row_key
from sequester.models import Classes, auc
from sequester.models.networks import summarise
from sequester.sampling import Lot
from sequester.sequences import People, datasets
from sequester.training import Privacy, Study, demos, train
from sequester.training.dataset import Prepared, prepare

# (data set, ε or None for the twin, the goal)
ROWS: tuple[tuple[str, float | None, float | None], ...] = (
    ("randhie", None, None),
    ("randhie", 1.0, 0.78),
    ("physionet2012_hourly", None, 0.82),
    ("physionet2012_hourly", 3.0, 0.80),
    ("physionet2012_hourly", 1.0, 0.78),
    ("cdnow", None, None),
    ("cdnow", 1.0, 0.765),
    ("foursquare_nyc", None, 0.302),
    ("foursquare_nyc", 8.0, None),
    ("foursquare_nyc", 1.0, None),
)


def load(name: str) -> tuple[Study, People]:
    """The study and people of one data set."""
    if name == "randhie":
        return demos.randhie(), datasets.randhie()
    study = studies.STUDIES[name]()
    return study, studies.people_of(name, study)


def run(study: Study, people: People, epsilon: float | None, seed: int) -> tuple[float, float]:
    """The figure of one run, and its seconds."""
    privacy = study.privacy
    training = msgspec.structs.replace(study.training, seed=seed)
    if epsilon is None:
        privacy = Privacy(mode="none")
    else:
        privacy = msgspec.structs.replace(privacy, epsilon=epsilon)
    asked = msgspec.structs.replace(study, privacy=privacy, training=training)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        done = train(asked, out=Path(out), people=people)
    if done.utility is None or (epsilon is not None and done.epsilon > epsilon):
        raise SystemExit(f"{study.name}: interrupted, or ε {done.epsilon} above {epsilon}")
    return done.utility.value, time.monotonic() - started


def logistic(prepared: Prepared) -> float:
    """Scikit-learn's logistic regression on summaries (per window) or last inputs (per step)."""

    def table(lot: Lot) -> tuple[np.ndarray, np.ndarray]:
        x = lot.x
        if lot.categorical is not None:
            words = [
                torch.nn.functional.one_hot(lot.categorical[..., k], size + 2).float()
                for k, size in enumerate(prepared.shape.vocabularies)
            ]
            x = torch.cat([x, *words], dim=-1)
        flat = summarise(x, lot.mask) if lot.target.dim() == 1 else x.flatten(0, 1)
        target = lot.target.flatten()
        kept = ~torch.isnan(target) if target.is_floating_point() else target >= 0
        return flat[kept].numpy(), target[kept].numpy()

    x, y = table(prepared.train)
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(max_iter=2000).fit(scaler.transform(x), y)
    x, y = table(prepared.held_out)
    if isinstance(prepared.task, Classes):
        return float((model.predict(scaler.transform(x)) == y).mean())
    return auc(y > 0.5, model.decision_function(scaler.transform(x)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--target", default="", help="'twin' or an ε: one row alone")
    options = parser.parse_args()
    print("data set               ε     ours (mean ± sd)   logistic   goal   met   seconds")
    for name in dict.fromkeys(row[0] for row in ROWS):
        if options.only and name != options.only:
            continue
        study, people = load(name)
        beside = logistic(prepare(study, people, key=bytes(32)))
        for _, epsilon, goal in (row for row in ROWS if row[0] == name):
            if options.target not in ("", row_key(epsilon)):
                continue
            asked = changed(study, chosen(name, epsilon))
            found = [run(asked, people, epsilon, seed) for seed in range(options.seeds)]
            values = np.array([value for value, _ in found])
            seconds = float(np.mean([taken for _, taken in found]))
            met = "–" if goal is None else ("yes" if values.mean() >= goal else "NO")
            shown = "∞" if epsilon is None else f"{epsilon:g}"
            print(
                f"{name:22} {shown:5} {values.mean():.4f} ± {values.std():.4f}    "
                f"{beside:.4f}     {goal or 0:.3f}  {met:4}  {seconds:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
