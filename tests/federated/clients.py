"""Clients for tests: ragged people with windows of several lengths and missing labels."""

from __future__ import annotations

import numpy as np
import torch

from sequester.federated.algorithms import LocalWork
from sequester.federated.engine import Job
from sequester.models.build import build
from sequester.models.inputs import Shape
from sequester.models.tasks import Binary, Classes
from sequester.sampling import Lot

COUNTS = (5, 1, 0, 17, 8, 3, 24, 2)


def make_lot(task, *, counts=COUNTS, steps=9, features=3, ragged=True, each_step=False, seed=0):
    generator = np.random.default_rng(seed)
    windows = sum(counts)
    x = generator.normal(size=(windows, steps, features)).astype(np.float32)
    lengths = generator.integers(0, steps + 1, windows) if ragged else np.full(windows, steps)
    mask = np.arange(steps) < lengths[:, None]
    x = x * mask[..., None]
    shape = (windows, steps) if each_step else (windows,)
    unknown = generator.random(shape) < 0.15 * ragged
    if each_step:
        unknown |= ~mask
    if isinstance(task, Binary):
        target = generator.integers(0, 2, shape).astype(np.float32)
        target[unknown] = np.nan
    else:
        target = generator.integers(0, task.outputs, shape)
        target[unknown] = -1
    return Lot(
        x=torch.from_numpy(x),
        mask=torch.from_numpy(mask),
        target=torch.from_numpy(target),
        owner=torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
        people=len(counts),
    )


def make_model(task, *, steps=9, features=3, hidden=12, pool="last", kind="gru"):
    shape = Shape(features, (), steps, task.outputs, pool)
    options = {} if kind == "linear" else {"hidden": hidden}
    return build(kind, shape, options, seed=3)


def make_job(engine, start, clients=None, *, correction=False, **work):
    chosen = np.arange(len(COUNTS)) if clients is None else np.asarray(clients)
    settings = {"learning_rate": 0.3, "epochs": 2, "batch": 4} | work
    generator = np.random.default_rng(5)
    everyone = 0.02 * generator.normal(size=(len(COUNTS), engine.layout.size)).astype(np.float32)
    return Job(
        clients=chosen,
        start=start,
        anchor=start + np.float32(0.05),
        work=LocalWork(**settings),
        seed=11,
        round=2,
        correction=everyone[chosen] if correction else None,
    )


TASKS = {"binary": Binary(), "classes": Classes(4)}
