"""From a lot's clipped sum to what may leave: round, add noise, divide by the expected lot.

Proof: `proofs/grid_gaussian.md`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sequester.core.errors import SequesterError
from sequester.mechanism.invariants import check_noise
from sequester.mechanism.noise import NoiseStream
from sequester.mechanism.plan import Plan


@dataclass(frozen=True)
class Released:
    """The private output of one step.

    Attributes:
        update: Noisy mean gradient by parameter name, float64, shapes of the parameters.
        clip: The bound for the next step (the same one, unless adaptive).
        below: Noisy share of people below this step's bound, charged; None unless adaptive.
        noise_std: Standard deviation of the noise in each coordinate of `update`.
    """

    update: dict[str, Tensor]
    clip: float
    below: float | None
    noise_std: float


def release(
    total: Mapping[str, Tensor],
    norms: Tensor,
    *,
    plan: Plan,
    stream: NoiseStream,
    step: int,
    clip: float,
) -> Released:
    """Privatise the clipped sum of one lot; exactly one draw of noise, also for an empty lot.

    The noise depends on what it is added to, so that no two sums meet the same noise even where
    the step's position was lost or the run's folder copied.

    Args:
        total: Sum of clipped per-person gradients by parameter name.
        norms: Each person's norm before clipping, `(people,)`; read only if adaptive.
        plan: The plan whose `step_event` this is.
        stream: Noise that nobody has drawn for this step.
        step: The step's number.
        clip: The bound that produced `total`.

    Raises:
        SequesterError: SQ-238 if the sum is not finite, beyond the grid, or has another size than
            planned.
    """
    centred = 0.0 if plan.adaptive is None else float((norms <= clip).sum()) - 0.5 * len(norms)
    return release_counted(total, centred, plan=plan, stream=stream, step=step, clip=clip)


def release_counted(
    total: Mapping[str, Tensor],
    centred: float,
    *,
    plan: Plan,
    stream: NoiseStream,
    step: int,
    clip: float,
) -> Released:
    """As `release`, where the people below the bound are counted already.

    Args:
        total: See `release`; so are `plan`, `stream`, `step`, `clip` and what is raised.
        centred: People below the bound, less half of all people in the lot; read only if adaptive.
        plan: See `total`.
        stream: See `total`.
        step: See `total`.
        clip: See `total`.
    """
    flat = torch.cat([value.reshape(-1).to("cpu", torch.float64) for value in total.values()])
    grid = plan.grid(clip)
    if len(flat) != plan.parameters or not _fits(flat, grid):
        raise SequesterError(
            238,
            f"the clipped sum must hold {plan.parameters} finite numbers below 2^62 steps of its "
            f"grid, got {len(flat)}; nothing was released",
        )
    std = plan.gradient_noise_multiplier * plan.sensitivity(clip)
    exact = on_grid(flat, grid)
    count = 0.0 if plan.adaptive is None else centred
    needed = plan.parameters + (plan.adaptive is not None)
    normals = stream.draw(step, needed, meets=met(exact, grid, std, count))
    check_noise(normals)
    noisy = on_grid(normals[: plan.parameters] * std, grid).add_(exact)
    mean = noisy.to(torch.float64).mul_(grid / plan.expected_lot)
    pieces = torch.split(mean, [value.numel() for value in total.values()])
    update = {
        name: piece.reshape(value.shape)
        for (name, value), piece in zip(total.items(), pieces, strict=True)
    }
    following, below = clip, None
    if plan.adaptive is not None:
        # The count is a multiple of one half; its noise joins it on a grid of 2⁻²⁴.
        noise = round(plan.adaptive.count_noise * float(normals[-1]) * 2**24) / 2**24
        noisy_count = centred + noise
        below = plan.adaptive.share_below(noisy_count, plan.expected_lot)
        following = plan.adaptive.next_clip(clip, below)
    return Released(update, following, below, std / plan.expected_lot)


def on_grid(values: Tensor, grid: float) -> Tensor:
    """The nearest multiples of `grid`, as int64 counts of it."""
    return (values / grid).round_().to(torch.int64)


def _fits(values: Tensor, grid: float) -> bool:
    """Whether all numbers are finite and, with noise, few enough steps of the grid for an int64."""
    most = 2.0**62 * grid
    # None is larger than their length, which takes one pass.
    return math.sqrt(float(values.dot(values))) < most or bool((values.abs() < most).all())


def met(exact: Tensor, *scales: float, question: str = "") -> bytes:
    """Digest of all that decides a release but its noise.

    Args:
        exact: Counts of the grid, int64.
        scales: Grid, deviation and whatever else the result depends on.
        question: What was asked, where the same counts may answer something else.
    """
    made = hashlib.sha256(struct.pack(f"<{len(scales)}d", *(scale + 0.0 for scale in scales)))
    made.update(hashlib.sha256(question.encode()).digest() if question else b"")
    made.update(exact.contiguous().numpy().data)
    return made.digest()
