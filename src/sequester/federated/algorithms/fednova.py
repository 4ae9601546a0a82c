"""FedNova.

Source: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization" (2020). Clients that take more local steps pull the mean
towards themselves; FedNova divides each delta by what its steps amount to and restores the
common length (eqs. 6 to 8, section 4):

    d_i = Δ_i / ‖a_i‖₁,      τ_eff = Σ p_i ‖a_i‖₁,      x ← x + τ_eff Σ p_i d_i

‖a_i‖₁ = τ_i for plain SGD. Section 4.2: with momentum ρ it is [τ − ρ(1 − ρ^τ)/(1 − ρ)]/(1 − ρ),
with a proximal term μ it is Σ_{j<τ} (1 − ημ)^j = (1 − (1 − ημ)^τ)/(ημ). Local steps are linear in
their gradients, so for both together it is how far the same τ steps go along a gradient of 1.

τ_eff is the server's to choose (section 4.1): no client may stretch everybody's step by the steps
it says it took, so it is at most `GUARD` times the median length of the round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sequester.federated.algorithms.base import Fold, LocalWork, ServerState
from sequester.federated.algorithms.fedavg import FedAvg
from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum

GUARD = 10.0


def accumulation(steps: int, work: LocalWork) -> float:
    """‖a_i‖₁ of a client that took `steps` local steps."""
    shrink = work.learning_rate * work.proximal
    if work.momentum == 0.0:
        return float(steps) if shrink == 0.0 else (1.0 - (1.0 - shrink) ** steps) / shrink
    way = velocity = 0.0  # in units of the learning rate
    for _ in range(steps):
        velocity = work.momentum * velocity + 1.0 - shrink * way
        way += velocity
    return way


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging; with equal local steps everywhere it is FedAvg."""

    def fold(self, state: ServerState, work: LocalWork) -> Fold:
        """τ_eff Σ p_i d_i."""
        return _Normalised(len(state.model), work)


class _Normalised(Fold):
    """Deltas in the first client's length, and τ_eff when all are known.

    Both factors are exactly 1 when all lengths are equal: the reduction to FedAvg is then bit for
    bit and not merely up to rounding.
    """

    def __init__(self, size: int, work: LocalWork) -> None:
        super().__init__(size)
        self._work, self._first = work, 0.0
        self._lengths: list[float] = []
        self._weighted = 0.0  # Σ w_i ‖a_i‖₁
        self._equal = True

    def factor(self, update: Accepted, weight: float) -> float:
        length = accumulation(update.steps, self._work)
        self._first = self._first or length
        self._lengths.append(length)
        self._weighted += weight * length
        self._equal &= length == self._first
        return self._first / length

    def direction(self, scale: float) -> Sum:
        if self._equal:
            return super().direction(scale)
        effective = min(self._weighted / self.weight, GUARD * float(np.median(self._lengths)))
        return super().direction(scale) * (effective / self._first)
