"""Augmentation multiplicity: several altered copies of each person, clipped once.

The gradients of a person's copies are averaged before clipping, so that person still adds at
most `C`: the sensitivity, the noise and the charge are those of the plain loss.
Source: De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification
through Scale", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.gradients.lots import Loss


def augmented(loss: Loss, alter: Callable[[Any], Any], times: int) -> Loss:
    """A loss that is the mean of `loss` over `times` altered copies of the lot.

    Args:
        loss: One loss for each window.
        alter: Gives an altered copy of a lot, the same windows in the same order; it may draw
            random numbers, and must not look at one person to alter another.
        times: Copies, at least 1; time grows with it, memory and sensitivity do not change.

    Raises:
        UsageError: SQ-409 if `times` is no whole number ≥ 1.
    """
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise UsageError(
            409, f"times must be a whole number ≥ 1, got {times!r}; 1 alters each window once"
        )

    def mean(model: nn.Module, lot: Any) -> Tensor:
        total = loss(model, alter(lot))
        for _ in range(times - 1):
            total = total + loss(model, alter(lot))
        return total / times

    return mean
