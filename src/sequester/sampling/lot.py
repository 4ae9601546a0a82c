"""A lot: the people one step sees, with all their windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sequester.core.errors import UsageError


@dataclass(frozen=True)
class Lot:
    """Windows of people, sorted by owner; the whole training set is a lot of everybody.

    A person without any window, and a lot without any person, are normal: Poisson sampling
    draws them, and the step they give is pure noise.

    Attributes:
        x: Numeric features, float `(windows, steps, features)`; 0 where nothing was measured.
        mask: True where a step exists, `(windows, steps)`.
        target: What the task predicts; first axis `windows`.
        owner: The person of each window, int64 `(windows,)`, ascending in `0..people-1`.
        people: How many people the lot holds, including those without a window.
        categorical: Codes of categorical features, int64 `(windows, steps, columns)`, or None.
    """

    x: Tensor
    mask: Tensor
    target: Tensor
    owner: Tensor
    people: int
    categorical: Tensor | None = None

    def __post_init__(self) -> None:
        """Check what everything else relies on: shapes agree and owners ascend.

        Raises:
            UsageError: SQ-230 naming the field that does not fit.
        """
        windows = self.owner.shape[0]
        for name in ("x", "mask", "target", "categorical"):
            value = getattr(self, name)
            if value is not None and value.shape[0] != windows:
                raise UsageError(
                    230, f"lot.{name} has {value.shape[0]} windows, but owner names {windows}"
                )
        owner = self._owner  # looked at by every step, and NumPy is the faster at little
        if windows and (owner[0] < 0 or owner[-1] >= self.people or (owner[1:] < owner[:-1]).any()):
            raise UsageError(
                230, f"lot.owner must ascend within 0..{self.people - 1}; sort windows by person"
            )

    @property
    def _owner(self) -> np.ndarray:
        return self.owner.detach().cpu().numpy()

    @cached_property
    def offsets(self) -> Tensor:
        """Where each person's windows begin, int64 `(people + 1,)`."""
        edges = torch.arange(self.people + 1, dtype=torch.int64)
        return torch.searchsorted(self.owner.cpu().contiguous(), edges)

    def select(self, start: int, stop: int) -> Lot:
        """People `start..stop-1` as a lot of their own (a view, nothing is copied)."""
        first, last = np.searchsorted(self._owner, (start, stop)).tolist()
        rows = slice(first, last)
        return self._rows(rows, self.owner[rows] - start, stop - start)

    def pick(self, positions: np.ndarray) -> Lot:
        """The people at `positions` (ascending, each once), renumbered from 0; copied.

        Also where that is everybody: what a user's loss writes must not stay in the data.

        Args:
            positions: int64 `(people_in_lot,)`; may be empty.
        """
        positions = np.asarray(positions, dtype=np.int64)
        offsets = self.offsets.cpu().numpy()
        first = offsets[positions]
        counts = offsets[positions + 1] - first
        owner = np.repeat(np.arange(len(positions)), counts)
        rows = np.arange(len(owner)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        return self._rows(torch.from_numpy(rows), torch.from_numpy(owner), len(positions))

    def each_window_its_own(self) -> Lot:
        """The same windows with each one its own owner: the unit `window`."""
        windows = self.owner.shape[0]
        return replace(self, owner=torch.arange(windows), people=windows)

    def _rows(self, rows: slice | Tensor, owner: Tensor, people: int) -> Lot:
        def of(values: Tensor) -> Tensor:
            if isinstance(rows, slice):
                return values[rows]
            there = rows.to(values.device)
            if (
                values.is_floating_point()
            ):  # several times as fast as an index; not for all integers
                return values.index_select(0, there)
            return values[there]

        return Lot(
            x=of(self.x),
            mask=of(self.mask),
            target=of(self.target),
            owner=owner,
            people=people,
            categorical=None if self.categorical is None else of(self.categorical),
        )
