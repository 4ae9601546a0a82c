"""Whether a node's ledger and memory still hold what a run was charged, and answered, here.

Both are files, and one of them may be lost or be an older copy. Then nothing is answered: a round
would be free, or meet a second draw.
"""

from __future__ import annotations

from pathlib import Path

from sequester.core.errors import UsageError
from sequester.federated.network.memory import Memory
from sequester.federated.network.permit import begin, status_of
from sequester.federated.network.questions import Terms
from sequester.federated.network.refusals import unknown


def check_held(folder: Path, memory: Memory, terms: Terms) -> str:
    """Refuse a run whose charge, or the round that it is at, is not known any more.

    Args:
        folder: The node's.
        memory: The run's.
        terms: What it agreed to.

    Returns:
        The reservation's status; empty where nothing was charged, or the run is over.

    Raises:
        UsageError: SQ-640.
    """
    last = memory.answered()
    if last is None:
        raise unknown()
    if terms.plan is None or last.over:
        return ""
    status = status_of(folder, memory.folder.name)
    # That a round is answered is on the ledger first.
    if status not in ("begun", "expired") and (status != "reserved" or last.round >= 0):
        raise UsageError(
            640,
            "this node's ledger does not hold the charge that this run began with: the ledger was "
            "lost, or an older copy was put back; start a new run",
        )
    return status


def spend(folder: Path, memory: Memory, terms: Terms) -> None:
    """Before a round is answered: what was held for the run is spent from the first one on.

    Raises:
        UsageError: SQ-640.
    """
    if check_held(folder, memory, terms) == "reserved":
        begin(folder, memory.folder.name)
