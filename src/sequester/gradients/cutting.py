"""How a lot is cut into chunks, in the order in which worker threads take them.

Chunks are of whole people who follow each other, and of about as many windows each. The last ones
are smaller: cores are not equally fast, and who is done early should not wait long for the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import torch
from torch import nn

from sequester.gradients import ghost
from sequester.gradients.lots import LotLike
from sequester.gradients.trees import Opaque, tensors_of

# Bytes of per-person gradients that all chunks at work may hold, bytes of the widest layer's
# outputs (logits of a large vocabulary) likewise, and rows (windows × steps) of one chunk, of all
# at work, and of one where many are at work.
_GRADIENT_BYTES = 64 << 20
_OUTPUT_BYTES = 48 << 20
_ROWS, _ALL_ROWS, _FEW_ROWS = 16384, 32768, 4096
_MANY_ROWS = 131072  # of one chunk of a small recurrence
_LEAST = 4096  # rows for which another thread is worth its passes
_ENOUGH = 8  # chunks for each worker from which on the last ones are small beside the whole

Span = tuple[int, int]
"""The first person of some, and the one after the last."""


class Room:
    """What one chunk may take, of which each worker has one at a time.

    Attributes:
        gradients: Bytes of its people's gradients.
        people: Most people in it.
        windows: Most windows of several people.
        least: Fewest windows of the smaller chunks at the end.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        lot: LotLike,
        offsets: list[int],
        threads: int,
    ) -> None:
        """Share the budgets among threads."""
        steps, numbers = rows_of(lot)
        rows = _rows(model, steps, numbers)
        linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
        widest = max((len(weight) * weight.element_size() for weight in linear), default=1)
        most = min(rows, max(_FEW_ROWS, rows * _ALL_ROWS // _ROWS // threads))
        most = min(most, max(_LEAST, -(-offsets[-1] * steps // threads)))  # something for each
        rows = min(most, _OUTPUT_BYTES // threads // widest)
        # Where people have few rows in a huge layer, its gradients are never formed.
        owned = torch.tensor(offsets).diff() * steps
        formed = {id(p): p for p in parameters.values()}
        for weight in linear:
            if ghost.possible(weight) and ghost.pays(weight, owned):
                formed.pop(id(weight), None)
        size = sum(p.numel() * p.element_size() for p in formed.values())
        self.gradients = _GRADIENT_BYTES // threads
        self.people = max(1, self.gradients // max(1, size))
        self.windows = max(1, rows // steps)
        self.least = max(1, _LEAST // 2 // steps)


def _rows(model: nn.Module, steps: int, numbers: int) -> int:
    """Rows of one chunk: more where a recurrence is small, and its steps cost more than their rows.

    Args:
        model: The user's module.
        steps: Rows of a window.
        numbers: Of the lot, in each row.
    """
    if steps == 1 or not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return _ROWS
    modules = list(model.modules())
    heads = [module.num_heads for module in modules if isinstance(module, nn.MultiheadAttention)]
    size = 4 * (numbers + max(1, sum(heads)) * steps)  # attention may be a function's as well
    for module in modules:
        for weight in module.parameters(recurse=False):
            if weight.dim() > 1:
                size += weight.element_size() * weight.shape[isinstance(module, nn.Embedding)]
    return int(max(_ROWS, min(_MANY_ROWS, _OUTPUT_BYTES // size)))


def rows_of(lot: LotLike) -> tuple[int, int]:
    """Most rows that a window of the lot may have in a layer, and how many numbers a row has.

    Steps may be any dimension, whatever tensors are called: all but the smallest of a window's are
    taken for steps.
    """
    try:
        held = tensors_of(lot)
    except Opaque:  # takes the loop
        return 1, 1
    most, numbers = 1, 0
    for tensor in held:
        if tensor.dim() > 1 and tensor.shape[0] == len(lot.owner):
            sizes = sorted(tensor.shape[1:])
            most = max(most, math.prod(sizes[1:] if len(sizes) > 1 else sizes))
            numbers += math.prod(sizes)
    return most, -(-numbers // most)


def cut(offsets: list[int], room: Room, *, workers: int) -> list[Span]:
    """Everybody with windows, in chunks for `workers` who take one after another.

    Args:
        offsets: `(people + 1,)` starts of people's windows.
        room: What a chunk may take.
        workers: How many there are.
    """
    whole = chunks(offsets, room.people, room.windows)
    rounds = -(-len(whole) // workers)
    each = offsets[-1] / max(1, rounds * workers)
    if workers == 1 or rounds >= _ENOUGH or each < 2 * room.least:
        return whole
    spans: list[Span] = []
    first, taken = 0, 0.0
    for share in [each] * (rounds - 1) * workers + [each / 2] * 2 * workers:
        taken += share
        stop = _nearest(offsets, taken)
        spans += chunks(offsets[: stop + 1], room.people, room.windows, first=first)
        first = stop
    return spans


def _nearest(offsets: list[int], wanted: float) -> int:
    """The person before whom about as many windows lie as wanted."""
    after = min(bisect_left(offsets, wanted - 1e-6), len(offsets) - 1)
    before = max(0, after - 1)
    return before if wanted - offsets[before] < offsets[after] - wanted else after


def chunks(
    offsets: list[int], most_people: int, most_windows: int, *, first: int = 0
) -> list[Span]:
    """Cut people from `first` on into as few chunks as can be, and the largest as small as can be.

    People without windows are free.
    """
    spans = _chunks(offsets, most_people, most_windows, first)
    low, high = 1, min(most_windows, offsets[-1] - offsets[first])
    while len(spans) > 1 and low < high:
        middle = (low + high) // 2
        tried = _chunks(offsets, most_people, middle, first)
        if len(tried) > len(spans):
            low = middle + 1
        else:
            high, spans = middle, tried
    return spans


def _chunks(offsets: list[int], most_people: int, most_windows: int, first: int) -> list[Span]:
    spans: list[Span] = []
    people = len(offsets) - 1
    while first < people:
        stop = bisect_right(offsets, offsets[first] + most_windows) - 1
        stop = max(first + 1, min(stop, first + most_people, people))
        if offsets[stop] > offsets[first]:
            spans.append((first, stop))
        first = stop
    return spans
