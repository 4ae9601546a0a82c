"""FedProx.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks" (2020), equation (2): each client minimises

    h_k(w; w_t) = F_k(w) + (μ/2) ‖w − w_t‖²

so that μ (w − w_t) is added to every local gradient. The norm is squared and taken over the
whole model; a sum of unsquared per-tensor norms (seen elsewhere) is another algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sequester.federated.algorithms.base import LocalWork
from sequester.federated.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are pulled towards the model they started from; μ = 0 is FedAvg."""

    mu: float = 0.01

    def local(self, work: LocalWork) -> LocalWork:
        """Local SGD on h_k."""
        return replace(work, proximal=self.mu)
