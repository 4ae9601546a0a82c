"""Worker threads, each with one intra-operator thread of PyTorch's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
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


def in_turn(
    workers: int, sums: int, pieces: int, task: Callable[[int, AbstractContextManager[None]], None]
) -> None:
    """Run `task(piece, turn)` for 0..pieces-1, begun in order by whichever worker is free.

    A task enters `turn` once, last, to add what it found to sum `piece % sums`: there it waits for
    all earlier pieces of that sum. So sums do not depend on who did what, nor on how long it took;
    and with as many sums as workers a fast one may be ahead of a slow one.
    """
    turns = _Turns(sums, pieces)

    def work(_: int) -> None:
        while (piece := turns.begin()) is not None:
            try:
                task(piece, turns.of(piece))
            except _GivenUpError:
                return
            except BaseException:
                turns.give_up()
                raise

    on_threads(workers, work)


class _GivenUpError(Exception):
    """Another worker failed."""


class _Turns:
    """Which pieces were begun, and which of them were added."""

    def __init__(self, sums: int, pieces: int) -> None:
        """None of so many, which go to so many sums in turn."""
        self._changed = threading.Condition()
        self._next = list(range(sums))
        self._pieces, self._begun, self._failed = pieces, 0, False

    def begin(self) -> int | None:
        """The next piece's number; None if there is nothing more to do."""
        with self._changed:
            if self._failed or self._begun == self._pieces:
                return None
            self._begun += 1
            return self._begun - 1

    @contextmanager
    def of(self, piece: int) -> Iterator[None]:
        """This piece's turn, once all before it in its sum had theirs."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or piece in self._next)
            if self._failed:
                raise _GivenUpError
        yield
        with self._changed:
            self._next[piece % len(self._next)] += len(self._next)
            self._changed.notify_all()

    def give_up(self) -> None:
        """Let nobody wait for what will not come."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()
