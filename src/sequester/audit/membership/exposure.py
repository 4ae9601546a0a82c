"""Exposure of planted sequences: how far up a secret stands among all it could have been.

Source: Carlini et al. 2019 (USENIX Security), "The Secret Sharer", definition 4.
`exposure = log2 |R| − log2 rank`, rank 1 the sequence the model likes best.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError

Floats = NDArray[np.float64]


def exposure(secret: float, others: Floats) -> float:
    """Bits by which the model gives a secret away.

    Args:
        secret: Log-likelihood of the planted sequence.
        others: Log-likelihoods of all other sequences of its space, or of a random part.

    Returns:
        Between 0 and `log2(len(others) + 1)`; ties count against the secret being found.

    Raises:
        UsageError: SQ-824 without others or with values that are not numbers.
    """
    values = np.asarray(others, dtype=float)
    if not len(values) or not np.isfinite(values).all() or not math.isfinite(secret):
        raise UsageError(824, "exposure needs finite log-likelihoods of a secret and of others")
    rank = 1 + int((values >= secret).sum())
    return math.log2(len(values) + 1) - math.log2(rank)


def repeated(exposures: dict[int, Floats]) -> dict[int, tuple[float, float]]:
    """Mean exposure and its standard error at each number of repeats."""
    return {
        repeats: (
            float(np.mean(values)),
            float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0,
        )
        for repeats, values in sorted(exposures.items())
    }
