"""The gate: validate whole, then add. Nothing of a rejected update reaches the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sequester.federated.messages import Layout, Reason, Rejection, Update, Vector


@dataclass(frozen=True)
class Limits:
    """What an honest update stays within; public, the same for every client.

    Attributes:
        largest: No single number may exceed this in magnitude: 1e30 is an attack or a
            diverged client, and its square already overflows float32.
        steps: Most local steps a client may report.
        weight: Largest weight a client may report.
    """

    largest: float = 1e6
    steps: int = 1_000_000
    weight: float = 1e6


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
    if not isinstance(update.steps, int) or not 1 <= update.steps <= limits.steps:
        raise Rejection(Reason.BAD_STEPS)
    weight = update.weight
    if not isinstance(weight, int | float) or not 0 < weight <= limits.weight:
        raise Rejection(Reason.BAD_WEIGHT)
    delta = layout.flatten(update.tensors)
    largest = float(np.max(np.abs(delta), initial=0.0))
    if not math.isfinite(largest):
        raise Rejection(Reason.NOT_FINITE)
    if largest > limits.largest:
        raise Rejection(Reason.TOO_LARGE)
    if largest == 0.0:
        raise Rejection(Reason.ZERO)
    return Accepted(update.client, delta, update.steps, float(weight))
