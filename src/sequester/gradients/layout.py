"""How people's gradients of a weight lie in memory.

A matrix product with few rows and many columns takes up to a third less time than its transpose
in the libraries that PyTorch calls. So gradients of a matrix that is higher than wide lie turned,
column after column; everything else lies row after row.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def turned(shape: Sequence[int]) -> bool:
    """Whether gradients of a weight of this shape lie column after column."""
    return len(shape) == 2 and shape[0] > shape[1]


def shaped(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """`(people, numbers)` as they lie, as `(people, *shape)`: a view."""
    if turned(shape):
        return numbers.view(numbers.shape[0], shape[1], shape[0]).transpose(1, 2)
    return numbers.view(numbers.shape[0], *shape)


def flat(gradients: Tensor) -> Tensor:
    """`(people, *shape)` as `(people, numbers)`: a view, or a copy if they lie otherwise."""
    if turned(gradients.shape[1:]):
        gradients = gradients.transpose(1, 2)
    return gradients.reshape(gradients.shape[0], -1)


def laid(gradients: Tensor) -> Tensor:
    """`(people, *shape)` lying as it should."""
    return shaped(flat(gradients), gradients.shape[1:])
