"""How a run ends at a node: what stays charged, and what is given back.

    ended.json    names of runs that were over before this node heard of them, the latest ones

A run is given back only if no answer about people left the node: no round of it was opened, its
people could be read, and nobody was told how many train here. A process that died after the charge
and before it agreed may have died by what it read, and that is an answer too. That a run is over is
on disk *before* anything is freed, and then neither a round of it is answered nor can it enrol
again; so what was given back cannot be spent once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.network.memory import Memory
from sequester.federated.network.permit import give_back

_LOG = logging.getLogger("sequester.node")
ENDED = "ended.json"
KEPT = 256
"""Names of runs that were never heard of and are over; more need no memory, they are long past."""


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
    if last is None and memory.agreed() is not None:
        rounds = steps  # which were answered is not known any more
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
    spent, unknown = False, []
    for memory in [Memory(folder, run) for run in runs]:  # their names are looked at first
        run, last = memory.folder.name, memory.answered()
        if last is None and memory.agreed() is None:
            unknown.append(run)
        elif last is not None and (last.ran if last.over else last.round >= 0):
            spent = True
        else:
            end(memory, 0, 0)
            _LOG.warning("run %s is over before its first round: %s", run, _free(folder, memory))
    _turn_away(folder, unknown)
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
    if last is None:
        over = memory.folder.name in _turned_away(folder)
    else:
        over = last.over and (hold or not last.ran)
    if last is not None and last.over and not last.ran:
        _free(folder, memory)  # a kill may have come between
    if over:
        raise UsageError(636, "this run is over here; start a new one")


def _free(folder: Path, memory: Memory) -> str:
    """Give back what may be; in words what became of the charge."""
    status = give_back(folder, memory.folder.name, told=memory.agreed() is None)
    freed = status == "void" or (status == "reserved" and memory.agreed() is not None)
    return "given back" if freed else "stays charged" if status else "nothing was charged"


def _turned_away(folder: Path) -> list[str]:
    file = folder / ENDED
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[str]) if file.exists() else []
    except msgspec.MsgspecError:
        raise UsageError(637, f"this node's {ENDED} is damaged") from None


def _turn_away(folder: Path, runs: list[str]) -> None:
    """Remember that runs are over of which nothing is known here."""
    known = _turned_away(folder)
    if new := [run for run in dict.fromkeys(runs) if run not in known]:
        _LOG.warning("over before they came here: runs %s", ", ".join(new))
        write_atomic(folder / ENDED, msgspec.json.encode([*known, *new][-KEPT:]), private=True)
