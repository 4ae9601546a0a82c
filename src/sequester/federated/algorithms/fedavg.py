"""FedAvg.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of
Deep Networks from Decentralized Data" (2017), Algorithm 1:

    w_{t+1} = Σ_k (n_k / n) w_k   =   w_t + Σ_k p_k Δ_k,      Δ_k = w_k − w_t

We average deltas, because a delta can be clipped and a missing client then changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sequester.federated.algorithms.base import Fold, LocalWork, ServerState
from sequester.federated.messages import Sum, Vector


@dataclass(frozen=True)
class FedAvg:
    """Average the deltas; `learning_rate` is the server's step, 1 in the paper."""

    learning_rate: float = 1.0

    def local(self, work: LocalWork) -> LocalWork:
        """Plain local SGD."""
        return work

    def correction(self, state: ServerState, client: int) -> Vector | None:
        """None: local gradients are left alone."""
        return None

    def fold(self, state: ServerState, work: LocalWork) -> Fold:
        """Σ p_k Δ_k."""
        return Fold(len(state.model))

    def apply(self, state: ServerState, direction: Sum) -> None:
        """W ← w + η_g Σ p_k Δ_k."""
        state.model = state.model + self.learning_rate * direction
