"""SCAFFOLD.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning" (2020), Algorithm 1, with option II for the variates:

    local step (eq. 3)      y ← y − η_l (g(y) − c_i + c)
    client variate (eq. 4)  c_i⁺ = c_i − c + (x − y) / (K η_l)
    server (eq. 5)          x ← x + (η_g/|S|) Σ (y_i − x),    c ← c + (1/N) Σ (c_i⁺ − c_i)

K counts gradients of weight 1; with local momentum a delta holds ‖a‖₁ of them instead (Wang et al.
2020, section 4.2, see `fednova`), and the variate is again a mean of the client's gradients.

A client that is not drawn keeps its c_i: variates live in `ServerState.clients`, in simulation and
on a network alike, because c_i⁺ − c_i = −c − Δ/(‖a‖₁ η_l) follows from what the server receives
anyway; c − c_i travels with the question. So they survive any node's or server's restart, and move
only with updates that entered the sum.

The guard: control variates can feed on their own error until training collapses (published for
strongly skewed labels). When the mean delta of a round is more than `guard` times the median of
the rounds before, the variates are set to zero and the step is scaled back to that median.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sequester.federated.algorithms.base import Fold, LocalWork, ServerState
from sequester.federated.algorithms.fednova import accumulation
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

    def fold(self, state: ServerState, work: LocalWork) -> Fold:
        """Average the deltas and move the variates (eqs. 4 and 5)."""
        return _Variates(state, work, self.population)

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


class _Variates(Fold):
    """The mean, and variates that replace the old ones when the round has its sum."""

    def __init__(self, state: ServerState, work: LocalWork, population: int) -> None:
        super().__init__(len(state.model))
        self._state, self._work, self._population = state, work, population
        self._change: Sum = np.zeros(len(state.model))
        self._fresh: dict[int, Vector] = {}

    def add(self, update: Accepted, weight: float) -> None:
        super().add(update, weight)
        scale = accumulation(update.steps, self._work) * self._work.learning_rate
        change = -self._state.slot("control") - update.delta.astype(np.float64) / scale
        own = self._state.clients.get(update.client)
        fresh = change if own is None else own.astype(np.float64) + change
        self._fresh[update.client] = fresh.astype(np.float32)
        self._change += change

    def direction(self, scale: float) -> Sum:
        state = self._state
        state.clients |= self._fresh
        state.slots["control"] = state.slot("control") + self._change / self._population
        return super().direction(scale)
