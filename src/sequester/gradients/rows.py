"""Whose numbers are in a tensor: the axis that runs over windows, followed through every view.

The tape gives each tensor that depends on people's data a `Rows`. If a tensor has none, it
depends on public things only; if its windows were mixed, it is `MIXED` and the fast engine
steps back. Nothing is guessed from shapes: an operation without a rule mixes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sequester.gradients.layout import turned

_SMALL = 1 << 14  # numbers per person below which one batched product beats a loop
_TALL = 16  # and rows per person above which it always does


class Owners:
    """The person of each entry along a window axis.

    Args:
        person: `(entries,)` int64 in `0..people-1`, in any order.
        people: Number of people, those without an entry included.
    """

    def __init__(self, person: Tensor, people: int) -> None:
        """Keep both; everything else is computed when asked for."""
        self.person = person
        self.people = people

    def __len__(self) -> int:
        """Entries along the axis."""
        return len(self.person)

    @cached_property
    def order(self) -> Tensor | None:
        """The permutation which sorts entries by person; None if they are sorted."""
        if bool((self.person[1:] >= self.person[:-1]).all()):
            return None
        return torch.argsort(self.person, stable=True)

    @cached_property
    def offsets(self) -> list[int]:
        """Where each person starts among the sorted entries, `people + 1` positions."""
        counts = torch.bincount(self.person, minlength=self.people)
        return [0, *torch.cumsum(counts, 0).tolist()]

    @cached_property
    def equal(self) -> int:
        """Entries of each person if all own the same positive number, else 0."""
        share, rest = divmod(len(self), max(self.people, 1))
        even = rest == 0 and share > 0
        if even and self.offsets == list(range(0, len(self) + 1, share)):
            return share
        return 0

    def permuted(self, index: Tensor) -> Owners:
        """Owners of the entries at `index`."""
        return Owners(self.person[index.to(self.person.device)], self.people)

    def same(self, other: Owners) -> bool:
        """Whether both name the same person at every entry."""
        return self is other or (len(self) == len(other) and torch.equal(self.person, other.person))


@dataclass(frozen=True)
class Rows:
    """A tensor's window axis.

    Attributes:
        axis: Counted from 0. Its entries run over `(outer, windows, inner)`, so an axis may
            merge windows with steps on either side.
        owners: The person of each window.
        outer: Repetitions around the windows.
        inner: Repetitions inside each window.
    """

    axis: int
    owners: Owners
    outer: int = 1
    inner: int = 1

    @property
    def plain(self) -> bool:
        """Whether the axis is exactly the windows."""
        return self.outer == 1 and self.inner == 1

    @property
    def size(self) -> int:
        """Length of the axis."""
        return self.outer * len(self.owners) * self.inner

    @property
    def entries(self) -> Owners:
        """The person of each entry along the axis."""
        if self.plain:
            return self.owners
        person = self.owners.person.repeat_interleave(self.inner).repeat(self.outer)
        return Owners(person, self.owners.people)

    def matches(self, other: Rows) -> bool:
        """Whether two axes run over the same windows in the same way."""
        return (
            self.outer == other.outer
            and self.inner == other.inner
            and self.owners.same(other.owners)
        )

    def moved(self, axis: int) -> Rows:
        """The same windows on another axis."""
        return replace(self, axis=axis)


class _Mixed:
    """Several people's numbers met in this tensor."""

    def __repr__(self) -> str:
        return "MIXED"


@dataclass(frozen=True)
class Permutation:
    """An index that sorts windows, as `pack_padded_sequence` makes: order, not content."""


@dataclass(frozen=True)
class Sizes:
    """Lengths and batch sizes of a packed sequence: shape, not content."""


MIXED = _Mixed()
State = Rows | _Mixed | Permutation | Sizes


def reshaped(old: Sequence[int], rows: Rows, new: Sequence[int]) -> Rows | None:
    """The window axis after `reshape(old → new)`, or None if no single axis holds it."""
    before = math.prod(old[: rows.axis]) * rows.outer
    after = math.prod(old[rows.axis + 1 :]) * rows.inner
    windows = len(rows.owners)
    found: list[tuple[tuple[int, int], Rows]] = []
    for axis, size in enumerate(new):
        lead, trail = math.prod(new[:axis]), math.prod(new[axis + 1 :])
        if not lead or not trail or before % lead or after % trail:
            continue
        candidate = Rows(axis, rows.owners, before // lead, after // trail)
        if candidate.size == size:
            merged = candidate.outer * candidate.inner
            found.append(((merged, abs(axis - rows.axis)), candidate))
    if windows == 0 or not found:
        return None
    return min(found, key=lambda pair: pair[0])[1]


def windows_first(tensor: Tensor, rows: Rows, keep: int) -> Tensor:
    """Bring windows to the front, sorted by person.

    Args:
        tensor: Any tensor with window axis `rows`.
        rows: Its window axis, among the dimensions before the last `keep`.
        keep: Trailing dimensions to leave alone.

    Returns:
        `(windows, m, *last keep dimensions)`; a view where the memory allows.
    """
    shape = tensor.shape
    tail = shape[tensor.dim() - keep :]
    lead = math.prod(shape[: rows.axis])
    middle = math.prod(shape[rows.axis + 1 : tensor.dim() - keep])
    windows = len(rows.owners)
    if lead == 1 and rows.outer == 1:
        out = tensor.reshape(windows, rows.inner * middle, *tail)
    else:
        split = tensor.reshape(lead * rows.outer, windows, rows.inner * middle, *tail)
        out = split.transpose(0, 1).reshape(windows, lead * rows.outer * rows.inner * middle, *tail)
    order = rows.owners.order
    return out if order is None else out[order]


def products(left: Tensor, right: Tensor, owners: Owners, out: Tensor) -> None:
    """Each person's `Dᵀ A` over all of that person's rows.

    Args:
        left: D, `(windows, m, p)`, sorted by person.
        right: A, `(windows, m, d)`.
        owners: The person of each window.
        out: Receives `(people, p, d)`; best laid out as `layout` says.
    """
    if turned(out.shape[1:]):  # few rows and many columns
        left, right, out = right, left, out.transpose(1, 2)
    m, p, d = left.shape[1], left.shape[2], right.shape[2]
    share = owners.equal
    flat_left, flat_right = left.reshape(-1, p), right.reshape(-1, d)
    if share and owners.people > 1 and (share * m * (p + d) < _SMALL or share * m >= _TALL):
        three = flat_left.view(-1, share * m, p), flat_right.view(-1, share * m, d)
        torch.bmm(three[0].transpose(1, 2), three[1], out=out)
        return
    offsets = owners.offsets
    for person in range(owners.people):
        start, stop = offsets[person] * m, offsets[person + 1] * m
        if start == stop:
            out[person].zero_()
        else:
            torch.mm(flat_left[start:stop].t(), flat_right[start:stop], out=out[person])


def sums(values: Tensor, owners: Owners) -> Tensor:
    """Each person's sum over windows, `(windows, *shape)` sorted by person → `(people, *shape)`."""
    share = owners.equal
    if share:
        return values.reshape(owners.people, share, *values.shape[1:]).sum(1)
    order = owners.order
    person = owners.person if order is None else owners.person[order]
    out = values.new_zeros(owners.people, *values.shape[1:])
    return out.index_add_(0, person, values)
