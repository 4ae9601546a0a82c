"""What layers draw: from the run's secret alone, and nothing of the user's generators is used."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from sequester.core.rng import key_from_test_seed
from sequester.training.chance import Chance


def drawn(chance, step, place=0):
    with chance.at(step, place):
        return torch.rand(50).tolist() + np.random.rand(5).tolist() + [random.random()]


def test_numbers_follow_from_key_run_step_and_place_alone():
    key, other = key_from_test_seed(1), key_from_test_seed(2)
    first = drawn(Chance.of(key, "run"), 3, 4)
    torch.manual_seed(9)
    np.random.seed(9)
    random.seed(9)
    assert drawn(Chance.of(key, "run"), 3, 4) == first
    others = [
        drawn(Chance.of(other, "run"), 3, 4),
        drawn(Chance.of(key, "other"), 3, 4),
        drawn(Chance.of(key, "run"), 4, 4),
        drawn(Chance.of(key, "run"), 3, 5),
        drawn(Chance.of(key, "run"), 4, 3),
    ]
    for numbers in others:
        assert not set(numbers) & set(first)


def test_the_users_generators_are_as_they_were():
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    torch.randn(3)  # half a pair of normals is left over
    expected = torch.randn(4), np.random.rand(), random.random()
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    torch.randn(3)
    drawn(Chance.public(), 0)
    found = torch.randn(4), np.random.rand(), random.random()
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_all_bits_of_the_state_are_set():
    chance = Chance.of(key_from_test_seed(1), "run")
    words = np.frombuffer(chance.source.bytes(5, 4 * 624), dtype="<u4")
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": words.astype(np.uint32), "pos": 624},
    }
    with chance.at(5):
        ours = torch.rand(2000, dtype=torch.float32).numpy()
    low = twister.random_raw(2000) & ((1 << 24) - 1)
    np.testing.assert_array_equal(ours, (low / float(1 << 24)).astype(np.float32))


def test_runs_on_several_threads_draw_what_each_draws_alone():
    chances = [Chance.of(key_from_test_seed(k), "run") for k in range(3)]
    alone = [[drawn(chance, step) for step in range(20)] for chance in chances]
    ready = threading.Barrier(len(chances))

    def run(chance):
        ready.wait()
        numbers = []
        for step in range(20):
            with chance.at(step):  # in three parts, so that others get their chance between
                numbers.append(torch.rand(50).tolist())
                time.sleep(1e-4)
                numbers[-1] += np.random.rand(5).tolist()
                time.sleep(1e-4)
                numbers[-1].append(random.random())
        return numbers

    with ThreadPoolExecutor(len(chances)) as pool:
        assert list(pool.map(run, chances)) == alone
