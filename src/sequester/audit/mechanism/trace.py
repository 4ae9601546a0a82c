"""What a white-box observer of real steps writes down, in units of the noise that is claimed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """Steps of one run, seen from inside.

    If the run does what its plan says, every entry of `residual`, `signal`, `presence` and
    `count` is an independent standard normal, and lots are coins of probability `rate`, or of
    exactly `lot_size`.

    Attributes:
        residual: Released sum minus the reference sum, over the claimed standard deviation,
            `(steps, parameters)`; a row for each client's release where clients add the noise.
        tensors: First and last coordinate (exclusive) of each tensor.
        signal: Residual along the direction of the reference sum, `(steps,)`; NaN where that
            sum is zero.
        presence: Residual at the coordinates of the canaries in the lot, summed and scaled to
            unit variance, `(steps,)`; NaN where the lot held none.
        count: Residual of the noisy count behind an adaptive bound, `(steps,)`, or empty.
        gaps: Distance between the fast engine and the float64 loop on the same people, in
            clipping bounds, one per comparison; no noise in it.
        drawn: Whether each person was in each lot, bool `(steps, people)`.
        rate: Sampling rate that is charged.
        steps_charged: Steps that the claim accounts for.
        steps_released: Steps whose output left the mechanism.
        lot_size: Exactly this many in each lot; 0 for coins.
    """

    residual: Floats
    tensors: dict[str, tuple[int, int]]
    signal: Floats
    presence: Floats
    drawn: NDArray[np.bool_]
    rate: float
    steps_charged: int
    steps_released: int
    count: Floats = field(default_factory=lambda: np.empty(0))
    gaps: Floats = field(default_factory=lambda: np.empty(0))
    lot_size: int = 0
