"""Gradients of huge layers, kept as the few rows they are products of.

A person's gradient of a linear layer's weight is `DᵀA` over that person's rows. Where rows are
few and the weight is huge, the product is never formed: its squared norm is
`Σᵢⱼ (D Dᵀ)ᵢⱼ (A Aᵀ)ᵢⱼ`, and the clipped sum of everyone is one product of scaled rows.
Source: Goodfellow 2015, "Efficient Per-Example Gradient Computations"; for sequences, Li et al.
2022, "Large Language Models Can Be Strong Differentially Private Learners", section 4.

Both run in float64 on float32 rows, where no product or sum of four of them overflows or
vanishes. An inner product of n numbers errs by at most n · 2⁻⁵³ of the product of their lengths,
so a squared norm errs by at most `(p + d + rows) · 2⁻⁵²` of the square of `Σᵢ ‖dᵢ‖‖aᵢ‖`. People
whose rows cancel until the norm is less than 2⁻⁵ of that sum are left to the direct product.
For everyone else the squared norm is off by less than 2⁻²⁰ up to layers of 2²¹ numbers a row,
which `clipping.MARGIN` covers, and the sum's own rounding is at most 2⁵ times that of products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Weights below this many numbers are not worth it. Measured on W3's network: a product a person
# costs about as much for each number of the weight as 32 rows cost more in float64, or as 16
# entries of the Gram matrices cost for each number of a row.
HUGE = 1 << 16
_ROW, _PAIR = 1 / 32, 1 / 16
_ALONE = 128  # and a person by herself, as many times more
_BLOCK = 16  # rows in one Gram matrix: other people's pairs are blanked
_CANCELS = 2.0**-10
_WIDEST = 1 << 21
_NUMBERS = 1 << 17  # rows × columns turned to float64 at once: a core's cache


def pays(weight: Tensor, rows: Tensor) -> bool:
    """Whether people with so many rows each are cheaper kept as rows.

    Args:
        weight: `(p, d)`.
        rows: `(people,)` rows of each person.
    """
    p, d = weight.shape
    owners, squares = int((rows > 0).sum()), int(rows.square().sum())
    cost = _ROW * int(rows.sum()) * p * d + _PAIR * squares * (p + d)
    return cost < owners * p * d


def possible(weight: Tensor) -> bool:
    """Whether a weight's gradient can be kept as rows at all: float32 and huge."""
    two = weight.dim() == 2 and weight.dtype == torch.float32
    return two and weight.numel() >= HUGE and sum(weight.shape) < _WIDEST


class PersonRows(Protocol):
    """Rows of a table that people looked up: `values[k]` is `person[k]`'s gradient of `row[k]`.

    People ascend, and each (person, row) occurs once.
    """

    person: Tensor
    row: Tensor
    values: Tensor


@dataclass(frozen=True)
class Factored:
    """The gradients `DᵀA` of a chunk's people for one weight.

    Attributes:
        people: People in the chunk.
        person: `(rows,)` person of each row, ascending.
        left: D, `(rows, p)` float32; never written to.
        right: A, `(rows, d)` float32.
    """

    people: int
    person: Tensor
    left: Tensor
    right: Tensor

    @staticmethod
    def joined(parts: list[Factored]) -> Factored:
        """All uses of one weight: a sum of products is the product of all rows."""
        if len(parts) == 1:
            return parts[0]
        person = torch.cat([part.person for part in parts])
        order = torch.argsort(person, stable=True)
        left = torch.cat([part.left for part in parts])[order]
        right = torch.cat([part.right for part in parts])[order]
        return Factored(parts[0].people, person[order], left, right)

    def product(self, person: int) -> Tensor:
        """One person's `DᵀA`."""
        rows = self._rows(person, person + 1)
        return self.left[rows].t() @ self.right[rows]

    def square_norms(self, table: PersonRows | None) -> Tensor:
        """Each person's squared norm of `DᵀA` and what was looked up, together.

        Args:
            table: The same weight's rows, where it is a table tied to an output layer.

        Returns:
            `(people,)` float64; NaN where only the direct product can tell, as above.
        """
        squares = torch.zeros(self.people, dtype=torch.float64, device=self.left.device)
        lengths = torch.zeros_like(squares)
        if table is not None:
            squares.index_add_(0, table.person, table.values.double().square().sum(1))
            lengths += squares.sqrt()
        many = _ALONE * self.left.shape[1] * self.right.shape[1] / self._numbers
        for first, stop in self._blocks():
            rows = self._rows(first, stop)
            if (rows.stop - rows.start) ** 2 > many and stop - first == 1:
                squares[first] = torch.nan
                continue
            d, a, who = self.left[rows].double(), self.right[rows].double(), self.person[rows]
            pairs = (d @ d.t()) * (a @ a.t())
            lengths.index_add_(0, who, pairs.diagonal().sqrt())
            met = pairs.masked_fill_(who.unsqueeze(1) != who, 0.0).sum(1)
            if table is not None:
                own = _between(table.person, first, stop)
                both = d[:, table.row[own]] * (a @ table.values[own].double().t())
                met += 2.0 * both.masked_fill_(who.unsqueeze(1) != table.person[own], 0.0).sum(1)
            squares.index_add_(0, who, met)
        return squares.masked_fill_(squares < _CANCELS * lengths.square(), torch.nan)

    def add_weighted(self, total: Tensor, scale: Tensor) -> None:
        """Add each person's gradient times `scale` to `total`, `(p, d)` float64.

        People of scale zero are left out whatever their rows hold.
        """
        share = scale.to(self.right.device)[self.person].unsqueeze(1)
        out = share == 0
        right = self.right.double().mul_(share).masked_fill_(out, 0.0)
        some, columns = bool(out.any()), max(256, _NUMBERS // max(1, len(right)))
        for start in range(0, len(total), columns):
            block = self.left[:, start : start + columns].double()
            if some:
                block.masked_fill_(out, 0.0)
            total[start : start + columns].addmm_(block.t(), right)

    @property
    def _numbers(self) -> int:
        return self.left.shape[1] + self.right.shape[1]

    def _rows(self, first: int, stop: int) -> slice:
        return _between(self.person, first, stop)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Stretches of people with about `_BLOCK` rows in all, or one person with more."""
        counts = torch.bincount(self.person, minlength=self.people).tolist()
        first, rows = 0, 0
        for person, count in enumerate(counts):
            if rows and rows + count > _BLOCK:
                yield first, person
                rows = 0
            first = first if rows else person
            rows += count
        if rows:
            yield first, self.people


def _between(person: Tensor, first: int, stop: int) -> slice:
    """Where people `first..stop-1` lie in an ascending vector."""
    edges = torch.searchsorted(person, torch.tensor([first, stop], device=person.device))
    return slice(*edges.tolist())
