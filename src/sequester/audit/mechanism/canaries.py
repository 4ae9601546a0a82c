"""Canaries: people with windows of their own, put among the people before anything is clipped.

A canary's windows have no answer to learn from; instead its loss is a multiple of one weight, so
that its gradient points along one coordinate and is far longer than the bound. It goes through
the real loss, the real clipping, the real sampling and the real sum like anybody's. Coordinates
are stratified over tensors, so that a small tensor without noise is not missed, and no two
canaries share one, so that they do not disturb each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.models import Task
from sequester.sampling import Lot

FEWEST = 8
"""With fewer coins there is nothing to prove."""

LENGTH = 64.0
"""Length of a canary's gradient before clipping, in clipping bounds."""


@dataclass(frozen=True)
class Design:
    """Which canaries there are and which take part; drawn before the run.

    Attributes:
        coordinate: Position of each canary's weight among all parameters, `(canaries,)`.
        tensor: Index of the parameter it lies in, `(canaries,)`.
        coins: Whether it takes part, `(canaries,)`.
        windows: Windows of each canary.
        names: Trainable parameters in order.
        offsets: Where each begins among all coordinates, one more than there are names.
        exchange: A canary that does not take part has another in its place, which points the
            other way: what a claim about exchanging one person's data promises to hide.
    """

    coordinate: NDArray[np.int64]
    tensor: NDArray[np.int64]
    coins: NDArray[np.bool_]
    windows: int
    names: tuple[str, ...]
    offsets: tuple[int, ...]
    exchange: bool = False

    @classmethod
    def draw(
        cls, model: nn.Module, canaries: int, *, windows: int, seed: int, exchange: bool = False
    ) -> Design:
        """Spread canaries evenly over the trainable tensors and flip a fair coin for each; or none.

        Raises:
            UsageError: SQ-810 if there are fewer coordinates than canaries, or fewer than 8.
        """
        sizes = {n: p.numel() for n, p in model.named_parameters() if p.requires_grad}
        total = sum(sizes.values())
        if canaries and not FEWEST <= canaries <= total:
            raise UsageError(
                810,
                f"canaries must number {FEWEST} to {total} (one per trainable weight at most), got "
                f"{canaries}",
            )
        generator = public_generator(seed)
        offsets = tuple(np.concatenate([[0], np.cumsum(list(sizes.values()))]).tolist())
        shares = _shares(list(sizes.values()), canaries)
        coordinate, tensor = [], []
        for index, share in enumerate(shares):
            size = offsets[index + 1] - offsets[index]
            chosen = generator.choice(size, size=share, replace=False)
            coordinate.append(offsets[index] + chosen)
            tensor.append(np.full(share, index))
        order = generator.permutation(canaries)
        return cls(
            coordinate=np.concatenate(coordinate)[order],
            tensor=np.concatenate(tensor)[order],
            coins=generator.integers(0, 2, canaries).astype(bool),
            windows=windows,
            names=tuple(sizes),
            offsets=offsets,
            exchange=exchange,
        )

    @property
    def inside(self) -> NDArray[np.int64]:
        """Numbers of the canaries that are there: those that take part, or all in an exchange."""
        return np.arange(len(self.coins)) if self.exchange else np.flatnonzero(self.coins)

    @property
    def sign(self) -> NDArray[np.float64]:
        """Which way each canary points, `(canaries,)`: 1, or −1 in the place of one."""
        return np.where(self.coins, 1.0, -1.0) if self.exchange else np.ones(len(self.coins))


@dataclass(frozen=True)
class CanaryLot(Lot):
    """A lot in which some people are canaries.

    Attributes:
        canary: Rank of the window's canary among those inside, or −1 for a person's window,
            `(windows,)`.
        picked: Positions of every lot picked from the whole, in order; None for a part.
    """

    canary: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    picked: list[NDArray[np.int64]] | None = None

    @classmethod
    def of(cls, lot: Lot, design: Design) -> CanaryLot:
        """`lot` with the canaries that take part behind its people."""
        inside, windows = len(design.inside), design.windows
        rank = torch.arange(inside).repeat_interleave(windows)
        more = len(rank)

        def extended(value: Tensor, fill: float) -> Tensor:
            return torch.cat([value, value.new_full((more, *value.shape[1:]), fill)])

        nothing = float("nan") if lot.target.is_floating_point() else -1
        categorical = lot.categorical
        return cls(
            x=extended(lot.x, 0.0),
            mask=extended(lot.mask, fill=True),
            target=extended(lot.target, nothing),
            owner=torch.cat([lot.owner, lot.people + rank]),
            people=lot.people + inside,
            categorical=None if categorical is None else extended(categorical, 0),
            canary=torch.cat([torch.full_like(lot.owner, -1), rank]),
            picked=[],
        )

    def pick(self, positions: NDArray[np.int64]) -> CanaryLot:
        """As `Lot.pick`; the whole remembers who was picked."""
        if self.picked is not None:
            self.picked.append(np.array(positions))
        return cast(CanaryLot, super().pick(positions))

    def _rows(self, rows: slice | Tensor, owner: Tensor, people: int) -> CanaryLot:
        part = super()._rows(rows, owner, people)
        plain: dict[str, Any] = {one.name: getattr(part, one.name) for one in fields(Lot)}
        return CanaryLot(**plain, canary=self.canary[rows])


@dataclass(frozen=True)
class CanaryTask:
    """A task that gives canaries' windows a loss along their own weight.

    Attributes:
        task: The task of the people.
        design: Whose weights.
        length: Norm of a canary's gradient before clipping.
        tables: By parameter, the gradient of each canary inside, flat; row 0 is everybody
            else's.
    """

    task: Task
    design: Design
    length: float
    tables: dict[str, Tensor]

    @classmethod
    def of(cls, task: Task, design: Design, model: nn.Module, length: float) -> CanaryTask:
        """Lay out the canaries' gradients like the parameters they belong to."""
        parameters = dict(model.named_parameters())
        inside = design.inside
        tables = {}
        for index, name in enumerate(design.names):
            members = np.flatnonzero(design.tensor[inside] == index)
            if len(members):
                table = torch.zeros(len(inside) + 1, parameters[name].numel())
                places = design.coordinate[inside[members]] - design.offsets[index]
                table[torch.from_numpy(members + 1), torch.from_numpy(places)] = length
                tables[name] = table
        return cls(task, design, length, tables)

    @property
    def outputs(self) -> int:
        """As the task's."""
        return self.task.outputs

    @property
    def metric(self) -> str:
        """As the task's."""
        return self.task.metric

    def loss(self, model: nn.Module, lot: Lot) -> Tensor:
        """The task's loss, plus `length · weight` in the windows of a canary."""
        losses = self.task.loss(model, lot)
        if not isinstance(lot, CanaryLot):
            return losses
        parameters = dict(model.named_parameters())
        for name, table in self.tables.items():
            marks = functional.embedding(lot.canary + 1, table.to(losses.dtype))
            shaped = marks.reshape(len(losses), *parameters[name].shape)
            losses = losses + (shaped * parameters[name]).flatten(1).sum(dim=1)
        return losses

    def evaluate(self, model: nn.Module, lot: Lot) -> Any:
        """As the task's."""
        return self.task.evaluate(model, lot)


def _shares(sizes: list[int], canaries: int) -> list[int]:
    """Equal shares per tensor, what small tensors cannot take going to the larger ones."""
    shares = [0] * len(sizes)
    left = canaries
    while left:
        free = [index for index, size in enumerate(sizes) if shares[index] < size]
        each = max(1, math.floor(left / len(free)))
        for index in free:
            more = min(each, sizes[index] - shares[index], left)
            shares[index] += more
            left -= more
    return shares
