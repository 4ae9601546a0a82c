"""Functions that read values, or whose result's shape tells them, so that nobody sees it read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sequester.gradients.modes import Mode
from sequester.gradients.trees import tensors_in

# The shape of their results depends on values, or on numbers given as tensors.
_SHAPED = set(
    "nonzero argwhere masked_select bincount one_hot repeat_interleave where arange linspace eye "
    "ones zeros full empty rand randn randint view reshape unflatten expand broadcast_to "
    "pad constant_pad_nd narrow select chunk split tensor_split split_with_sizes "
    "indices values coalesce crow_indices ccol_indices col_indices row_indices".split()
)
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def shapes_by_value(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a result's shape tells values, so that they could be read without being seen."""
    if name in ("repeat", "tile", "roll"):
        return any(True for _ in tensors_in(args[1:], {}))
    if name != "__getitem__":
        return name in _SHAPED or "unique" in name or name.startswith("to_sparse")
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    cuts = [part for part in parts if isinstance(part, slice)]
    masks = [t for t in tensors_in(parts, {}) if t.dtype in (torch.bool, torch.uint8)]
    return bool(masks) or any(True for _ in tensors_in(tuple(cuts), {}))


class Unread(Mode):
    """Asks `refuse` about each operation that turns values into numbers, or into a shape.

    Whatever a function does with a length that is a tensor, PyTorch reads it there first.
    """

    def __init__(self, refuse: Callable[[Any], None]) -> None:
        """Keep it."""
        super().__init__()
        self._refuse = refuse

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Ask, then run."""
        # Of indexing, only masks make a shape by value, and `shapes_by_value` sees those.
        if not _TAGS.isdisjoint(func.tags) and func is not torch.ops.aten.index.Tensor:
            self._refuse(func)
        return func(*args, **kwargs)
