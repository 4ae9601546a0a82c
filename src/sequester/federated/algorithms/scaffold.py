"""SCAFFOLD.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning" (2020), Algorithm 1, with option II for the variates:

    local step (eq. 3)      y ← y − η_l (g(y) − c_i + c)
    client variate (eq. 4)  c_i⁺ = c_i − c + (x − y) / (K η_l)
    server (eq. 5)          x ← x + (η_g/|S|) Σ (y_i − x),    c ← c + (1/N) Σ (c_i⁺ − c_i)

A client that is not drawn keeps its c_i: variates live in `ServerState.clients`, in simulation and
on a network alike, because c_i⁺ − c_i = −c − Δ/(K η_l) follows from what the server receives
anyway; c − c_i travels with the question. So they survive any node's or server's restart, and move
only with updates that entered the sum.

The guard: control variates can feed on their own error until training collapses (published for
strongly skewed labels). When the mean delta of a round is more than `guard` times the median of
the rounds before, the variates are set to zero and the step is scaled back to that median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sequester.federated.algorithms.base import LocalWork, ServerState, weighted_sum
from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum, Vector

HISTORY = 16


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD over `population` enrolled clients (N in eq. 5).

    Attributes:
        population: N, public.
        learning_rate: η_g.
        guard: See above; ∞ switches it off.
    """

    population: int
    learning_rate: float = 1.0
    guard: float = 10.0

    def local(self, work: LocalWork) -> LocalWork:
        """Plain SGD; the correction does the rest."""
        return work

    def correction(self, state: ServerState, client: int) -> Vector | None:
        """C − c_i, which eq. 3 adds to the local gradient."""
        server = state.slot("control")
        own = state.clients.get(client)
        difference = server if own is None else server - own
        return difference.astype(np.float32)

    def combine(
        self, state: ServerState, updates: Sequence[Accepted], weights: Sum, work: LocalWork
    ) -> Sum:
        """Average the deltas and move the variates (eqs. 4 and 5)."""
        control = state.slot("control")
        change = np.zeros_like(control)
        for update in updates:
            scale = update.steps * work.learning_rate
            own_change = -control - update.delta.astype(np.float64) / scale
            own = state.clients.get(update.client)
            fresh = own_change if own is None else own.astype(np.float64) + own_change
            state.clients[update.client] = fresh.astype(np.float32)
            change += own_change
        state.slots["control"] = control + change / self.population
        return weighted_sum([update.delta for update in updates], weights)

    def apply(self, state: ServerState, direction: Sum) -> None:
        """X ← x + η_g · mean delta, held back by the guard."""
        norm = float(np.linalg.norm(direction))
        past = state.slots.get("norms", np.zeros(0))
        if past.size >= 3 and norm > self.guard * float(np.median(past)):
            direction = direction * (float(np.median(past)) / norm)
            state.slots["control"] = np.zeros_like(state.model)
            state.clients.clear()
        else:
            state.slots["norms"] = np.append(past, norm)[-HISTORY:]
        state.model = state.model + self.learning_rate * direction
