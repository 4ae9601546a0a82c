"""Where a guarantee comes from: clipping whole updates, and noise on their sum or on each.

Proof: `proofs/federated_placements.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sequester.federated.gate import Accepted
from sequester.federated.messages import Instruction, Sum, Vector
from sequester.mechanism import NoiseStream, Plan, release
from sequester.mechanism.release import on_grid


def clipped(delta: Vector, weight: float, clip: float) -> tuple[Sum, float]:
    """W Δ min(1, C/‖Δ‖) in float64, and ‖Δ‖.

    The server clips whatever it receives: a client that skipped its own clipping gains nothing.

    Args:
        delta: An accepted update.
        weight: In [0, 1], so that one client moves a sum by at most `clip`.
        clip: C.
    """
    wide = delta.astype(np.float64)
    norm = float(np.sqrt(np.dot(wide, wide)))
    return wide * (weight * min(1.0, clip / norm) if norm > 0 else 0.0), norm


@dataclass(frozen=True)
class Sealed:
    """A round's sum before noise, and what adaptive clipping counts; private.

    Attributes:
        total: Clipped sum, float64 `(size,)`.
        below: Units whose norm was at most the bound.
        units: Units in the sum.
    """

    total: Sum
    below: int
    units: int


class PersonSum:
    """The sum over clients who are each one person, one update after another."""

    def __init__(self, size: int, clip: float) -> None:
        """Begin with nothing; `clip` is the bound in force."""
        self._total: Sum = np.zeros(size)
        self._clip = clip
        self._below = self._units = 0

    def add(self, update: Accepted, weight: float) -> None:
        """Take in w Δ, clipped."""
        vector, norm = clipped(update.delta, weight, self._clip)
        self._total += vector
        self._below += norm <= self._clip
        self._units += 1

    def sealed(self) -> Sealed:
        """The sum so far."""
        return Sealed(self._total, self._below, self._units)


class SiteSum:
    """The sum over sites of exact clipped sums; the last two numbers are counts of people."""

    def __init__(self, size: int) -> None:
        """Begin with nothing."""
        self._total: Sum = np.zeros(size)
        self._below = self._units = 0

    def add(self, update: Accepted, weight: float) -> None:
        """Take in a site's sum; what it says of its weight does not matter."""
        size = len(self._total)
        self._total += update.delta[:size]
        self._below += int(update.delta[size])
        self._units += int(update.delta[size + 1])

    def sealed(self) -> Sealed:
        """The sum so far."""
        return Sealed(self._total, self._below, self._units)


def release_sum(
    sealed: Sealed, *, plan: Plan, stream: NoiseStream, step: int, clip: float
) -> tuple[Sum, float]:
    """Noisy mean over the *expected* units, float64 `(size,)`, and the next bound."""
    # Only whether a norm is below the bound matters to the count.
    indicators = np.full(sealed.units, np.inf)
    indicators[: sealed.below] = 0.0
    released = release(
        {"sum": torch.from_numpy(sealed.total)},
        torch.from_numpy(indicators),
        plan=plan,
        stream=stream,
        step=step,
        clip=clip,
    )
    direction: NDArray[np.float64] = released.update["sum"].numpy()
    return direction, released.clip


def protector(plan: Plan, stream_of: Callable[[int], NoiseStream]) -> Callable[..., Vector]:
    """Clipping and noise of a client's own, for placement "local".

    Exchanging all data of one client moves its clipped update by up to 2C, so the noise is
    2C · noise_multiplier: the server itself learns no more than one Gaussian of that multiplier.
    """

    def protect(instruction: Instruction, delta: Vector) -> Vector:
        wide = np.nan_to_num(delta.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        norm = float(np.sqrt(np.dot(wide, wide)))
        wide *= min(1.0, plan.clip / norm) if norm > 0 else 0.0
        grid = plan.grid(plan.clip)
        normals = stream_of(instruction.client).draw(instruction.round, len(wide))
        std = 2.0 * plan.sensitivity(plan.clip) * plan.noise_multiplier
        noisy = on_grid(torch.from_numpy(wide), grid) + on_grid(normals * std, grid)
        return (noisy.to(torch.float64) * grid).numpy().astype(np.float32)

    return protect
