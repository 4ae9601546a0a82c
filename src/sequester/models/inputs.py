"""What a reference network reads: numeric features beside embedded categorical ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Public sizes a network is built from; none of them is counted on private records.

    Attributes:
        features: Numeric features per step.
        vocabularies: Size of the vocabulary of each categorical column.
        steps: Longest window.
        outputs: Numbers per prediction (classes, or 1).
        pool: "none" predicts at every step; "last" and "mean" once per window.
    """

    features: int
    vocabularies: tuple[int, ...]
    steps: int
    outputs: int
    pool: str


class Inputs(nn.Module):
    """Concatenates numeric features and embeddings of categorical codes.

    Codes are those of `People.codes`: 0 is a missing word, 1 to V the vocabulary, V + 1 any
    other word.
    """

    def __init__(self, features: int, vocabularies: Sequence[int], embedding: int) -> None:
        """Make one table of `(vocabulary + 2, embedding)` per categorical column."""
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size + 2, embedding) for size in vocabularies)
        self.width = features + embedding * len(self.tables)

    def forward(self, x: Tensor, categorical: Tensor | None) -> Tensor:
        """Join `x (windows, steps, features)` and codes `(windows, steps, columns)`.

        Returns:
            `(windows, steps, width)`.
        """
        if categorical is None or not len(self.tables):
            return x
        embedded = [table(categorical[..., k]) for k, table in enumerate(self.tables)]
        return torch.cat([x, *embedded], dim=-1)


def pooled(hidden: Tensor, mask: Tensor, pool: str) -> Tensor:
    """One vector per window, or one per step for "none".

    Args:
        hidden: `(windows, steps, width)`.
        mask: `(windows, steps)`, true steps first.
        pool: "none", "last" or "mean".
    """
    if pool == "none":
        return hidden
    steps = mask.sum(dim=1)
    if pool == "last":
        # A product with a one-hot row instead of an index: the same value, and every gradient
        # engine understands it.
        last = torch.arange(mask.shape[1]) == (steps - 1).clamp_min(0)[:, None]
        return (hidden * last[..., None].to(hidden.dtype)).sum(dim=1)
    weight = mask.to(hidden.dtype) / steps.clamp_min(1)[:, None].to(hidden.dtype)
    return (hidden * weight[..., None]).sum(dim=1)
