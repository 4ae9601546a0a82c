"""Worker threads, each with one intra-operator thread of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def on_threads(workers: int, task: Callable[[int], T]) -> list[T]:
    """Run `task(0..workers-1)` at once; PyTorch's own number of threads stays as it was."""
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()

    def one(worker: int) -> T:
        torch.set_num_threads(1)
        torch.set_grad_enabled(grad)
        return task(worker)

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return [done.result() for done in [pool.submit(one, k) for k in range(workers)]]
    finally:
        torch.set_num_threads(threads)


def apart(task: Callable[[], T]) -> T:
    """Run something where chunks run, for what a thread let go an allocator keeps for threads."""
    return task() if torch.get_num_threads() == 1 else on_threads(1, lambda _: task())[0]
