"""How a lot is cut: everybody once, in order, within the limits, and evenly."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequester.gradients.cutting import chunks, cut

COUNTS = st.lists(st.integers(0, 40) | st.just(0), max_size=60)


def greedy(counts, most_people, most_windows):
    """Chunks that take whoever still fits; people without windows are free."""
    spans, people, windows = 0, 0, 0
    for count in counts:
        if people and (people == most_people or windows + count > most_windows):
            spans, people, windows = spans + (windows > 0), 0, 0
        people, windows = people + 1, windows + count
    return spans + (windows > 0)


ROOMS = st.builds(
    SimpleNamespace, people=st.integers(1, 20), windows=st.integers(1, 90), least=st.integers(1, 20)
)


@given(COUNTS, ROOMS, st.integers(1, 4))
def test_everybody_is_in_one_chunk(counts, room, workers):
    offsets = [0, *accumulate(counts)]
    spans = cut(offsets, room, workers=workers)
    taken = [person for first, stop in spans for person in range(first, stop)]
    assert taken == sorted(set(taken))
    assert {p for p, count in enumerate(counts) if count} <= set(taken)
    for first, stop in spans:
        assert stop - first <= room.people
        assert 0 < offsets[stop] - offsets[first]
        assert offsets[stop] - offsets[first] <= room.windows or stop - first == 1


@given(COUNTS, st.integers(1, 20), st.integers(1, 90))
def test_chunks_are_as_few_as_can_be_and_none_could_be_smaller(counts, most_people, most_windows):
    offsets = [0, *accumulate(counts)]
    spans = chunks(offsets, most_people, most_windows)
    assert len(spans) == greedy(counts, most_people, most_windows)
    largest = max((offsets[stop] - offsets[first] for first, stop in spans), default=0)
    if largest > max(counts, default=0):
        assert greedy(counts, most_people, largest - 1) > len(spans)


@pytest.mark.parametrize(
    ("most", "workers", "least", "sizes"),
    [
        (64, 1, 1, [64]),
        (10, 1, 1, [10] * 6 + [4]),
        (10, 2, 1, [8] * 6 + [4] * 4),
        (16, 2, 1, [16, 16, 8, 8, 8, 8]),
        (40, 2, 1, [16] * 4),
        (40, 2, 17, [32, 32]),  # halves would not be worth it
        (64, 2, 1, [16] * 4),
        (4, 2, 1, [4] * 16),  # as many as make it small beside the whole
        (10, 3, 1, [7, 7, 7, 7, 8, 7, 3, 4, 3, 4, 3, 4]),
    ],
)
def test_the_last_chunks_are_half_as_large_where_there_are_few(most, workers, least, sizes):
    room = SimpleNamespace(people=1 << 20, windows=5 * most, least=5 * least)
    offsets = [5 * k for k in range(65)]
    found = [stop - first for first, stop in cut(offsets, room, workers=workers)]
    assert found == sizes


def finished(sizes, speeds):
    free = [0.0] * len(speeds)
    for size in sizes:
        worker = free.index(min(free))
        free[worker] += size / speeds[worker]
    return max(free)


@pytest.mark.parametrize("speeds", [(1, 1), (1.3, 1), (1, 1.6), (1, 1, 2), (2, 1, 1, 1)])
@pytest.mark.parametrize("most", [9, 17, 40])
def test_no_worker_keeps_the_others_waiting_long(speeds, most):
    offsets = [16 * k for k in range(65)]
    room = SimpleNamespace(people=1 << 20, windows=16 * most, least=1)
    sizes = [stop - first for first, stop in cut(offsets, room, workers=len(speeds))]
    assert finished(sizes, speeds) <= 64 / sum(speeds) + max(sizes[-2 * len(speeds) :])
