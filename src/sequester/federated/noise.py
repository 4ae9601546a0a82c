"""Where a guarantee comes from: clipping whole updates, and noise on their sum or on each.

Proof: `proofs/federated_placements.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sequester.federated.gate import Accepted
from sequester.federated.messages import Instruction, Sum, Vector
from sequester.mechanism import NoiseStream, Plan, release
from sequester.mechanism.release import on_grid


def norms_of(deltas: Sequence[Vector]) -> Sum:
    """L2 norms in float64, `(updates,)`."""
    squares = [float(np.dot(wide, wide)) for wide in (d.astype(np.float64) for d in deltas)]
    norms: Sum = np.sqrt(np.array(squares))
    return norms


def clipped_total(updates: Sequence[Accepted], weights: Sum, clip: float, size: int) -> Sum:
    """Σ wᵢ Δᵢ min(1, C/‖Δᵢ‖), float64 `(size,)`.

    The server clips whatever it receives: a client that skipped its own clipping gains nothing.

    Args:
        updates: Accepted updates, by client.
        weights: In [0, 1] each, so that one client moves the sum by at most `clip`.
        clip: C.
        size: Coordinates.
    """
    total = np.zeros(size)
    for update, weight in zip(updates, weights, strict=True):
        wide = update.delta.astype(np.float64)
        norm = float(np.sqrt(np.dot(wide, wide)))
        total += wide * (weight * min(1.0, clip / norm) if norm > 0 else 0.0)
    return total


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


def seal_updates(updates: Sequence[Accepted], weights: Sum, clip: float, size: int) -> Sealed:
    """The sum over clients who are each one person."""
    norms = norms_of([update.delta for update in updates])
    total = clipped_total(updates, weights, clip, size)
    return Sealed(total, int((norms <= clip).sum()), len(updates))


def seal_sites(updates: Sequence[Accepted], size: int) -> Sealed:
    """The sum over sites of exact clipped sums; the last two numbers are counts of people."""
    total = np.zeros(size)
    below = units = 0
    for update in updates:
        total += update.delta[:size]
        below += int(update.delta[size])
        units += int(update.delta[size + 1])
    return Sealed(total, below, units)


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
