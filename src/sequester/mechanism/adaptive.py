"""A clipping bound that follows a quantile of the norms, its noise charged.

Source: Andrew, Thakkar, McMahan, Ramaswamy 2021 (NeurIPS), algorithm 1 and theorem 1. Proof:
`proofs/adaptive_clipping.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sequester.core.errors import UsageError


@dataclass(frozen=True)
class AdaptiveClipping:
    """Geometric updates of the bound towards the `quantile` of the people's norms.

    Attributes:
        quantile: Share of people that shall stay below the bound, 0 < quantile < 1.
        learning_rate: Step of the logarithm of the bound; 0 keeps it and only counts.
        count_noise: Standard deviation of the noise on the count of people below the bound,
            in people.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float = 10.0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: SQ-236 naming the field.
        """
        if not 0.0 < self.quantile < 1.0:
            raise UsageError(236, f"adaptive.quantile must lie in (0, 1), got {self.quantile}")
        if not (self.learning_rate >= 0 and math.isfinite(self.learning_rate)):
            raise UsageError(236, f"adaptive.learning_rate must be ≥ 0, got {self.learning_rate}")
        if not (self.count_noise > 0 and math.isfinite(self.count_noise)):
            raise UsageError(236, f"adaptive.count_noise must be > 0, got {self.count_noise}")

    @classmethod
    def counting(cls, count_noise: float) -> AdaptiveClipping:
        """A bound that stays, and a noisy count of the people below it."""
        return cls(learning_rate=0.0, count_noise=count_noise)

    def gradient_noise_multiplier(self, together: float) -> float:
        """Multiplier for the gradient so that gradient and count together have `together`.

        Bits are centred (b − ½), so one person moves the count by ½ and its multiplier is
        `2 · count_noise`; two Gaussians on one lot add their inverse squares (theorem 1).

        Raises:
            UsageError: SQ-237 if the count alone already costs more than the whole step may.
        """
        rest = together**-2 - (2.0 * self.count_noise) ** -2
        if rest <= 0.0:
            raise UsageError(
                237,
                f"adaptive.count_noise = {self.count_noise} alone costs more than "
                f"noise_multiplier = {together} allows; it must exceed {together / 2:.4g}",
            )
        return 1.0 / math.sqrt(rest)

    def share_below(self, noisy_centred_count: float, expected_lot: float) -> float:
        """Estimated share of people below the bound, from the noisy sum of (b − ½).

        The denominator is the expected lot: the number of people drawn is private.
        """
        return noisy_centred_count / expected_lot + 0.5

    def next_clip(self, clip: float, below: float) -> float:
        """The next bound, from the noisy share of people `below` the present one."""
        return clip * math.exp(-self.learning_rate * (below - self.quantile))
