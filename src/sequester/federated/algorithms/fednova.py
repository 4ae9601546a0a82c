"""FedNova.

Source: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization" (2020). Clients that take more local steps pull the mean
towards themselves; FedNova divides each delta by what its steps amount to and restores the
common length (eqs. 6 to 8, section 4):

    d_i = Δ_i / ‖a_i‖₁,      τ_eff = Σ p_i ‖a_i‖₁,      x ← x + τ_eff Σ p_i d_i

‖a_i‖₁ = τ_i for plain SGD. Section 4.2: with momentum ρ it is [τ − ρ(1 − ρ^τ)/(1 − ρ)]/(1 − ρ),
with a proximal term μ it is Σ_{j<τ} (1 − ημ)^j = (1 − (1 − ημ)^τ)/(ημ). Local steps are linear in
their gradients, so for both together it is how far the same τ steps go along a gradient of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sequester.federated.algorithms.base import LocalWork, ServerState, weighted_sum
from sequester.federated.algorithms.fedavg import FedAvg
from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum


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

    def combine(
        self, state: ServerState, updates: Sequence[Accepted], weights: Sum, work: LocalWork
    ) -> Sum:
        """τ_eff Σ p_i d_i."""
        lengths = np.array([accumulation(update.steps, work) for update in updates])
        # τ_eff/‖a_i‖ is exactly 1 when all lengths are equal: the reduction to FedAvg is
        # then bit for bit and not merely up to rounding.
        effective = float(weights @ lengths) / float(weights.sum()) if lengths.size else 0.0
        if lengths.size and np.all(lengths == lengths[0]):
            effective = float(lengths[0])
        factors = weights * (effective / lengths)
        return weighted_sum([update.delta for update in updates], factors)
