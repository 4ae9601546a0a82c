"""Robust aggregation: rules that a minority of hostile clients cannot steer far.

    coordinate median   Yin, Chen, Ramchandran, Bartlett (2018), Definition 1
    trimmed mean        Yin et al. (2018), Definition 2
    Krum, multi-Krum    Blanchard, El Mhamdi, Guerraoui, Stainer (2017), section 4
    norm bounding       Sun, Kairouz, Suresh, McMahan (2019), section 4

They need to see each update, so they exclude secure aggregation, and no noise is calibrated to
them: with a guarantee the rule is the clipped mean. All but norm bounding ignore weights: a
weight is one more thing a hostile client can lie about. They hold a round's updates all at once,
where the mean adds them up as they come (`simulate.HELD_BYTES` bounds that).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.federated.algorithms.base import Fold
from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum

_COORDINATES = 4096


class Rule(Protocol):
    """Turns accepted updates into one vector."""

    def __call__(self, updates: Sequence[Accepted], weights: Sum) -> Sum:
        """The aggregate, float64 `(size,)`; `updates` is not empty."""
        ...


@dataclass(frozen=True)
class CoordinateMedian:
    """The median of each coordinate: holds up to just under half of the clients."""

    def __call__(self, updates: Sequence[Accepted], weights: Sum) -> Sum:
        """med{Δ_k[j]} for every coordinate j."""
        return _by_coordinate(updates, lambda values: np.median(values, axis=0))


@dataclass(frozen=True)
class TrimmedMean:
    """Mean of each coordinate without the `share` largest and smallest values.

    Attributes:
        share: β in [0, ½): the share of hostile clients it withstands.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        """Check the share."""
        if not 0.0 <= self.share < 0.5:
            raise UsageError(605, f"the trimmed share must lie in [0, 0.5), got {self.share}")

    def __call__(self, updates: Sequence[Accepted], weights: Sum) -> Sum:
        """Mean over what is left of each sorted coordinate."""
        # Rounded up: trimming fewer than the hostile share would leave some of them in.
        cut = min(int(np.ceil(self.share * len(updates))), (len(updates) - 1) // 2)

        def trimmed(values: NDArray[np.float64]) -> Sum:
            kept: Sum = np.sort(values, axis=0)[cut : len(updates) - cut].mean(axis=0)
            return kept

        return _by_coordinate(updates, trimmed)


@dataclass(frozen=True)
class Krum:
    """The update closest to its neighbours; the mean of the `keep` closest for multi-Krum.

    Attributes:
        share: Share f/n of hostile clients; the score sums n − f − 2 nearest distances.
        keep: 1 is Krum; m > 1 is multi-Krum; at most n − f are kept.
    """

    share: float = 0.2
    keep: int = 1

    def __post_init__(self) -> None:
        """Check share and count."""
        if not 0.0 <= self.share < 0.5 or self.keep < 1:
            raise UsageError(
                605,
                f"Krum needs a share in [0, 0.5) and keep ≥ 1, got {self.share} and {self.keep}",
            )

    def __call__(self, updates: Sequence[Accepted], weights: Sum) -> Sum:
        """Mean of the updates with the smallest scores."""
        stacked = _stack(updates)
        hostile = int(np.ceil(self.share * len(updates)))
        order = np.argsort(krum_scores(stacked, hostile), kind="stable")
        chosen = np.sort(order[: max(1, min(self.keep, len(updates) - hostile))])
        kept: Sum = stacked[chosen].mean(axis=0)
        return kept


def krum_scores(stacked: NDArray[np.float64], hostile: int) -> Sum:
    """s(i) = Σ ‖Δ_i − Δ_j‖² over the n − f − 2 nearest j ≠ i (Blanchard et al., section 4)."""
    squares = np.einsum("ij,ij->i", stacked, stacked)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2.0 * stacked @ stacked.T, 0.0)
    np.fill_diagonal(distances, np.inf)
    nearest = max(1, len(stacked) - hostile - 2)
    scores: Sum = np.sort(distances, axis=1)[:, : min(nearest, len(stacked) - 1)].sum(axis=1)
    return scores


@dataclass(frozen=True)
class NormBound:
    """Weighted mean of updates scaled down to norm `bound`."""

    bound: float

    def __post_init__(self) -> None:
        """Check the bound."""
        if not self.bound > 0:
            raise UsageError(606, f"the norm bound must be > 0, got {self.bound}")

    def __call__(self, updates: Sequence[Accepted], weights: Sum) -> Sum:
        """Σ p_k Δ_k · min(1, bound/‖Δ_k‖)."""
        norms = np.array([np.linalg.norm(update.delta.astype(np.float64)) for update in updates])
        factors = weights * np.minimum(1.0, self.bound / np.maximum(norms, 1e-300))
        return _sum(updates, factors)


def _sum(updates: Sequence[Accepted], weights: Sum) -> Sum:
    fold = Fold(len(updates[0].delta))
    for update, weight in zip(updates, weights.tolist(), strict=True):
        fold.add(update, weight)
    return fold.total


def _by_coordinate(updates: Sequence[Accepted], rule: Callable[[NDArray[np.float64]], Sum]) -> Sum:
    """A rule that looks at each coordinate alone, some coordinates at a time to save memory."""
    size = len(updates[0].delta)
    result: Sum = np.empty(size)
    for at in range(0, size, _COORDINATES):
        part = slice(at, at + _COORDINATES)
        result[part] = rule(np.stack([update.delta[part] for update in updates]).astype(np.float64))
    return result


def _stack(updates: Sequence[Accepted]) -> NDArray[np.float64]:
    return np.stack([update.delta for update in updates]).astype(np.float64)
