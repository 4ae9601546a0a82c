"""Norms, clipping and the sum: the one place where people's gradients are added.

Both engines end here, so non-finite people, overflow and rounding are settled once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sequester.gradients.clipping import ClippingRule
from sequester.gradients.result import ClippedSum

# Squares of float32 numbers above this overflow, and below its inverse vanish; such people
# take the float64 path.
_SAFE = 1e15
_BLOCK = 4096


class Accumulator:
    """The running clipped sum of one lot.

    Attributes:
        parameters: Trainable parameters by name.
        norms: `(people, groups)` float64 norms; zero until a person is added.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], rule: ClippingRule, people: int
    ) -> None:
        """Start at zero for `people` people."""
        self.parameters = parameters
        self._rule = rule
        self._groups = rule.groups(list(parameters))
        self._sums = [torch.zeros_like(p, requires_grad=False) for p in parameters.values()]
        self.norms = torch.zeros(people, max(self._groups) + 1, dtype=torch.float64)
        self._nonfinite = torch.zeros(people, dtype=torch.bool)

    @torch.no_grad()
    def add_person(self, person: int, gradient: Sequence[Tensor | None]) -> None:
        """Clip one person's gradient and add it; `None` is a parameter their data never reached."""
        squares = self.norms.new_zeros(self.norms.shape[1])
        for group, part in zip(self._groups, gradient, strict=True):
            if part is not None:
                squares[group] += square_norm(part)
        norms = squares.sqrt()
        self.norms[person] = norms
        if not bool(norms.isfinite().all()):
            self._nonfinite[person] = True
            return
        factors = self._rule.factors(norms.unsqueeze(0))[0].tolist()
        for group, part, total in zip(self._groups, gradient, self._sums, strict=True):
            if part is not None:
                add_scaled(total, part, factors[group])

    def result(self) -> ClippedSum:
        """The sum over everyone added so far."""
        total = self.norms.square().sum(1).sqrt() if self.norms.shape[1] > 1 else self.norms[:, 0]
        return ClippedSum(
            sum=dict(zip(self.parameters, self._sums, strict=True)),
            norms=total,
            zero=int((total == 0).sum()),
            nonfinite=int(self._nonfinite.sum()),
        )


def square_norm(part: Tensor) -> float:
    """‖part‖² in float64: short float32 sums where they are safe, float64 throughout elsewhere."""
    part = part.to_dense() if part.is_sparse else part
    flat = part.reshape(-1)
    whole = flat.numel() // _BLOCK * _BLOCK
    value = float(flat[whole:].double().square().sum())
    if whole:
        value += float(
            torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1).double().square().sum()
        )
    if 1.0 / _SAFE < value < _SAFE:
        return value
    return float(flat.double().square().sum())


def add_scaled(total: Tensor, part: Tensor, factor: float) -> None:
    """`total += factor · part`, exact also where the factor itself would vanish in float32."""
    part = part.to_dense() if part.is_sparse else part
    if 1.0 / _SAFE < factor < _SAFE:
        total.add_(part, alpha=factor)
    else:
        total.add_((part.double() * factor).to(total.dtype))
