"""What every algorithm shares."""

from __future__ import annotations

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


class Fold:
    """Σ wᵢ Δᵢ in float64, one update after another: no update has to be kept.

    The machine gives them by ascending client, so that neither arrival nor a chunk size decides
    about the last bit.

    Attributes:
        total: Σ wᵢ Δᵢ, `(size,)`.
        weight: Σ wᵢ.
    """

    def __init__(self, size: int) -> None:
        """Begin with nothing."""
        self.total: Sum = np.zeros(size)
        self.weight = 0.0

    def add(self, update: Accepted, weight: float) -> None:
        """Take in Δᵢ with its raw weight wᵢ."""
        self.total += (weight * self.factor(update, weight)) * update.delta.astype(np.float64)
        self.weight += weight

    def factor(self, update: Accepted, weight: float) -> float:
        """What the algorithm multiplies this delta by."""
        return 1.0

    def direction(self, scale: float) -> Sum:
        """The step: the sum over `scale`, which is Σ wᵢ, or a public number."""
        return self.total / scale


class Algorithm(Protocol):
    """The three places where algorithms differ."""

    def local(self, work: LocalWork) -> LocalWork:
        """The local work, with what the algorithm adds to it."""
        ...

    def correction(self, state: ServerState, client: int) -> Vector | None:
        """Added to every local gradient of `client`; None when nothing is."""
        ...

    def fold(self, state: ServerState, work: LocalWork) -> Fold:
        """What the updates of one round are added up in; `state` moves when it is finished."""
        ...

    def apply(self, state: ServerState, direction: Sum) -> None:
        """Move `state.model` along `direction`."""
        ...
