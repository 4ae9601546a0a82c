"""Poisson sampling of people: each person's own coin, every step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sequester.accounting import Event, PoissonSampled
from sequester.core.errors import UsageError
from sequester.core.rng import Keystream


@dataclass(frozen=True)
class PoissonSampler:
    """Draws lots in which every person takes part independently with probability `rate`.

    The sampler issues the accounting event of what it does (`event`), so that a loader which
    shuffles can never be charged as one that flips coins.
    Source: Abadi et al. 2016 (CCS), section 3.1; the coins are secret, as the amplification
    by sampling requires.

    Attributes:
        people: How many people there are to draw from (private; used for coins only, never
            as a denominator).
        rate: Public probability of taking part in a step, 0 < rate ≤ 1.
        keystream: Secret coins, addressed by step.
    """

    people: int
    rate: float
    keystream: Keystream

    def __post_init__(self) -> None:
        """Check the rate.

        Raises:
            UsageError: SQ-231 unless 0 < rate ≤ 1.
        """
        check_rate(self.rate)

    def draw(self, step: int) -> np.ndarray:
        """Positions of the people in the lot of `step`, int64, ascending; often not `rate·n`.

        A coin compares 53 random bits with ⌊rate·2⁵³⌋, so nobody takes part more often than
        the accountant believes.
        """
        threshold = np.uint64(math.floor(self.rate * 2.0**53))
        words = np.frombuffer(self.keystream.bytes(step, 8 * self.people), dtype="<u8")
        return np.flatnonzero((words >> np.uint64(11)) < threshold)

    def event(self, mechanism: Event) -> Event:
        """What `mechanism` amounts to when applied to lots of this sampler."""
        return poisson_event(self.rate, mechanism)


def poisson_event(rate: float, mechanism: Event) -> Event:
    """`mechanism` on Poisson lots; at rate 1 everybody takes part and nothing is amplified."""
    check_rate(rate)
    return mechanism if rate == 1.0 else PoissonSampled(rate, mechanism)


def check_rate(rate: float) -> None:
    """Refuse what is no probability above 0.

    Raises:
        UsageError: SQ-231.
    """
    if not 0.0 < rate <= 1.0:
        raise UsageError(
            231,
            f"sampling_rate must lie in (0, 1], got {rate}; it is the probability that a person "
            "takes part in one step",
        )
