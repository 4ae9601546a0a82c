"""Server optimisers: FedAvgM, FedAdagrad, FedAdam, FedYogi.

Sources: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification" (2019), section 4.3 for FedAvgM:  v ← β v + Δ,  w ← w + η v.
Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization"
(2021), Algorithm 2, with Δ the mean delta:

    m ← β₁ m + (1 − β₁) Δ
    FedAdagrad   v ← v + Δ²
    FedYogi      v ← v − (1 − β₂) Δ² sign(v − Δ²)
    FedAdam      v ← β₂ v + (1 − β₂) Δ²
    x ← x + η m / (√v + τ)

with v starting at τ² and without bias correction, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sequester.federated.algorithms.base import ServerState
from sequester.federated.algorithms.fedavg import FedAvg
from sequester.federated.messages import Sum


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """Momentum on the server; β = 0 is FedAvg."""

    momentum: float = 0.9

    def apply(self, state: ServerState, direction: Sum) -> None:
        """V ← β v + Δ, w ← w + η v."""
        velocity = self.momentum * state.slot("velocity") + direction
        state.slots["velocity"] = velocity
        state.model = state.model + self.learning_rate * velocity


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """Algorithm 2 with v ← v + Δ²; β₁ is 0 in the paper's experiments."""

    learning_rate: float = 0.01
    beta1: float = 0.0
    tau: float = 1e-3

    def apply(self, state: ServerState, direction: Sum) -> None:
        """One step of Algorithm 2."""
        first = self.beta1 * state.slot("m") + (1.0 - self.beta1) * direction
        second = self.second_moment(state.slot("v", self.tau**2), direction * direction)
        state.slots["m"], state.slots["v"] = first, second
        state.model = state.model + self.learning_rate * first / (np.sqrt(second) + self.tau)

    def second_moment(self, v: Sum, square: Sum) -> Sum:
        """How v takes in Δ²; the one line in which the three differ."""
        return v + square


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """Algorithm 2 with an exponential mean of squares."""

    beta1: float = 0.9
    beta2: float = 0.99

    def second_moment(self, v: Sum, square: Sum) -> Sum:
        """V ← β₂ v + (1 − β₂) Δ²."""
        return self.beta2 * v + (1.0 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Algorithm 2 with Yogi's additive, sign-controlled change of v."""

    def second_moment(self, v: Sum, square: Sum) -> Sum:
        """V ← v − (1 − β₂) Δ² sign(v − Δ²)."""
        return v - (1.0 - self.beta2) * square * np.sign(v - square)
