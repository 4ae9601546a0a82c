"""Clipped sums of people's gradients: one person, one vector, one bound.

`clipped_sum` is the room's door. Everything it returns before noise is private: keep it in
the process, hand it to `mechanism.release`, never log it.
"""

from sequester.gradients.augmenting import augmented
from sequester.gradients.clipping import Automatic, ClippingRule, Flat, PerLayer
from sequester.gradients.dropin import PrivateGradients
from sequester.gradients.engine import clipped_sum
from sequester.gradients.lots import Loss, LotLike
from sequester.gradients.result import ClippedSum

__all__ = [
    "Automatic",
    "ClippedSum",
    "ClippingRule",
    "Flat",
    "Loss",
    "LotLike",
    "PerLayer",
    "PrivateGradients",
    "augmented",
    "clipped_sum",
]
