"""Where a guarantee comes from: clipping whole updates, and noise on their sum or on each.

Proof: `proofs/federated_placements.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sequester.federated.gate import MOST_PEOPLE, Accepted
from sequester.federated.messages import Instruction, Sum, Vector
from sequester.mechanism import NoiseStream, Plan
from sequester.mechanism.plan import GRID_BITS
from sequester.mechanism.release import met, on_grid, release_counted

EXACT = MOST_PEOPLE * 2**GRID_BITS
"""Grid steps, 2⁵¹: whole numbers that survive a multiplication by the grid and a division."""
WANDERS = 2.0**20
"""How far an adaptive bound may move from the one it began with, as a factor."""


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

    Both counts are numbers to compute with and never a size to allocate.
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
    """The sum over sites of clipped sums; the last two numbers of each are counts of people.

    Sites are added as whole multiples of the grid, so that no site's size costs another one's sum
    a digit. The total is held to what float64 carries without rounding, coordinate by coordinate,
    which moves no two totals apart: a person moves it by what they move their site's sum.
    """

    def __init__(self, size: int, grid: float) -> None:
        """Begin with nothing; `grid` is that of the bound in force."""
        self._steps: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
        self._grid = grid
        self._below = self._units = 0

    def add(self, update: Accepted, weight: float) -> None:
        """Take in a site's sum; what it says of its weight does not matter."""
        size = len(self._steps)
        self._steps += np.rint(update.delta[:size] / self._grid).astype(np.int64)
        self._below += int(update.delta[size])
        self._units += int(update.delta[size + 1])

    def sealed(self) -> Sealed:
        """The sum so far."""
        held: Sum = np.clip(self._steps, -EXACT, EXACT).astype(np.float64)
        return Sealed(held * self._grid, self._below, self._units)


def release_sum(
    sealed: Sealed, *, plan: Plan, stream: NoiseStream, step: int, clip: float
) -> tuple[Sum, float]:
    """Noisy mean over the *expected* units, float64 `(size,)`, and the next bound.

    The next bound follows from a noisy count, and may follow it only so far: a hostile count must
    not lead it to 0 or ∞. The noise is bound to the sum: whatever a crash, a copied folder or a
    server that was set back make of a round, another sum meets independent noise.
    """
    released = release_counted(
        {"sum": torch.from_numpy(sealed.total)},
        sealed.below - 0.5 * sealed.units,
        plan=plan,
        stream=stream,
        step=step,
        clip=clip,
    )
    direction: NDArray[np.float64] = released.update["sum"].numpy()
    return direction, min(max(released.clip, plan.clip / WANDERS), plan.clip * WANDERS)


def protector(plan: Plan, stream_of: Callable[[int], NoiseStream]) -> Callable[..., Vector]:
    """Clipping and noise of a client's own, for placement "local".

    Exchanging all data of one client moves its clipped update by up to 2C, so the noise is
    2C · noise_multiplier: the server itself learns no more than one Gaussian of that multiplier.
    It is bound to the update: a client asked twice for one round gives no difference away.
    """

    def protect(instruction: Instruction, delta: Vector) -> Vector:
        wide = np.nan_to_num(delta.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        norm = float(np.sqrt(np.dot(wide, wide)))
        wide *= min(1.0, plan.clip / norm) if norm > 0 else 0.0
        grid = plan.grid(plan.clip)
        std = 2.0 * plan.sensitivity(plan.clip) * plan.noise_multiplier
        exact = on_grid(torch.from_numpy(wide), grid)
        stream, meets = stream_of(instruction.client), met(exact, grid, std)
        normals = stream.draw(instruction.round, len(wide), meets=meets)
        noisy = exact + on_grid(normals * std, grid)
        return (noisy.to(torch.float64) * grid).numpy().astype(np.float32)

    return protect
