"""What every algorithm shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum, Vector


@dataclass(frozen=True)
class LocalWork:
    """What a client does with the model it received.

    Attributes:
        learning_rate: η_l of plain SGD.
        epochs: Passes over the client's windows.
        batch: Windows a step; the last batch of a pass may be smaller.
        proximal: μ of FedProx; 0 is plain local SGD.
        momentum: ρ of heavy-ball momentum, from nought in every round: v ← ρ v + g, w ← w − η v.
    """

    learning_rate: float = 0.1
    epochs: int = 1
    batch: int = 8
    proximal: float = 0.0
    momentum: float = 0.0

    def steps(self, windows: int) -> int:
        """Local steps of a client with `windows` windows."""
        return self.epochs * -(-windows // self.batch)


@dataclass
class ServerState:
    """What the server carries from round to round.

    Attributes:
        model: Global model, float64 `(size,)`; clients receive its float32 rounding.
        slots: Named vectors of the server optimiser (momenta, control variate).
        clients: Per-client vectors that survive rounds in which the client is not drawn.
    """

    model: Sum
    slots: dict[str, Sum] = field(default_factory=dict)
    clients: dict[int, Vector] = field(default_factory=dict)

    def slot(self, name: str, fill: float = 0.0) -> Sum:
        """The vector `name`, created with `fill` when first asked for."""
        if name not in self.slots:
            self.slots[name] = np.full(self.model.shape, fill)
        return self.slots[name]


class Algorithm(Protocol):
    """The three places where algorithms differ."""

    def local(self, work: LocalWork) -> LocalWork:
        """The local work, with what the algorithm adds to it."""
        ...

    def correction(self, state: ServerState, client: int) -> Vector | None:
        """Added to every local gradient of `client`; None when nothing is."""
        ...

    def combine(
        self, state: ServerState, updates: Sequence[Accepted], weights: Sum, work: LocalWork
    ) -> Sum:
        """One step direction from the accepted updates; `weights` sum to at most 1."""
        ...

    def apply(self, state: ServerState, direction: Sum) -> None:
        """Move `state.model` along `direction`."""
        ...


def weighted_sum(vectors: Sequence[Vector], weights: Sum) -> Sum:
    """Σ wᵢ vᵢ in float64, in the order given.

    Returns:
        `(size,)`. One term is added at a time, so that neither a chunk size nor a BLAS
        decides about the last bit.
    """
    total = np.zeros(vectors[0].shape) if vectors else np.zeros(0)
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * vector.astype(np.float64)
    return total
