"""How a lot is cut: a share of its people for each worker thread, and each share into chunks.

Shares and chunks are of whole people who follow each other, and of about as many windows each:
whoever has more keeps the others waiting.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

from torch import nn

from sequester.gradients.lots import LotLike
from sequester.gradients.trees import Opaque, tensors_of

# Bytes of per-person gradients that all chunks at work may hold, bytes of the widest layer's
# outputs (logits of a large vocabulary) likewise, and rows (windows × steps) of one chunk, of all
# at work, and of one where many are at work.
_GRADIENT_BYTES = 64 << 20
_OUTPUT_BYTES = 48 << 20
_ROWS, _ALL_ROWS, _FEW_ROWS = 16384, 20480, 4096

Span = tuple[int, int]
"""The first person of some, and the one after the last."""


class Room:
    """What one chunk may take, of which each worker has one at a time.

    Attributes:
        gradients: Bytes of its people's gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        lot: LotLike,
        chunk: int | None,
        threads: int,
    ) -> None:
        """Share the budgets among threads."""
        self.gradients = _GRADIENT_BYTES // threads
        self._chunk = chunk
        self._size = sum(p.numel() * p.element_size() for p in parameters.values())
        linear = (m for m in model.modules() if isinstance(m, nn.Linear))
        widest = max((m.out_features * m.weight.element_size() for m in linear), default=1)
        most = min(_ROWS, max(_FEW_ROWS, _ALL_ROWS // threads))
        rows = min(most, _OUTPUT_BYTES // threads // widest)
        self._windows = max(1, rows // steps_of(lot))

    def limits(self, spared: int) -> tuple[int, int]:
        """The most people and the most windows, if each one's gradient takes `spared` less."""
        if self._chunk is not None:
            return self._chunk, 1 << 62
        return max(1, self.gradients // max(1, self._size - spared)), self._windows


def steps_of(lot: LotLike) -> int:
    """Most rows that a window of the lot may have in a layer, whatever its tensors are called.

    Steps may be any dimension: all but the smallest of a window's are taken for steps.
    """
    try:
        held = tensors_of(lot)
    except Opaque:  # takes the loop
        return 1
    most = 1
    for tensor in held:
        if tensor.dim() > 1 and tensor.shape[0] == len(lot.owner):
            sizes = sorted(tensor.shape[1:])
            most = max(most, math.prod(sizes[1:] if len(sizes) > 1 else sizes))
    return most


def cut(
    offsets: list[int], most_people: int, most_windows: int, *, workers: int
) -> list[list[Span]]:
    """A share for each worker, in chunks; fewer where there are fewer chunks.

    Args:
        offsets: `(people + 1,)` starts of people's windows.
        most_people: Of a chunk.
        most_windows: Of a chunk of several people.
        workers: How many there are.
    """
    whole = chunks(offsets, most_people, most_windows)
    workers = min(workers, len(whole))
    if workers <= 1:
        return [whole] if whole else []
    shares, first = [], 0
    for worker in range(1, workers + 1):
        stop = _nearest(offsets, offsets[-1] * worker / workers)
        if worker == workers:
            stop = len(offsets) - 1
        shares.append(chunks(offsets[: stop + 1], most_people, most_windows, first=first))
        first = max(first, stop)
    return [share for share in shares if share]


def _nearest(offsets: list[int], wanted: float) -> int:
    """The person before whom about as many windows lie as wanted."""
    after = bisect_left(offsets, wanted)
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
