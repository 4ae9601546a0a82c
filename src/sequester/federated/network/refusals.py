"""What a server hears of a node's refusals: their numbers, and no word that tells of the people."""

from __future__ import annotations

from sequester.core.errors import SequesterError, UsageError

_TELLABLE = frozenset((*range(300, 350), *range(600, 700), 901))
"""Refusals that no record decides. The number of any other one would answer a question about the
data that nothing charges; only the holder hears it."""
_BUDGET = frozenset(range(300, 340))
"""Refusals of the ledger; what is left of the budget, and where it lies, is the holder's."""


def told(error: SequesterError) -> UsageError:
    """What the server hears of a refusal."""
    if error.code in _BUDGET:
        return UsageError(
            error.code, "this node's own ledger does not take the run; the node's log says why"
        )
    return UsageError(error.code, error.message) if error.code in _TELLABLE else failed()


def failed() -> UsageError:
    """Of anything else that the server has not to know."""
    return UsageError(639, "this node failed; its own log says why")


def unknown() -> UsageError:
    """Of a run that the node does not remember."""
    return UsageError(640, "this run never enrolled here, or the node lost its folder")
