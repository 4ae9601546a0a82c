"""What `clipped_sum` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class ClippedSum:
    """The sum over people of their clipped gradients; private until noise is added.

    Attributes:
        sum: Name of each trainable parameter, as in `named_parameters`, to its summed gradient.
        norms: `(people,)` float64 norms before clipping; inf or NaN where a gradient was.
        zero: People whose gradient was exactly zero, those without windows included.
        nonfinite: People whose gradient held inf or NaN; they contribute zero.
    """

    sum: dict[str, Tensor] = field(repr=False)
    norms: Tensor = field(repr=False)
    zero: int
    nonfinite: int
