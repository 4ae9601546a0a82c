"""Threads that a forward pass starts, which no mode of PyTorch follows."""

import threading

import pytest
import torch
import torch.nn.functional as F

from sequester.gradients import clipped_sum, oracle
from tests.gradients.hostile import THREADS, Body, by_thread, pooled
from tests.gradients.lots import ragged, relative_error


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", THREADS)
def test_threads_are_not_followed(name, workers, caplog):
    torch.manual_seed(1)
    before = torch.get_num_threads()
    torch.set_num_threads(workers)
    try:
        model, lot = Body(THREADS[name]), ragged([3, 1, 2], steps=4)
        got = clipped_sum(model, classify, lot, 0.3)
    finally:
        torch.set_num_threads(before)
    assert relative_error(got, oracle.clipped_sum(model, classify, lot, 0.3)) < 1e-5
    assert "starts a thread" in caplog.text


def test_threads_of_others_are_nobodys(caplog):
    """Neither the engine's own workers, nor what another thread of the program does meanwhile."""
    stop = threading.Event()

    def busy():
        while not stop.wait(0.001):
            by_thread(lambda: None)

    other = threading.Thread(target=busy)
    other.start()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model, lot = Body(lambda m, x: pooled(m, m.lift(x))), ragged([1] * 8, steps=4)
        for _ in range(3):
            clipped_sum(model, classify, lot, 0.3, chunk=1)
    finally:
        torch.set_num_threads(before)
        stop.set()
        other.join()
    assert not caplog.records
