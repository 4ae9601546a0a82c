"""Norms, clipping and the sum: the one place where people's gradients are added.

Both engines end here, so non-finite people, overflow and rounding are settled once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sequester.gradients.clipping import ClippingRule
from sequester.gradients.ghost import Factored, PersonRows
from sequester.gradients.layout import flat, laid, shaped
from sequester.gradients.native import kernels
from sequester.gradients.result import ClippedSum

# Squares of float32 numbers beyond this overflow, and below its inverse vanish; people whose
# squared norm is outside take the float64 path.
_SAFE = 1e15


Entry = tuple[Tensor | None, PersonRows | None, Factored | None]
"""People's gradients of one parameter: dense, looked-up rows, and rows whose product they are."""


def gradient_of(
    parameters: dict[str, nn.Parameter], entries: Sequence[Entry], person: int
) -> list[Tensor | None]:
    """One person's gradient, put together from a chunk's entries."""
    parts = [
        part_of(parameter, entry, person)
        for parameter, entry in zip(parameters.values(), entries, strict=True)
    ]
    return [None if part is None else part.clone() for part in parts]


def part_of(parameter: nn.Parameter, entry: Entry, person: int) -> Tensor | None:
    """One person's gradient of one parameter; may be a view of the chunk's."""
    whole, rows, factors = entry
    part = None if whole is None else whole[person]
    part = part if factors is None else factors.product(person)
    if rows is None:
        return part
    own = rows.person == person
    part = torch.zeros_like(parameter) if part is None else part.clone()
    return part.index_add_(0, rows.row[own], rows.values[own])


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
        self._sums: list[Tensor | None] = [None] * len(parameters)
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
        for index, (group, part) in enumerate(zip(self._groups, gradient, strict=True)):
            if part is not None:
                _add_scaled(self._sum(index), part, factors[group])

    @torch.no_grad()
    def add_chunk(
        self,
        first: int,
        people: int,
        entries: Sequence[Entry],
    ) -> None:
        """Clip and add `people` people numbered from `first`.

        Args:
            first: The first one's position in the lot.
            people: How many.
            entries: For each parameter. Overwritten for odd people.
        """
        device = next(iter(self.parameters.values())).device
        use = kernels(device)
        flats = [None if whole is None else flat(whole) for whole, *_ in entries]
        squares = self.norms.new_zeros(people, self.norms.shape[1])
        for index, (_, rows, factors) in enumerate(entries):
            numbers, group = flats[index], self._groups[index]
            if numbers is not None:
                squares[:, group] += use.square_norms(numbers).cpu()
            if factors is not None:
                squares[:, group] += factors.square_norms(rows).cpu()
            elif rows is not None:
                each = use.square_norms(rows.values).cpu()
                squares[:, group].index_add_(0, rows.person.cpu(), each)
        odd = ((squares > _SAFE) | (squares < 1.0 / _SAFE) & (squares > 0) | squares.isnan()).any(1)
        if bool(odd.any()):
            self._add_odd(first, odd.nonzero().flatten().tolist(), self._lying(flats, entries))
        norms = squares.sqrt()
        scales = self._rule.factors(norms.masked_fill(odd.unsqueeze(1), 0.0))
        scales = scales.masked_fill(odd.unsqueeze(1), 0.0)
        keep = ~odd
        self.norms[first : first + people][keep] = norms[keep]
        for index, (_, rows, factors) in enumerate(entries):
            numbers, scale = flats[index], scales[:, self._groups[index]].to(device)
            if numbers is not None:
                total = flat(self._sum(index, lying=True).unsqueeze(0))[0]
                use.add_weighted(total, numbers, scale)
            if factors is not None:
                factors.add_weighted(self._sum(index), scale)
            if rows is not None:
                each = rows.values.double() * scale[rows.person].unsqueeze(1)
                self._sum(index).index_add_(0, rows.row, each)

    def _sum(self, index: int, *, lying: bool = False) -> Tensor:
        """The sum of one parameter, to add to; if need be it lies as gradients do from now on."""
        held = self._sums[index]
        if held is None:
            like = list(self.parameters.values())[index]
            # Float64 whatever the model's dtype: in float32 the rounding of a large lot's sum
            # depends on who is in it, by more than the sensitivity allows for.
            fresh = torch.zeros(1, like.numel(), dtype=torch.float64, device=like.device)
            held = shaped(fresh, like.shape)[0] if lying else fresh.view(like.shape)
        elif lying:
            held = laid(held.unsqueeze(0))[0]
        self._sums[index] = held
        return held

    def _lying(self, flats: list[Tensor | None], entries: Sequence[Entry]) -> list[Entry]:
        """The same entries with `flats` in them, to be written to."""
        shapes = [p.shape for p in self.parameters.values()]
        return [
            (None if numbers is None else shaped(numbers, shape), rows, factors)
            for numbers, shape, (_, rows, factors) in zip(flats, shapes, entries, strict=True)
        ]

    def _add_odd(
        self,
        first: int,
        people: list[int],
        entries: Sequence[Entry],
    ) -> None:
        """People whose norm is not known yet, one at a time in float64; then blank them."""
        for person in people:
            gradient = gradient_of(self.parameters, entries, person)
            for whole, rows, _ in entries:
                if rows is not None:
                    rows.values[rows.person == person] = 0.0
                if whole is not None:
                    whole[person] = 0.0
            self.add_person(first + person, gradient)

    def merge(self, other: Accumulator) -> None:
        """Take over what another worker summed over other people of the same lot."""
        for index, part in enumerate(other._sums):
            if part is not None and self._sums[index] is not None:
                self._sum(index).add_(part)
            elif part is not None:
                self._sums[index] = part
        other._sums.clear()
        self.norms += other.norms
        self._nonfinite |= other._nonfinite

    def result(self) -> ClippedSum:
        """The sum over everyone added so far."""
        total = self.norms.square().sum(1).sqrt() if self.norms.shape[1] > 1 else self.norms[:, 0]
        sums = {}
        for index, name in enumerate(self.parameters):  # one copy at a time
            sums[name] = self._sums[index] = self._sum(index).contiguous()
        return ClippedSum(
            sum=sums,
            norms=total,
            zero=int((total == 0).sum()),
            nonfinite=int(self._nonfinite.sum()),
        )


def square_norm(part: Tensor) -> float:
    """‖part‖² in float64, throughout where float32 sums may not be safe."""
    part = part.to_dense() if part.is_sparse else part
    value = float(kernels(part.device).square_norms(part.reshape(1, -1)))
    if 1.0 / _SAFE < value < _SAFE:
        return value
    return float(part.double().square().sum())


def _add_scaled(total: Tensor, part: Tensor, factor: float) -> None:
    """`total += factor · part` in float64, where the factor cannot vanish."""
    part = part.to_dense() if part.is_sparse else part
    total.add_(part.double(), alpha=factor)
