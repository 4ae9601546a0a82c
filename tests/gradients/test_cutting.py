"""How a lot is cut: everybody once, in order, within the limits, and evenly."""

from __future__ import annotations

from itertools import accumulate

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


@given(COUNTS, st.integers(1, 20), st.integers(1, 90), st.integers(1, 4))
def test_everybody_is_in_one_chunk_of_one_share(counts, most_people, most_windows, workers):
    offsets = [0, *accumulate(counts)]
    shares = cut(offsets, most_people, most_windows, workers=workers)
    assert len(shares) <= workers
    assert all(shares)
    taken = [person for share in shares for first, stop in share for person in range(first, stop)]
    assert taken == sorted(set(taken))
    assert {p for p, count in enumerate(counts) if count} <= set(taken)
    for first, stop in (span for share in shares for span in share):
        assert stop - first <= most_people
        assert 0 < offsets[stop] - offsets[first]
        assert offsets[stop] - offsets[first] <= most_windows or stop - first == 1


@given(COUNTS, st.integers(1, 20), st.integers(1, 90))
def test_chunks_are_as_few_as_can_be_and_none_could_be_smaller(counts, most_people, most_windows):
    offsets = [0, *accumulate(counts)]
    spans = chunks(offsets, most_people, most_windows)
    assert len(spans) == greedy(counts, most_people, most_windows)
    largest = max((offsets[stop] - offsets[first] for first, stop in spans), default=0)
    if largest > max(counts, default=0):
        assert greedy(counts, most_people, largest - 1) > len(spans)


@given(COUNTS, st.integers(1, 20), st.integers(1, 90), st.integers(2, 4))
def test_no_worker_has_far_more_than_others(counts, most_people, most_windows, workers):
    offsets = [0, *accumulate(counts)]
    shares = cut(offsets, most_people, most_windows, workers=workers)
    if len(shares) == workers:
        each = [offsets[share[-1][1]] - offsets[share[0][0]] for share in shares]
        assert max(each) - min(each) <= 2 * max(counts)
