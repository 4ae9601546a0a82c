"""How much each client counts.

With a guarantee only weightings of known sensitivity are allowed: a weight must lie in [0, 1]
and must not depend on other clients, so that removing one client changes the sum by at most
C. Windows as weights have no bound: one client with 10,000 windows moved another framework's
mean by 98 times its calibrated noise. `Capped` is the bounded version of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sequester.core.errors import UsageError
from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum


class Weighting(Protocol):
    """Raw weights of clients."""

    def raw(self, updates: Sequence[Accepted]) -> Sum:
        """One weight for each update, `(updates,)`."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every client counts 1."""

    def raw(self, updates: Sequence[Accepted]) -> Sum:
        """Ones."""
        return np.ones(len(updates))


@dataclass(frozen=True)
class ByWindows:
    """A client counts as many as it has windows (FedAvg's n_k); never with a guarantee."""

    def raw(self, updates: Sequence[Accepted]) -> Sum:
        """n_k."""
        return np.array([update.weight for update in updates])


@dataclass(frozen=True)
class Capped:
    """min(n_k, cap)/cap: sensitive to size up to a public cap, weight at most 1.

    Source: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language
    Models" (2018), section 2: w_k = min(n_k / ŵ, 1).
    """

    cap: float

    def __post_init__(self) -> None:
        """Check the cap."""
        if not self.cap > 0:
            raise UsageError(604, f"the weight cap must be > 0, got {self.cap}")

    def raw(self, updates: Sequence[Accepted]) -> Sum:
        """min(n_k, cap)/cap."""
        return np.array([min(update.weight, self.cap) / self.cap for update in updates])
