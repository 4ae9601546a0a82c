"""Chooses the utility benchmark's settings without its test people.

    python -m benchmarks.training.choose [--only cdnow] [--target 1] [--seeds 2]

The people held out for the table are set aside first. A quarter of the others is held out in their
place (by a keyed hash of the person), every candidate of `CANDIDATES` is trained on the rest, and
the one with the best mean figure on that quarter goes to `chosen.json`, which `utility` reads. The
last column is what the whole choice would have cost each of these people, had it been charged: all
candidates' runs composed.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sequester import accounting
from sequester.sequences import People
from sequester.training import Holdout, Study
from sequester.training.dataset import split
from sequester.training.planning import make_plan

FILE = Path(__file__).with_name("chosen.json")
VALIDATION = 0.25
Changes = dict[str, Any]


def grid(**values: list[Any]) -> list[Changes]:
    """Every combination; `section__field` names a field of the study."""
    return [
        dict(zip(values, picked, strict=True)) for picked in itertools.product(*values.values())
    ]


_SMALL = {"hidden": 8}
_TWIN = grid(training__steps=[75, 150, 300], training__learning_rate=[1.0])
_PRIVATE = [
    *grid(training__steps=[40], training__learning_rate=[0.5, 1.0, 2.0]),
    *grid(training__steps=[80], training__learning_rate=[0.5, 1.0]),
    *grid(training__steps=[40], training__learning_rate=[1.0], model__options=[{"hidden": 16}]),
]
_CATEGORY = [
    *grid(
        model__kind=["linear"],
        model__options=[{"embedding": 4}],
        training__steps=[40],
        training__learning_rate=[0.5, 1.0, 2.0],
    ),
    *grid(
        model__kind=["copy"],
        model__options=[{"hidden": 4}],
        data__lags=[(2, 3)],
        training__steps=[40],
        training__learning_rate=[0.5, 1.0, 2.0],
    ),
    *grid(model__kind=["gru"], model__options=[{"hidden": 8, "embedding": 4}]),
]

# (candidates of the twin, candidates of private runs)
CANDIDATES: dict[str, tuple[list[Changes], list[Changes]]] = {
    "randhie": (_TWIN, _PRIVATE),
    "physionet2012_hourly": (_TWIN, _PRIVATE),
    "cdnow": (_TWIN, _PRIVATE),
    "foursquare_nyc": (
        grid(
            training__steps=[150, 300, 600],
            training__learning_rate=[1.0, 2.0],
            model__options=[{"hidden": 16, "embedding": 8}],
        ),
        _CATEGORY,
    ),
}


def changed(study: Study, changes: Changes) -> Study:
    """The study with some fields replaced."""
    for name, value in changes.items():
        section, _, field = name.partition("__")
        inner = msgspec.structs.replace(getattr(study, section), **{field: value})
        study = msgspec.structs.replace(study, **{section: inner})
    return study


def chosen(name: str, epsilon: float | None) -> Changes:
    """What was chosen for one row of the table."""
    made: Changes = json.loads(FILE.read_text())[name][row_key(epsilon)]["changes"]
    return {k: tuple(v) if isinstance(v, list) else v for k, v in made.items()}


def row_key(epsilon: float | None) -> str:
    """How a row's target is written in `chosen.json`."""
    return "twin" if epsilon is None else f"{epsilon:g}"


def within(study: Study, people: People) -> tuple[Study, People]:
    """The study on its training people alone, a quarter of them held out."""
    train, _ = split(people, study.data)
    held = study.data.holdout
    # A share is decided by the same hash of the person: of those above it, the next ones.
    share = VALIDATION if held.column else held.share + VALIDATION * (1.0 - held.share)
    population = round(study.data.population * (1.0 - VALIDATION))
    data = msgspec.structs.replace(study.data, holdout=Holdout(share=share), population=population)
    return msgspec.structs.replace(study, data=data), train


def cost(study: Study, candidates: list[Changes], epsilon: float | None, seeds: int) -> float:
    """ε of all candidates' runs together, as one person of the training people meets them."""
    if epsilon is None:
        return float("inf")
    events = []
    for changes in candidates:
        asked = changed(changed(study, changes), {"privacy__epsilon": epsilon})
        events += [make_plan(asked).plan.event()] * seeds
    return accounting.epsilon(accounting.Composed(tuple(events)), study.privacy.delta)


def main() -> None:
    """Choose, print and write."""
    from benchmarks.training.utility import ROWS, load, run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--target", default="", help="'twin' or an ε: one row alone")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in dict.fromkeys(row[0] for row in ROWS):
        if options.only and name != options.only:
            continue
        study, people = within(*load(name))
        for _, epsilon, _ in (row for row in ROWS if row[0] == name):
            if options.target not in ("", row_key(epsilon)):
                continue
            candidates = CANDIDATES[name][0 if epsilon is None else 1]
            figures = []
            for changes in candidates:
                asked = changed(study, changes)
                values = [run(asked, people, epsilon, seed)[0] for seed in range(options.seeds)]
                figures.append(float(np.mean(values)))
                print(f"{name:22} {row_key(epsilon):5} {figures[-1]:.4f}  {changes}", flush=True)
            best = int(np.argmax(figures))
            spent = cost(study, candidates, epsilon, options.seeds)
            entry = {
                "changes": candidates[best],
                "figure": round(figures[best], 4),
                "candidates": len(candidates),
                "seeds": options.seeds,
                "cost": None if np.isinf(spent) else round(spent, 2),
            }
            found.setdefault(name, {})[row_key(epsilon)] = entry
            print(f"{name:22} {row_key(epsilon):5} chosen: {entry}", flush=True)
            FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
