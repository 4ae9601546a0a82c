"""What the observer writes down, step after step, in the units of the claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sequester.audit.mechanism.canaries import LENGTH, Design
from sequester.audit.mechanism.trace import Floats, Trace
from sequester.gradients import ClippingRule
from sequester.mechanism import Plan


@dataclass(frozen=True)
class Contrast:
    """How a canary that takes part differs from one that does not.

    Attributes:
        deviation: Of the noise at a canary's coordinate, in clipping bounds.
        exchange: It differs by two bounds, one each way, and not by one.
    """

    deviation: float
    exchange: bool = False


@dataclass(frozen=True)
class Observation:
    """What one audited run gave.

    Attributes:
        trace: Residual noise and lots.
        signals: Released minus the people's sum at each canary's coordinate, in clipping
            bounds, `(steps, canaries)`.
        multipliers: Noise of each step in clipping bounds, `(steps,)`.
        moved: How far the final weights went against each canary's coordinate, `(canaries,)`.
        design: The canaries.
    """

    trace: Trace
    signals: Floats
    multipliers: Floats
    moved: Floats
    design: Design


@dataclass(frozen=True)
class Seen:
    """One step from inside.

    Attributes:
        drawn: Who was in the lot, people first, then the canaries that take part.
        clip: The bound in force.
        rule: The claimed rule at that bound.
        people: Reference sum of the people, `(parameters,)`.
        below: People and canaries whose norm was within the bound, minus half of all.
        released: What left the mechanism, as sums `(parameters,)`; none or several included.
        next_clip: The bound of the next step.
        clipped: Noisy share of people above the bound, where the step released it.
    """

    drawn: np.ndarray
    clip: float
    rule: ClippingRule
    people: Tensor
    below: float
    released: list[Tensor]
    next_clip: float
    clipped: float | None = None


@dataclass
class Notebook:
    """Accumulates steps.

    Attributes:
        plan: What is claimed.
        design: The canaries.
        people: How many people there are beside them.
        tries: Steps written down.
    """

    plan: Plan
    design: Design
    people: int
    tries: int = 0
    _rows: list[tuple[Tensor, float, float, Floats, float]] = field(default_factory=list)
    _drawn: list[np.ndarray] = field(default_factory=list)
    _count: list[float] = field(default_factory=list)

    def write(self, seen: Seen) -> None:
        """Take one step apart."""
        self.tries += 1
        everybody = self.people + len(self.design.inside)
        drawn = np.zeros(everybody, dtype=bool)
        drawn[seen.drawn] = True
        self._drawn.append(drawn)
        inside = self.design.inside[np.flatnonzero(drawn[self.people :])]
        canaries = self._canaries(seen.rule, inside, seen.clip)
        coordinates = torch.from_numpy(self.design.coordinate)
        deviation = noise_multiplier(self.plan) * seen.clip
        for total in seen.released:
            noise = (total - seen.people - canaries) / deviation
            signal = ((total - seen.people)[coordinates] / seen.clip).numpy()
            along = _along(noise, seen.people + canaries)
            self._rows.append(
                (noise, along, self._at(noise, inside), signal, deviation / seen.clip)
            )
            if self.plan.adaptive is not None:
                self._count.append(_count_noise(self.plan, seen))

    def close(self, *, charged: int, gaps: list[float], moved: Tensor) -> Observation:
        """Everything as arrays.

        Args:
            charged: Steps the run accounts for.
            gaps: Distances between the engine and the float64 loop.
            moved: Final minus initial weights, `(parameters,)`.
        """
        names, offsets = self.design.names, self.design.offsets
        noise, along, presence, signals, multipliers = zip(*self._rows, strict=True)
        trace = Trace(
            residual=torch.stack(noise).numpy(),
            tensors={n: (offsets[i], offsets[i + 1]) for i, n in enumerate(names)},
            signal=np.array(along),
            presence=np.array(presence),
            drawn=np.array(self._drawn),
            rate=self.plan.sampling_rate,
            steps_charged=charged,
            steps_released=len(self._rows),
            count=np.array(self._count),
            gaps=np.array(gaps),
            lot_size=self.plan.lot_size,
        )
        against = -moved.double()[torch.from_numpy(self.design.coordinate)].numpy()
        return Observation(trace, np.array(signals), np.array(multipliers), against, self.design)

    def _canaries(self, rule: ClippingRule, inside: np.ndarray, clip: float) -> Tensor:
        """What the canaries in the lot may add: one coordinate each, clipped by the rule."""
        length = LENGTH * self.plan.clip
        groups = rule.groups(list(self.design.names))
        total = torch.zeros(self.design.offsets[-1], dtype=torch.float64)
        norms = torch.zeros(len(inside), max(groups) + 1, dtype=torch.float64)
        group = torch.tensor([groups[t] for t in self.design.tensor[inside]], dtype=torch.int64)
        rows = torch.arange(len(inside))
        norms[rows, group] = length
        factors = rule.factors(norms)[rows, group]
        sign = torch.from_numpy(self.design.sign[inside])
        total[torch.from_numpy(self.design.coordinate[inside])] = sign * factors * length
        return total

    def _at(self, noise: Tensor, inside: np.ndarray) -> float:
        if not len(inside):
            return math.nan
        at = noise[torch.from_numpy(self.design.coordinate[inside])]
        return float(at @ torch.from_numpy(self.design.sign[inside])) / math.sqrt(len(inside))


def noise_multiplier(plan: Plan) -> float:
    """Noise of the gradient by the plan's public fields, not by its own methods."""
    if plan.adaptive is None:
        return plan.noise_multiplier
    rest = plan.noise_multiplier**-2 - (2.0 * plan.adaptive.count_noise) ** -2
    return float(rest**-0.5)


def _count_noise(plan: Plan, seen: Seen) -> float:
    """The noise that must have been on the count for the bound to move as it did.

    Where the bound stays, the count itself was released.
    """
    adaptive = plan.adaptive
    if adaptive is None:
        return 0.0
    if adaptive.learning_rate:
        moved = -math.log(seen.next_clip / seen.clip) / adaptive.learning_rate
        share = moved + adaptive.quantile
    else:
        share = 1.0 - (math.nan if seen.clipped is None else seen.clipped)
    noisy = (share - 0.5) * plan.population * plan.sampling_rate
    return (noisy - seen.below) / adaptive.count_noise


def _along(noise: Tensor, direction: Tensor) -> float:
    length = float(direction.norm())
    return float(noise @ direction) / length if length > 0 else math.nan
