"""The common job: 1,000 clients × 32 windows × 64 steps × 6 channels, Dirichlet(0.3) labels.

GRU(h) and a linear head, cohort 100, one local epoch, batch 8, SGD 0.1, FedAvg.
"""

from __future__ import annotations

import numpy as np
import torch

from sequester.models.build import build
from sequester.models.inputs import Shape
from sequester.models.tasks import Classes
from sequester.sampling import Lot

CLIENTS, WINDOWS, STEPS, CHANNELS, CLASSES = 1000, 32, 64, 6, 6
COHORT, BATCH, RATE = 100, 8, 0.1
TASK = Classes(CLASSES)


def waves(labels, generator, fixed):
    """Noisy sinusoids whose frequency, amplitude and offset depend on the label."""
    frequency, amplitude, offset = fixed
    time = np.arange(STEPS)[None, :, None]
    phase = generator.uniform(0, 2 * np.pi, size=(len(labels), 1, CHANNELS))
    signal = amplitude[labels][:, None] * np.sin(
        2 * np.pi * frequency[labels][:, None] * time + phase
    )
    noise = generator.normal(size=(len(labels), STEPS, CHANNELS))
    return (signal + offset[labels][:, None] + noise).astype(np.float32)


def make_data(*, clients=CLIENTS, counts=None, seed=0, alpha=0.3):
    """Windows of all clients as a lot, and a balanced test set `(x, y)`."""
    shape = np.random.default_rng(1234)
    fixed = (
        shape.uniform(0.02, 0.25, size=(CLASSES, CHANNELS)),
        shape.uniform(0.3, 1.0, size=(CLASSES, CHANNELS)),
        shape.normal(0, 0.5, size=(CLASSES, CHANNELS)),
    )
    generator = np.random.default_rng(seed)
    counts = np.full(clients, WINDOWS) if counts is None else np.asarray(counts)
    owner = np.repeat(np.arange(clients), counts)
    mixes = generator.dirichlet([alpha] * CLASSES, size=clients)
    labels = np.concatenate(
        [generator.choice(CLASSES, size=n, p=p) for n, p in zip(counts, mixes, strict=True)]
    )
    bias = generator.normal(0, 0.3, size=(clients, 1, CHANNELS)).astype(np.float32)
    x = waves(labels, generator, fixed) + bias[owner]
    lot = Lot(
        x=torch.from_numpy(x),
        mask=torch.ones(len(x), STEPS, dtype=torch.bool),
        target=torch.from_numpy(labels),
        owner=torch.from_numpy(owner),
        people=clients,
    )
    test_labels = np.repeat(np.arange(CLASSES), 300)
    test = waves(test_labels, generator, fixed)
    test += generator.normal(0, 0.3, size=(len(test), 1, CHANNELS)).astype(np.float32)
    return lot, (test, test_labels)


def make_model(hidden):
    """The network of the job."""
    shape = Shape(CHANNELS, (), STEPS, CLASSES, "last")
    return build("gru", shape, {"hidden": hidden}, seed=0)


def cohort(r, clients=CLIENTS, size=COHORT):
    """The clients of round `r`."""
    return np.sort(np.random.default_rng(10_000 + r).choice(clients, size, replace=False))
