"""Gradient inversion of windows of 48 steps x 3 features, and what protects against it.

    python -m benchmarks.audit.inversion [--plots FOLDER] [--effects]

Limits: closed forms (first linear layer, patch transformer, TCN on its receptive field)
normalised error < 1e-6; GRU and LSTM correlation ≥ 0.90 in ≤ 60 CPU s; with the run's own σ
correlation < 0.15 for every network.
"""

import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from benchmarks.audit.private import plots_folder
from tests.audit.test_inversion import TASK, Perceptron, window

from sequester.audit.inversion import (
    Protection,
    first_linear,
    imprint,
    invert_squares,
    positions,
    prepare_imprint,
    quality,
    receptive_field,
    seen,
)
from sequester.audit.inversion.optimise import Target
from sequester.models import Shape, build
from sequester.sampling import Lot

STEPS = 48
SHORT = 12  # of the table of effects, so that every network can be rebuilt in seconds
FIELD = 15  # a TCN of three layers whose head reads the last step sees the last 15
SOLVED = 1e-12  # what is left of a gradient once its window is known
SIGMA = 0.8  # of the run: ε = 8, δ = 1e-5, rate 0.1, 100 steps needs 0.83


@dataclass(frozen=True)
class Attack:
    """A network and how its windows are rebuilt from an update."""

    name: str
    kind: str
    pool: str = "mean"
    first: int = 0
    iterations: int = 0

    def model(self, steps: int) -> torch.nn.Module:
        if self.kind == "first linear":
            torch.manual_seed(0)
            return Perceptron(steps)
        shape = Shape(features=3, vocabularies=(), steps=steps, outputs=6, pool=self.pool)
        options = {"width": 64} if self.kind == "transformer" else {}
        return build(self.kind, shape, options)

    def run(self, lot: Lot, protection: Protection, *, short: bool = False) -> tuple[float, float]:
        """Normalised error and correlation of what comes back."""
        model = self.model(lot.x.shape[1])
        update = seen(model, TASK, lot, protection)
        names = [name for name, _ in model.named_parameters()]
        by_name = dict(zip(names, update, strict=True))
        if self.kind == "first linear":
            found = first_linear(by_name["first.weight"], by_name["first.bias"])
            return quality(found, lot.x[0])
        if self.kind == "transformer":
            lift, place = by_name["lift.weight"], by_name["positions.weight"]
            return quality(positions(lift, place), lot.x[0])
        field = min(FIELD, lot.x.shape[1]) if self.kind == "tcn" else lot.x.shape[1]
        rebuilt = self.solved(model, lot, by_name) if self.kind == "tcn" else None
        clipped = protection.clip is not None
        if rebuilt is None or mismatch(model, lot, update, rebuilt, clipped=clipped) > SOLVED:
            first, many = (60, 15) if short else (self.first, self.iterations)
            again = invert_squares(
                model, TASK, lot, update, first=first, iterations=many, clipped=clipped
            )
            # The attacker knows which of two guesses has the gradient it saw.
            if rebuilt is None or again.mismatch < mismatch(
                model, lot, update, rebuilt, clipped=clipped
            ):
                rebuilt = again.x
        return quality(rebuilt[0, -field:], lot.x[0, -field:])

    def solved(self, model: torch.nn.Module, lot: Lot, update: dict) -> torch.Tensor:
        """The receptive field by equations; nothing before it, and all windows alike."""
        steps = lot.x.shape[1]
        found = receptive_field(model, update, steps=steps)
        rebuilt = torch.zeros_like(lot.x, dtype=torch.float64)
        rebuilt[:, -len(found) :] = found
        return rebuilt


def mismatch(model, lot: Lot, update, x: torch.Tensor, *, clipped: bool) -> float:
    target = Target.of(model, TASK, lot, update, clipped=clipped)
    return float(sum(gap.detach().square().sum() for gap in target.gaps(x)))


ATTACKS = (
    Attack("first linear layer, closed form", "first linear"),
    Attack("patch transformer, closed form", "transformer"),
    Attack("TCN on its receptive field", "tcn", "last"),
    Attack("GRU, mean pooled", "gru", "mean", 150, 55),
    Attack("LSTM, mean pooled", "lstm", "mean", 150, 55),
)


def bare() -> None:
    print("one window, no protection                error   correlation   CPU s")
    for attack in ATTACKS:
        for seed in range(1 if attack.kind in ("gru", "lstm") else 2):
            start = time.process_time()
            error, correlation = attack.run(window(seed, STEPS), Protection())
            spent = time.process_time() - start
            print(
                f"{attack.name:36s} {error:9.1e}   {correlation:11.3f}   {spent:5.1f}", flush=True
            )


def protections() -> dict[str, Protection]:
    others = tuple(window(100 + k, SHORT) for k in range(20))
    return {
        "nothing": Protection(),
        "batch of 4 windows": Protection(),
        "5 local steps": Protection(local_steps=5),
        "clipped to 1": Protection(clip=1.0),
        f"clipped, the run's σ = {SIGMA}": Protection(clip=1.0, noise_multiplier=SIGMA),
        "sum over a cohort of 21": Protection(cohort=others),
    }


def effects(folder) -> None:
    """Mean correlation over windows of 12 steps; eight of them under noise, where chance counts."""
    table: dict[str, list[float]] = {}
    for label, protection in protections().items():
        row = []
        for attack in ATTACKS:
            found = []
            for seed in range(8 if "σ" in label else 2):
                lot = window(seed, SHORT, windows=4 if "batch" in label else 1)
                found.append(attack.run(lot, replace(protection, seed=seed), short=True)[1])
            row.append(float(np.mean(found)))
        table[label] = row
        print(f"{label:28s}" + "".join(f"{value:13.3f}" for value in row), flush=True)
    noisy = next(row for label, row in table.items() if "σ" in label)
    print(f"largest correlation under the run's σ: {max(map(abs, noisy)):.3f} (limit 0.15)")
    if folder is not None:
        draw(table, folder)


def malicious_server() -> None:
    """Share of windows that a prepared first layer catches exactly from a sum over people."""
    print("malicious server: share of windows of a sum that come out exactly")
    for windows in (20, 100):
        lot = window(5, STEPS, windows=windows)
        flat, width = lot.x.flatten(1).double(), STEPS * 3
        public = window(9, STEPS, windows=2000).x.flatten(1).double()
        direction = torch.randn(width, generator=torch.Generator().manual_seed(0)).double()
        for bins in (128, 1024):
            layer, back = (
                torch.nn.Linear(width, bins).double(),
                torch.nn.Linear(bins, 6).double(),
            )
            cuts = torch.linspace(0, 1, bins + 2).double()[1:-1]
            prepare_imprint(layer, direction, torch.quantile(public @ direction, cuts))
            with torch.no_grad():
                back.weight.copy_(back.weight[:, :1].expand_as(back.weight))
            hidden = back(torch.relu(layer(flat))) * 1e-3
            loss = torch.nn.functional.cross_entropy(hidden, lot.target)
            gradients = torch.autograd.grad(loss, [layer.weight, layer.bias])
            shares = [caught(gradients, flat, sigma) for sigma in (0.0, 1e-4, SIGMA)]
            print(
                f"  {windows:3d} windows, {bins:4d} bins: {shares[0]:.2f}; clipped with noise "
                f"1e-4: {shares[1]:.2f}; with the run's σ: {shares[2]:.2f}"
            )


def caught(gradients: tuple[torch.Tensor, ...], flat: torch.Tensor, sigma: float) -> float:
    norm = float(torch.sqrt(torch.stack([g.square().sum() for g in gradients]).sum()))
    generator = torch.Generator().manual_seed(1)
    sent = [
        g / max(1.0, norm) + sigma * torch.randn(g.shape, generator=generator).double()
        for g in gradients
    ]
    found = imprint(*sent)
    errors = torch.cdist(flat, found).square() / flat.shape[1] / flat.var(1)[:, None]
    return float((errors.min(1).values < 1e-3).double().mean())


def draw(table: dict[str, list[float]], folder) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    places = np.arange(len(table))
    for index, attack in enumerate(ATTACKS):
        heights = [row[index] for row in table.values()]
        axes.bar(places + 0.16 * (index - 2), heights, 0.15, label=attack.name)
    axes.set_xticks(places, list(table), rotation=20, ha="right")
    axes.set_ylabel("correlation with the true window")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / "inversion.svg")


def main() -> None:
    folder, start = plots_folder(), time.process_time()
    if "--effects" not in sys.argv:
        bare()
    malicious_server()
    print(f"correlation, {SHORT} steps".ljust(28) + "".join(f"{a.kind:>13s}" for a in ATTACKS))
    effects(folder)
    print(f"{time.process_time() - start:.0f} CPU s")


if __name__ == "__main__":
    main()
