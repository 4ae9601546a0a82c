"""Next event by copying one's own past: few weights, because habits stay in the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sequester.core.errors import UsageError
from sequester.models.inputs import Shape


class Copying(nn.Module):
    """Favours the present class, or the class of an earlier record (a lag).

    A gate per categorical input says how much its class is favoured, given the numeric features
    and whether the inputs agree; a linear layer knows what is common at which hour.
    Source: the copy mechanism of Vinyals, Fortunato, Jaitly 2015 (pointer networks).
    """

    def __init__(self, shape: Shape, *, hidden: int = 8) -> None:
        """Build gates over the categorical inputs, which share the label's vocabulary."""
        super().__init__()
        alike = set(shape.vocabularies) == {shape.outputs}
        if shape.pool != "none" or not alike:
            raise UsageError(
                251,
                "model.kind = 'copy' predicts the next event of the one category that is its "
                "input; use 'gru' or 'gru_skip' for other tasks",
            )
        self.outputs = shape.outputs
        columns = len(shape.vocabularies)
        width = shape.features + columns + columns * (columns - 1) // 2
        self.lift = nn.Linear(width, hidden)
        self.gate = nn.Linear(hidden, columns)
        self.common = nn.Linear(hidden, shape.outputs)

    def forward(self, x: Tensor, mask: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Logits per step; `categorical` holds the present class first, then the lags."""
        if categorical is None:
            raise UsageError(251, "model.kind = 'copy' needs a categorical input")
        columns = categorical.shape[-1]
        known = [categorical[..., k] > 0 for k in range(columns)]
        agree = [
            categorical[..., j] == categorical[..., k] for k in range(columns) for j in range(k)
        ]
        flags = torch.stack([*known, *agree], dim=-1).to(x.dtype)
        hidden = functional.relu(self.lift(torch.cat([x, flags], dim=-1)))
        gates = self.gate(hidden)
        logits: Tensor = self.common(hidden)
        for k in range(columns):
            # Codes start at 1; 0 and V + 1 name no class and favour none.
            chosen = functional.one_hot(categorical[..., k], self.outputs + 2)[..., 1:-1]
            logits = logits + gates[..., k : k + 1] * chosen.to(x.dtype)
        return logits
