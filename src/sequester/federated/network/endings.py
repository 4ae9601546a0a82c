"""How a run ends at a node: what stays charged, and what is given back.

A run is given back only if no answer about people left the node: no round of it was opened, and
its people could be read. That it is over is on disk *before* anything is freed, and then neither a
round of it is answered nor can it enrol again; so what was given back cannot be spent once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from sequester.core.errors import UsageError
from sequester.federated.network.memory import Memory
from sequester.federated.network.permit import give_back

_LOG = logging.getLogger("sequester.node")


def end(memory: Memory, steps: int, rounds: int) -> int:
    """End a run for good.

    Args:
        memory: The run's.
        steps: Rounds agreed to.
        rounds: As the server says. It may not make the node charge less than the node answered.

    Returns:
        The rounds to be charged; those of the first time, ever after.
    """
    last = memory.answered()
    if last is not None and last.over:
        return last.ran
    ran = min(steps, max(rounds, 0 if last is None else last.round + 1))
    memory.close(steps, ran)
    return ran


def release(folder: Path, runs: Iterable[str]) -> None:
    """End runs before their first round, and give back what they hold.

    Args:
        folder: The node's.
        runs: Their names; one that is not known here cannot enrol later either.

    Raises:
        UsageError: SQ-636 for one of which a round was answered, once the others are ended: it
            stays charged.
    """
    spent = False
    for run in runs:
        memory = Memory(folder, run)
        last = memory.answered()
        if last is not None and (not last.over or last.ran):
            spent = True
        elif end(memory, 0, 0) == 0 and give_back(folder, run) not in ("", "reserved", "void"):
            _LOG.warning("run %s ended before its first round and stays charged", run)
    if spent:
        raise UsageError(636, "a round was answered here of a run to be released; it stays charged")


def check_open(folder: Path, memory: Memory, *, hold: bool) -> None:
    """Refuse to enrol in a run that is over.

    Args:
        folder: The node's.
        memory: The run's.
        hold: Whether the server means to begin. Else it may be looking for a node that trained, to
            settle.

    Raises:
        UsageError: SQ-636.
    """
    last = memory.answered()
    if last is None or not last.over:
        return
    if not last.ran:
        give_back(folder, memory.folder.name)  # a kill may have come between
    if hold or not last.ran:
        raise UsageError(636, "this run is over here; start a new one")
