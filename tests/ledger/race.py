"""Sixteen writers who want more than there is, starting at the same instant."""

import multiprocessing
import os
from collections.abc import Callable

from sequester.accounting import Gaussian
from sequester.core.errors import LedgerRefusal
from sequester.ledger import Ledger, rows
from sequester.ledger.budgets import Tree
from tests.ledger.plans import Once

PLAN = Once(Gaussian(20.0))
CEILING = 2.0


def fits() -> int:
    """How many such charges the ceiling holds, counted without any ledger."""
    from sequester.ledger.charges import allowance, charge_of

    allowed, one = allowance(CEILING, 1e-6), charge_of(PLAN.event(), PLAN.adjacency)
    return max(a // c for a, c in zip(allowed.rdp, one.rdp, strict=True) if a >= 0)


def race(url: str, *, writers: int, decide_early: bool = False) -> int:
    """Run it on a ledger with the budget "town"; returns how many charges were admitted.

    `decide_early` plants the fault: the ceiling is checked before the lock is taken.
    """
    barrier = multiprocessing.get_context("fork").Barrier(writers)
    children = []
    for number in range(writers):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _want(url, number, barrier.wait, decide_early)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"writers failed: {codes}")
    with Ledger.open(url) as ledger:
        return sum(row.kind == rows.RESERVE for row in ledger.rows())


def _want(url: str, number: int, start: Callable[[], object], decide_early: bool) -> None:
    ledger = Ledger.open(url, timeout_s=120.0)
    if decide_early:
        _decide_before_the_lock(ledger)
    start()
    for turn in range(10_000):
        try:
            ledger.reserve(PLAN, budget="town", key=f"{number}-{turn}")
        except LedgerRefusal as refusal:
            if refusal.code != 312:
                raise
            return


def _decide_before_the_lock(ledger: Ledger) -> None:
    writing, admit = ledger._desk.writing, Tree.admit
    early: list[Tree] = []

    def late_writing():
        with ledger._desk.reading() as book:
            early[:] = [book.tree]
        return writing()

    ledger._desk.writing = late_writing
    Tree.admit = lambda self, *arguments: admit(early[0], *arguments)
