"""What any way of summing in secret looks like to whoever trains.

`PairwiseMasks` is the protocol of this room. A one-shot committee scheme or two servers that
hold additive shares can take its place: they need the same plan and give the same report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.secagg.plan import RoundPlan
from sequester.secagg.simulator import RoundContext, RoundReport, simulate_updates


class Aggregator(Protocol):
    """Sums updates so that nobody sees one of them."""

    def sum(
        self,
        updates: Mapping[int, NDArray[np.floating[Any]]],
        context: RoundContext,
        *,
        drops: Mapping[int, str] | None = None,
        weights: Mapping[int, int] | None = None,
    ) -> RoundReport:
        """The sum over those who stayed, and what it cost."""
        ...

    def explain(self) -> str:
        """What the server sees and what it does not, in words."""
        ...


@dataclass(frozen=True)
class PairwiseMasks:
    """Double masking on a full or sparse graph (Bonawitz et al. 2017, Bell et al. 2020)."""

    plan: RoundPlan

    def sum(
        self,
        updates: Mapping[int, NDArray[np.floating[Any]]],
        context: RoundContext,
        *,
        drops: Mapping[int, str] | None = None,
        weights: Mapping[int, int] | None = None,
    ) -> RoundReport:
        """One simulated round of the real protocol."""
        return simulate_updates(updates, self.plan, context=context, drops=drops, weights=weights)

    def explain(self) -> str:
        """What the server sees and what it does not, in words."""
        plan, encoding = self.plan, self.plan.encoding
        corrupt, drops = plan.threats.counts(plan.members)
        server = "may lie" if plan.threats.active else "is assumed to follow the protocol"
        text = (
            f"The server, which {server}, sees who took part, who dropped out and the sum of at "
            f"least {plan.min_survivors} updates. It sees no single update, even with {corrupt} of "
            f"{plan.members} members helping it, and the round survives {drops} dropouts. "
        )
        if plan.degree and plan.threats.active:
            text += (
                f"Each member checks its {plan.degree} neighbours on a ring, not everybody: a "
                f"server that parts the ring sees sums over {plan.threshold} updates or more, and "
                "with less noise than is accounted for. "
            )
        if encoding.is_noisy:
            return text + (
                f"Members add {encoding.noise} noise before masking, so the sum is differentially "
                "private before anybody sees it."
            )
        return text + (
            "The sum carries no noise: it can still reveal a member through many rounds, through "
            "members that join or leave, and through coordinates only one member touches. Add a "
            "noise_multiplier to bound what it reveals."
        )


def hides_little(plan: RoundPlan, *, sparse_rows: bool) -> str | None:
    """Why secure aggregation alone would not protect, or None when it carries noise.

    Args:
        plan: The round's plan.
        sparse_rows: Whether the model has rows that only the members who hold a certain
            value change, like embeddings of places or diagnoses.
    """
    if plan.encoding.is_noisy:
        return None
    if sparse_rows:
        return (
            "embedding rows change only for members who hold that place or code: the sum alone "
            "names them. Add noise, freeze the embeddings or hash them"
        )
    return (
        "the sum alone reveals members over many rounds (differencing, membership inference); "
        "add noise to bound it"
    )
