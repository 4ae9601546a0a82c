"""Membership attacks on a GRU without privacy, at ε = 8 and at ε = 2.

    python -m benchmarks.audit.membership [--plots FOLDER] [--targets N]

200 members and 200 others, each with four windows whose answers are mostly chance, eight
reference models. Limits of RMIA: without privacy AUC ≥ 0.80; at ε = 8 ≤ 0.60; at ε ≤ 2 within
0.50 ± 3 standard errors. No private figure of any attack may lie above the cap of its claim: the
plain loss finds a little at ε = 2 too, because references trained without noise, which the other
attacks compare with, look nothing like the target.
"""

import sys
import time

import numpy as np
import torch
from benchmarks.audit.private import plan_for, plots_folder, train_private

from sequester import accounting
from sequester.audit.membership import (
    Attack,
    Caps,
    adam,
    halves,
    lira,
    loss,
    measure,
    reference_signals,
    rmia,
    signals,
)
from sequester.models import Classes, Shape, build
from sequester.sampling import Lot

EACH, WINDOWS, LENGTH, CLASSES, DELTA = 200, 4, 12, 6, 1e-5
TASK = Classes(outputs=CLASSES)
SHAPE = Shape(features=3, vocabularies=(), steps=LENGTH, outputs=CLASSES, pool="mean")


def everybody(seed: int) -> Lot:
    """Sine waves whose frequency says the class, but only in six windows of ten."""
    g = torch.Generator().manual_seed(seed)
    rows = 2 * EACH * WINDOWS
    answer = torch.randint(0, CLASSES, (rows,), generator=g)
    time_of = torch.arange(LENGTH) / LENGTH
    phase = torch.rand(rows, 1, 3, generator=g)
    x = torch.sin(6.28 * ((answer[:, None, None] + 1) * time_of[None, :, None] / 2 + phase))
    chance = torch.rand(rows, generator=g) > 0.6
    target = torch.where(chance, torch.randint(0, CLASSES, (rows,), generator=g), answer)
    return Lot(
        x=x + 0.5 * torch.randn(rows, LENGTH, 3, generator=g),
        mask=torch.ones(rows, LENGTH, dtype=torch.bool),
        target=target,
        owner=torch.arange(2 * EACH).repeat_interleave(WINDOWS),
        people=2 * EACH,
    )


def attack(model, lot: Lot, references: np.ndarray, rows: np.ndarray) -> dict[str, Attack]:
    """Every attack on one target whose members are the first half."""
    member = np.arange(lot.people) < EACH
    target = signals(model, TASK, lot)
    scores = {
        "loss": loss(target),
        "lira": lira(target, references, rows),
        "rmia": rmia(target, references, population=~member),
    }
    return {name: measure(name, s[member], s[~member]) for name, s in scores.items()}


def main() -> None:
    folder, start = plots_folder(), time.process_time()
    targets = int(sys.argv[sys.argv.index("--targets") + 1]) if "--targets" in sys.argv else 3
    found: dict[str, list[dict[str, Attack]]] = {}
    caps: dict[str, Caps] = {}
    for seed in range(targets):
        lot = everybody(seed)
        members = lot.select(0, EACH)
        model = build("gru", SHAPE, {"hidden": 32}, seed=seed)
        train = adam(epochs=60, rate=0.01, batches=4)
        rows = halves(lot.people, 8, seed=seed)
        references = reference_signals(model, TASK, lot, rows, train)
        models = {"no privacy": train(model, TASK, members)}
        for epsilon in (8.0, 2.0):
            plan = plan_for(model, EACH, epsilon=epsilon, delta=DELTA, lot=20, steps=100)
            name = f"ε = {epsilon:g}"
            models[name] = train_private(model, TASK, members, plan, learning_rate=0.01, seed=seed)
            caps[name] = Caps.of(accounting.tradeoff(plan.event()))
        for name, trained in models.items():
            found.setdefault(name, []).append(attack(trained, lot, references, rows))
    limits = {"no privacy": "at least 0.80", "ε = 8": "at most 0.60", "ε = 2": "0.50 ± 3 s.e."}
    for name, runs in found.items():
        print(f"{name}: " + line(runs) + f" (limit of RMIA: {limits[name]})")
        if name in caps:
            above = [
                what
                for run in runs
                for a in run.values()
                for what in caps[name].exceeded_by(a, attacks=len(run))
            ]
            print(
                f"  cap of the claim: AUC {caps[name].auc:.3f}; figures above a cap: {len(above)}"
            )
    print(f"{targets} targets, {time.process_time() - start:.0f} CPU s")
    if folder is not None:
        draw({name: runs[0] for name, runs in found.items()}, folder)


def line(runs: list[dict[str, Attack]]) -> str:
    """Mean AUC of each attack, its standard error over targets' intervals, TPR at 1 %."""
    words = []
    for name in runs[0]:
        auc = np.mean([run[name].auc.value for run in runs])
        widths = [(run[name].auc.high - run[name].auc.low) / 3.92 for run in runs]
        error = np.sqrt(np.square(widths).sum()) / len(runs)
        low = np.mean([run[name].tpr_at_fpr[0.01].value for run in runs])
        words.append(f"{name} {auc:.3f} ± {error:.3f}, TPR {low:.3f} at FPR 1 %")
    return "; ".join(words)


def draw(found: dict[str, dict[str, Attack]], folder) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 5))
    for name, attacks in found.items():
        best = attacks["rmia"]
        axes.plot(best.fpr, np.maximum(best.tpr, 1e-3), label=f"{name}: {best.auc.value:.2f}")
    axes.plot([1e-3, 1], [1e-3, 1], color="grey", linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="false-positive rate", ylabel="true-positive rate")
    axes.legend(title="RMIA, AUC")
    figure.tight_layout()
    figure.savefig(folder / "membership.svg")


if __name__ == "__main__":
    main()
