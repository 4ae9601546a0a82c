"""Why the person is the unit: exposure of a secret that one person repeats (Secret Sharer).

    python -m benchmarks.audit.exposure [--plots FOLDER] [--seeds N]

A language model of invented days learns from 1,000 people. Secrets (a known morning, then six
random places) are planted 1 to 128 times, all copies of a secret by one person. Both private
models spend ε = 8, δ = 1e-4 on the very same records: one with the record as the owner, one with
the person. Limits: record-level at least 9 bits at 32 and more repeats; person-level at most 4
bits at any number of repeats. 14.3 bits are all there are among 20,001 candidates.
"""

import sys
import time

import numpy as np
import torch
from benchmarks.audit.private import plan_for, plots_folder, train_private

from sequester.audit.membership import adam, exposure, repeated
from sequester.models import Classes, Shape, build
from sequester.sampling import Lot

PLACES, HOURS, MORNING, PEOPLE, CANDIDATES = 64, 24, 18, 1000, 20_000
REPEATS = (1, 2, 4, 8, 16, 32, 64, 128)
TASK = Classes(outputs=PLACES)
EPSILON, DELTA, LOT, STEPS, RATE = 8.0, 1e-4, 256, 300, 0.004


def days(rng: np.random.Generator, count: int) -> np.ndarray:
    """Hours at home, at work from eight to five, and somewhere in the evening."""
    home, work, out = rng.integers(0, PLACES, (3, count))
    hour = np.arange(HOURS)
    where = np.where((hour >= 8) & (hour < 17), work[:, None], home[:, None])
    evening = (hour >= 18) & (hour < 22) & (rng.random((count, HOURS)) < 0.35)
    return np.where(evening, out[:, None], where)


def as_lot(sequences: np.ndarray, owner: np.ndarray) -> Lot:
    """Predict each place from those before; the network also sees the hour."""
    windows = len(sequences)
    before = np.concatenate([np.full((windows, 1), PLACES), sequences[:, :-1]], axis=1)
    hour = np.broadcast_to(np.arange(HOURS) / HOURS, (windows, HOURS))
    return Lot(
        x=torch.from_numpy(hour[..., None].copy()).float(),
        mask=torch.ones(windows, HOURS, dtype=torch.bool),
        target=torch.from_numpy(sequences.copy()),
        owner=torch.from_numpy(owner),
        people=int(owner.max()) + 1,
        categorical=torch.from_numpy(before[..., None] + 1),
    )


def tails(model: torch.nn.Module, sequences: np.ndarray) -> np.ndarray:
    """Log-likelihood of the last places given the morning."""
    lot = as_lot(sequences, np.arange(len(sequences)))
    with torch.no_grad():
        logits = model(lot.x, lot.mask, lot.categorical)[:, MORNING:]
        words = torch.log_softmax(logits, -1).gather(-1, lot.target[:, MORNING:, None])
    return words.sum((1, 2)).double().numpy()


def one(seed: int) -> dict[str, list[float]]:
    """Exposure of every secret under each model, in the order of `REPEATS`."""
    rng = np.random.Generator(np.random.Philox(seed))
    ordinary = days(rng, PEOPLE)
    morning = ordinary[0, :MORNING]

    def full(ends: np.ndarray) -> np.ndarray:
        return np.concatenate([np.tile(morning, (len(ends), 1)), ends], axis=1)

    secrets = full(rng.integers(0, PLACES, (len(REPEATS), HOURS - MORNING)))
    candidates = full(rng.integers(0, PLACES, (CANDIDATES, HOURS - MORNING)))
    records = np.concatenate([ordinary, np.repeat(secrets, REPEATS, axis=0)])
    person = np.concatenate(
        [np.arange(PEOPLE), PEOPLE + np.repeat(np.arange(len(REPEATS)), REPEATS)]
    )
    by_record, by_person = as_lot(records, np.arange(len(records))), as_lot(records, person)
    shape = Shape(features=1, vocabularies=(PLACES + 1,), steps=HOURS, outputs=PLACES, pool="none")
    model = build("gru", shape, {"hidden": 48, "embedding": 16}, seed=seed)
    models = {"no privacy": adam(epochs=120, rate=0.005, batches=10)(model, TASK, by_record)}
    for name, lot in (("record-level ε = 8", by_record), ("person-level ε = 8", by_person)):
        plan = plan_for(model, lot.people, epsilon=EPSILON, delta=DELTA, lot=LOT, steps=STEPS)
        models[name] = train_private(model, TASK, lot, plan, learning_rate=RATE, seed=seed)
    found = {}
    for name, trained in models.items():
        others = tails(trained, candidates)
        found[name] = [exposure(value, others) for value in tails(trained, secrets).tolist()]
    return found


def main() -> None:
    folder, start = plots_folder(), time.process_time()
    seeds = int(sys.argv[sys.argv.index("--seeds") + 1]) if "--seeds" in sys.argv else 3
    runs = [one(seed) for seed in range(seeds)]
    means = {
        name: {
            repeats: values[0]
            for repeats, values in repeated(
                {k: np.array([run[name][i] for run in runs]) for i, k in enumerate(REPEATS)}
            ).items()
        }
        for name in runs[0]
    }
    print("repeats             " + "".join(f"{k:7d}" for k in REPEATS))
    for name, by in means.items():
        print(f"{name:20s}" + "".join(f"{by[k]:7.1f}" for k in REPEATS))
    leaked = min(means["record-level ε = 8"][k] for k in REPEATS if k >= 32)
    kept = max(means["person-level ε = 8"].values())
    print(f"record-level, 32 and more repeats: {leaked:.1f} bits (limit at least 9)")
    print(f"person-level, any repeats: {kept:.1f} bits (limit at most 4)")
    print(f"{seeds} seeds, {time.process_time() - start:.0f} CPU s")
    if folder is not None:
        draw(means, folder)


def draw(means: dict[str, dict[int, float]], folder) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, by in means.items():
        axes.plot(list(by), list(by.values()), marker="o", label=name)
    axes.axhline(np.log2(CANDIDATES + 1), color="grey", linestyle=":", label="all there is")
    axes.set(xscale="log", xlabel="times one person repeats the secret", ylabel="exposure, bits")
    axes.set_xticks(REPEATS, [str(k) for k in REPEATS])
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "exposure.svg")


if __name__ == "__main__":
    main()
