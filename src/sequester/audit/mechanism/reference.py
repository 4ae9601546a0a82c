"""The people's part of a step, added up by the observer itself.

The fast engine adds everybody; now and then the float64 loop, which shares nothing with it, adds
a random few again, and the whole must be what they and the rest come to. Whatever the engine
gets wrong in one person of a thousand cannot be seen in the noise; what it gets wrong in a
network, a rule or a chunk shows in any few people.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from sequester.core.rng import public_generator
from sequester.gradients import ClippingRule, clipped_sum, oracle
from sequester.gradients.lots import Loss
from sequester.gradients.result import ClippedSum
from sequester.sampling import Lot

EVERY = 20  # steps between two comparisons
FEW = 8  # people whom the float64 loop adds


@dataclass
class Reference:
    """Clipped sums of people by the claimed rule, compared with the float64 loop.

    Attributes:
        people: Everybody who may be in a lot, canaries not included.
        loss: Of each window.
        names: Trainable parameters in order.
        seed: Chooses whom the loop adds.
        gaps: Distance between engine and loop of each comparison, in clipping bounds.
    """

    people: Lot
    loss: Loss
    names: tuple[str, ...]
    seed: int
    gaps: list[float] = field(default_factory=list)
    _steps: int = 0

    def sum(
        self, model: nn.Module, rule: ClippingRule, positions: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Sum and norms of the people at `positions`, float64 `(parameters,)` and `(people,)`."""
        lot = self.people.pick(positions)
        found = clipped_sum(model, self.loss, lot, rule)
        total = self._flat(found)
        if self._steps % EVERY == 0:
            self.gaps.append(self._gap(model, rule, lot, total))
        self._steps += 1
        return total, found.norms

    def _gap(self, model: nn.Module, rule: ClippingRule, lot: Lot, total: Tensor) -> float:
        """How far the engine's sum is from a few people by the loop and the rest by the engine."""
        generator = public_generator(self.seed + self._steps)
        order = generator.permutation(lot.people)
        few, rest = (np.sort(part) for part in (order[:FEW], order[FEW:]))
        again = self._flat(oracle.clipped_sum(model, self.loss, lot.pick(few), rule))
        if len(rest):
            again = again + self._flat(clipped_sum(model, self.loss, lot.pick(rest), rule))
        return float((total - again).norm()) / rule.sensitivity()

    def _flat(self, found: ClippedSum) -> Tensor:
        return torch.cat([found.sum[name].double().reshape(-1) for name in self.names])
