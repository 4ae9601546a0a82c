"""Reference networks: plain `torch.nn`, so that their weights load anywhere.

Each takes `(x, mask, categorical)` and gives logits `(windows, steps, outputs)`, or
`(windows, outputs)` when it pools. All are causal: step t sees nothing after t, so padding
behind a window's true steps changes nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sequester.core.errors import UsageError
from sequester.models.inputs import Inputs, Shape, pooled


class Recurrent(nn.Module):
    """`nn.GRU` or `nn.LSTM`, then a linear head."""

    def __init__(
        self, shape: Shape, cell: str, *, hidden: int = 32, layers: int = 1, embedding: int = 8
    ) -> None:
        """Build the cell ("gru" or "lstm") with `hidden` units in `layers` layers."""
        super().__init__()
        self.pool = shape.pool
        self.inputs = Inputs(shape.features, shape.vocabularies, embedding)
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.cell = kind(self.inputs.width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, shape.outputs)

    def forward(self, x: Tensor, mask: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Logits per step, or per window when pooling."""
        hidden, _ = self.cell(self.inputs(x, categorical))
        out: Tensor = self.head(pooled(hidden, mask, self.pool))
        return out


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        """Build projections of `width`, split over `heads`."""
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_wide = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform `(windows, steps, width)`."""
        windows, steps, width = hidden.shape
        parts = self.query_key_value(self.norm_attention(hidden))
        query, key, value = (
            part.reshape(windows, steps, self.heads, width // self.heads).transpose(1, 2)
            for part in parts.chunk(3, dim=-1)
        )  # (windows, heads, steps, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(windows, steps, width))
        wide: Tensor = self.narrow(functional.gelu(self.wide(self.norm_wide(hidden))))
        return hidden + wide


class Transformer(nn.Module):
    """A causal transformer with learned positions."""

    def __init__(
        self, shape: Shape, *, width: int = 32, layers: int = 2, heads: int = 2, embedding: int = 8
    ) -> None:
        """Build `layers` blocks; `width` must be a multiple of `heads`."""
        super().__init__()
        if width % heads:
            raise UsageError(
                250, f"model.width must be a multiple of model.heads, got {width} and {heads}"
            )
        self.pool = shape.pool
        self.inputs = Inputs(shape.features, shape.vocabularies, embedding)
        self.lift = nn.Linear(self.inputs.width, width)
        self.positions = nn.Embedding(shape.steps, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.outputs)

    def forward(self, x: Tensor, mask: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Logits per step, or per window when pooling."""
        place = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        hidden = self.lift(self.inputs(x, categorical)) + self.positions(place)
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.head(pooled(self.norm(hidden), mask, self.pool))
        return out


class Convolutional(nn.Module):
    """A temporal convolutional network: dilated causal convolutions with residuals (TCN)."""

    def __init__(
        self, shape: Shape, *, width: int = 32, layers: int = 3, kernel: int = 3, embedding: int = 8
    ) -> None:
        """Build `layers` convolutions; dilation doubles from one to the next."""
        super().__init__()
        self.pool = shape.pool
        self.inputs = Inputs(shape.features, shape.vocabularies, embedding)
        self.lift = nn.Linear(self.inputs.width, width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, kernel, dilation=2**k) for k in range(layers)
        )
        self.kernel = kernel
        self.head = nn.Linear(width, shape.outputs)

    def forward(self, x: Tensor, mask: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Logits per step, or per window when pooling."""
        hidden = self.lift(self.inputs(x, categorical)).transpose(1, 2)
        for k, convolution in enumerate(self.convolutions):
            # Padding on the left alone keeps the future out.
            past = functional.pad(hidden, ((self.kernel - 1) * 2**k, 0))
            hidden = hidden + functional.relu(convolution(past))
        out: Tensor = self.head(pooled(hidden.transpose(1, 2), mask, self.pool))
        return out


class Linear(nn.Module):
    """Logistic (or linear) regression on summaries of a window: the baseline of the house.

    Per feature: the mean, last, smallest and largest value over true steps; beside them the
    number of steps. Without pooling it reads each step's own features.
    """

    def __init__(self, shape: Shape, *, embedding: int = 8) -> None:
        """Build the one linear layer."""
        super().__init__()
        self.pool = shape.pool
        self.inputs = Inputs(shape.features, shape.vocabularies, embedding)
        summaries = 1 if shape.pool == "none" else 4
        self.head = nn.Linear(self.inputs.width * summaries + summaries // 4, shape.outputs)

    def forward(self, x: Tensor, mask: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Logits per step, or per window when pooling."""
        joined = self.inputs(x, categorical)
        out: Tensor = self.head(joined if self.pool == "none" else summarise(joined, mask))
        return out


class Skip(nn.Module):
    """A GRU whose head also sees the linear model's own inputs.

    Few noisy steps train the short linear path first; the cell adds what order in time knows.
    Per window the short path reads the summaries of `Linear`, per step the step's features.
    """

    def __init__(self, shape: Shape, *, hidden: int = 16, embedding: int = 8) -> None:
        """Build a GRU of `hidden` units and a head over both paths."""
        super().__init__()
        self.pool = shape.pool
        self.inputs = Inputs(shape.features, shape.vocabularies, embedding)
        self.cell = nn.GRU(self.inputs.width, hidden, batch_first=True)
        short = self.inputs.width if shape.pool == "none" else 4 * self.inputs.width + 1
        self.head = nn.Linear(short + hidden, shape.outputs)

    def forward(self, x: Tensor, mask: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Logits per step, or per window when pooling."""
        joined = self.inputs(x, categorical)
        hidden, _ = self.cell(joined)
        short = joined if self.pool == "none" else summarise(joined, mask)
        out: Tensor = self.head(torch.cat([short, pooled(hidden, mask, self.pool)], dim=-1))
        return out


def summarise(x: Tensor, mask: Tensor) -> Tensor:
    """Mean, last, smallest and largest value per feature, and √steps: `(windows, 4·f + 1)`."""
    away = ~mask[..., None]
    least = x.masked_fill(away, math.inf).amin(dim=1).nan_to_num(posinf=0.0)
    most = x.masked_fill(away, -math.inf).amax(dim=1).nan_to_num(neginf=0.0)
    length = mask.sum(dim=1, keepdim=True).to(x.dtype).sqrt() / math.sqrt(mask.shape[1])
    mean, last = pooled(x, mask, "mean"), pooled(x, mask, "last")
    return torch.cat([mean, last, least, most, length], dim=-1)
