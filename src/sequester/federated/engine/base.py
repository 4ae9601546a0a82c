"""What the engines share: the job, the result, and the order in which windows are visited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sequester.federated.algorithms import LocalWork
from sequester.federated.messages import Layout, Vector


@dataclass(frozen=True)
class Job:
    """Local training of a cohort.

    Attributes:
        clients: Positions of the clients, `(cohort,)`; each once.
        start: The model they start from, `(size,)`, or one for each, `(cohort, size)`.
        anchor: Where the proximal term pulls to, `(size,)`.
        work: Learning rate, epochs, batch, proximal strength.
        seed: Of the visiting order; public.
        round: From 0.
        correction: Added to each client's gradients, `(cohort, size)`; None for nothing.
    """

    clients: NDArray[np.int64]
    start: Vector
    anchor: Vector
    work: LocalWork
    seed: int
    round: int
    correction: Vector | None = None


@dataclass(frozen=True)
class Trained:
    """What came of a job, in the order of `Job.clients`.

    Attributes:
        deltas: Local model minus its start, float32 `(cohort, size)`.
        steps: Local steps of each client, `(cohort,)`; 0 for a client without windows.
        windows: Windows of each client, `(cohort,)`.
    """

    deltas: Vector
    steps: NDArray[np.int64]
    windows: NDArray[np.int64]


class Engine(Protocol):
    """Trains cohorts of one fixed set of clients."""

    @property
    def layout(self) -> Layout:
        """Of models and deltas."""
        ...

    @property
    def name(self) -> str:
        """One of "kernel", "batched" and "loop"."""
        ...

    def train(self, job: Job) -> Trained:
        """Train every client of the job."""
        ...


@dataclass(frozen=True)
class Visits:
    """Windows in the order of their visits, clients one after another.

    Attributes:
        order: Positions of windows, `(visits,)`.
        offsets: Where each client's visits begin, `(cohort + 1,)`.
        windows: Windows of each client, `(cohort,)`.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]
    windows: NDArray[np.int64]


def visits(job: Job, client_offsets: NDArray[np.int64]) -> Visits:
    """Shuffle each client's windows anew for each of its passes.

    The order depends on seed, round, client and pass alone, through a hash: neither the cohort
    nor the chunk can change it, and a Flower node computes the same order by itself.

    Args:
        job: What to train.
        client_offsets: Where each enrolled client's windows begin, `(enrolled + 1,)`.
    """
    first = client_offsets[job.clients]
    windows = client_offsets[job.clients + 1] - first
    epochs = job.work.epochs
    counts = np.repeat(windows, epochs)  # of each (client, pass)
    starts = np.concatenate([[0], np.cumsum(counts)])
    group = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(starts[-1]) - starts[group]
    client, epoch = group // epochs, group % epochs
    keys = _mix(np.uint64(job.seed))
    for part in (np.uint64(job.round), job.clients[client], epoch, place):
        keys = _mix(keys ^ np.asarray(part).astype(np.uint64))
    order = np.lexsort((keys, group))
    positions = first[client] + place[order]
    offsets = np.concatenate([[0], np.cumsum(windows * epochs)])
    return Visits(positions.astype(np.int64), offsets.astype(np.int64), windows)


def _mix(value: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): 64 bits in, 64 well-mixed bits out."""
    x = np.atleast_1d(value) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that federated learning moves, in the module's order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def layout_of(model: nn.Module) -> Layout:
    """The layout of a module's trainable parameters."""
    parameters = trainable(model)
    return Layout(tuple(parameters), tuple(tuple(p.shape) for p in parameters.values()))


def model_vector(model: nn.Module) -> Vector:
    """The module's trainable parameters as one float32 vector."""
    parts: Sequence[NDArray[np.float32]] = [
        p.detach().numpy().astype(np.float32).reshape(-1) for p in trainable(model).values()
    ]
    return np.concatenate(parts)


def fill(model: nn.Module, vector: Vector) -> None:
    """Set the module's trainable parameters from one float32 vector, `(size,)`."""
    flat, at = torch.from_numpy(vector), 0
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
