"""Functions whose result's shape tells values, so that they could be read without being seen."""

from __future__ import annotations

from typing import Any

import torch

from sequester.gradients.trees import tensors_in

# The shape of their results depends on values, or on numbers given as tensors.
_SHAPED = set(
    "nonzero argwhere masked_select bincount one_hot repeat_interleave where arange linspace eye "
    "ones zeros full empty rand randn randint view reshape unflatten expand broadcast_to "
    "pad constant_pad_nd narrow select chunk split tensor_split split_with_sizes".split()
)


def shapes_by_value(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a result's shape tells values, so that they could be read without being seen."""
    if name in ("repeat", "tile", "roll"):
        return any(True for _ in tensors_in(args[1:], {}))
    if name != "__getitem__":
        return name in _SHAPED or "unique" in name
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    cuts = [part for part in parts if isinstance(part, slice)]
    masks = [t for t in tensors_in(parts, {}) if t.dtype in (torch.bool, torch.uint8)]
    return bool(masks) or any(True for _ in tensors_in(tuple(cuts), {}))
