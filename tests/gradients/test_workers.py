"""Workers who take pieces of work in turn: sums in order, whoever is slow, and no hanging."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester.gradients.workers import in_turn


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=14), st.integers(1, 4))
def test_pieces_are_added_in_order_however_long_each_takes(pauses, workers):
    sums = [[] for _ in range(workers)]

    def task(piece, turn):
        time.sleep(pauses[piece] / 1000)
        with turn:
            sums[piece % workers].append(piece)

    in_turn(workers, workers, len(pauses), task)
    assert sums == [list(range(k, len(pauses), workers)) for k in range(workers)]


def test_a_fast_worker_goes_ahead_of_a_slow_one():
    done, slow = [], threading.Event()

    def task(piece, turn):
        if piece == 0:
            slow.wait(20)  # until the other has done what goes to another sum, and more
        with turn:
            done.append(piece)
        if piece == 1:
            slow.set()

    in_turn(2, 2, 4, task)
    assert done[0] == 1
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.parametrize("failing", range(5))
def test_a_failure_ends_the_work_of_all_and_is_the_one_that_is_seen(failing):
    def task(piece, turn):
        if piece == failing:
            time.sleep(0.01)
            raise ValueError(f"piece {piece}")
        with turn:
            pass

    with pytest.raises(ValueError, match=f"piece {failing}"):
        in_turn(3, 3, 5, task)


def test_workers_have_one_thread_of_pytorch_each():
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(3)
    try:

        def task(piece, turn):
            with turn:
                seen.add(torch.get_num_threads())

        in_turn(2, 2, 4, task)
        assert seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
