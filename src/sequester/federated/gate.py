"""The gate: validate whole, then add. Nothing of a rejected update reaches the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sequester.federated.messages import Layout, Reason, Rejection, Update, Vector
from sequester.mechanism import Plan
from sequester.mechanism.plan import FLOAT_SLACK

if TYPE_CHECKING:
    from sequester.federated.algorithms.base import LocalWork

MOST_PEOPLE = 2**27
"""Most people that a site's sum may stand for, whatever is declared: 2²⁷ people of 2²⁴ grid steps
each are whole numbers below 2⁵¹, which float64 multiplies by the grid and divides again exactly."""


@dataclass(frozen=True)
class SiteBounds:
    """What the sum over a site's people can be; public, the same for every site.

    Attributes:
        size: Coordinates of the sum; two counts of people follow them.
        clip: C, of one person.
        grid: What the sum is a multiple of.
        people: Most people that it may stand for.
        counted: Whether the counts are read, for adaptive clipping; otherwise they must be 0.
    """

    size: int
    clip: float
    grid: float
    people: int
    counted: bool

    @classmethod
    def of(cls, plan: Plan, clip: float) -> SiteBounds:
        """Under a plan, with the bound in force."""
        return cls(
            plan.parameters, clip, plan.grid(clip), people_of(plan), plan.adaptive is not None
        )

    def check(self, sent: Vector) -> None:
        """Refuse what no number of people up to `people` can amount to.

        Raises:
            Rejection: with the reason.
        """
        below, people = (float(value) for value in sent[self.size :])
        most = self.people if self.counted else 0
        if not (below.is_integer() and people.is_integer() and 0 <= below <= people <= most):
            raise Rejection(Reason.BAD_COUNTS)
        total = sent[: self.size]
        # An honest site rounds its sum to the grid, half a step in each coordinate.
        reach = self.people * self.clip * (1.0 + FLOAT_SLACK) + self.grid * math.sqrt(self.size)
        with np.errstate(over="ignore"):  # an infinite square is too large as well
            norm = float(np.sqrt(np.dot(total, total)))
        if norm > reach:
            raise Rejection(Reason.TOO_LARGE)
        if not people and not np.rint(total / self.grid).any():
            raise Rejection(Reason.ZERO)  # half a step or less adds nothing


def people_of(plan: Plan) -> int:
    """Most people that one site's sum may stand for: all that are declared."""
    return min(plan.population, MOST_PEOPLE)


@dataclass(frozen=True)
class Limits:
    """What an honest update stays within; public, the same for every client.

    Attributes:
        largest: No single number may exceed this in magnitude: 1e30 is an attack or a
            diverged client, and its square already overflows float32.
        steps: Most local steps a client may report.
        weight: Largest weight a client may report.
        work: A client that reports `weight` windows cannot have taken more steps than this work
            takes on them; None believes any number up to `steps`.
        site: The update is a sum over a site's people, within these bounds.
    """

    largest: float = 1e6
    steps: int = 1_000_000
    weight: float = 1e6
    work: LocalWork | None = None
    site: SiteBounds | None = None


@dataclass(frozen=True)
class Accepted:
    """An update that passed the gate: the flat delta and its finite, positive weight."""

    client: int
    delta: Vector
    steps: int
    weight: float


def admit(update: Update, layout: Layout, limits: Limits) -> Accepted:
    """Check the content of an update.

    Raises:
        Rejection: with the reason; an all-zero delta is a client that did not train (or hides
            that it did not), and adds nothing to any sum.
    """
    weight = update.weight
    if not isinstance(weight, int | float) or not 0 < weight <= limits.weight:
        raise Rejection(Reason.BAD_WEIGHT)
    most = limits.steps
    if limits.work is not None:
        most = min(most, limits.work.steps(math.ceil(weight)))
    if not isinstance(update.steps, int) or not 1 <= update.steps <= most:
        raise Rejection(Reason.BAD_STEPS)
    delta = layout.flatten(update.tensors)
    largest = float(np.max(np.abs(delta), initial=0.0))
    if not math.isfinite(largest):
        raise Rejection(Reason.NOT_FINITE)
    if limits.site is not None:
        limits.site.check(delta)
    elif largest > limits.largest:
        raise Rejection(Reason.TOO_LARGE)
    if largest == 0.0:
        raise Rejection(Reason.ZERO)
    return Accepted(update.client, delta, update.steps, float(weight))
