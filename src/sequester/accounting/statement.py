"""What a run amounts to, in the numbers a person can use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from sequester.accounting import checks, gaussian, pld
from sequester.accounting.accountant import only_gaussian, renyi_epsilon
from sequester.accounting.curve import Tradeoff, of_parts
from sequester.accounting.events import Event
from sequester.accounting.lower import Parts, lower
from sequester.core.values import check_delta

VERSION = "1"


@dataclass(frozen=True)
class Statement:
    """ε at δ and the attacker's odds behind it; all upper bounds except `estimate`.

    Attributes:
        epsilon: Certified upper bound on ε.
        delta: The δ it holds at.
        estimate: Extrapolated ε, for comparison only; never above `epsilon`.
        epsilon_rdp: The Rényi upper bound.
        accountant: Which bound won: "gaussian" (exact), "pld" or "rdp".
        adjacency: What makes two data sets neighbours.
        mu: Gaussian-DP parameter whose curve covers this one down to `delta`.
        curve: The trade-off curve.
    """

    epsilon: float
    delta: float
    estimate: float
    epsilon_rdp: float
    accountant: str
    adjacency: str
    mu: float
    curve: Tradeoff = field(repr=False)

    @property
    def advantage(self) -> float:
        """Largest TPR − FPR of any membership attack."""
        return self.curve.advantage

    def tpr_at_fpr(self, fpr: float) -> float:
        """Most of the members an attack can find while wrongly naming `fpr` of the others."""
        return self.curve.tpr(fpr)

    def posterior(self, prior: float) -> float:
        """Strongest belief in membership from `prior`, except with probability δ.

        Raises:
            UsageError: SQ-207 unless 0 ≤ prior ≤ 1.
        """
        before = checks.rate(prior, "prior")
        if before in (0.0, 1.0):
            return before
        odds = math.log(before) - math.log1p(-before) + self.epsilon
        return 1.0 / (1.0 + math.exp(-odds)) if odds < 700.0 else 1.0

    def posterior_if_flagged(self, prior: float, fpr: float) -> float:
        """Belief in membership of somebody whom the best attack at `fpr` names.

        Raises:
            UsageError: SQ-207 unless both are probabilities.
        """
        before, rate = checks.rate(prior, "prior"), checks.rate(fpr, "fpr")
        hit, miss = before * self.tpr_at_fpr(rate), (1.0 - before) * rate
        return hit / (hit + miss) if hit + miss > 0.0 else before


def statement(event: Event, delta: float, *, adjacency: str = "add-or-remove") -> Statement:
    """Everything sequester says about the privacy of `event`.

    Raises:
        UsageError: SQ-201, 210 or 211.
    """
    check_delta(delta)
    return _of_parts(lower(event, checks.adjacency(adjacency)), delta, adjacency)


@lru_cache(maxsize=64)
def _of_parts(parts: Parts, delta: float, adjacency: str) -> Statement:
    curve = of_parts(parts, min(1e-10, delta / 10.0))
    if not parts:
        return Statement(0.0, delta, 0.0, 0.0, "gaussian", adjacency, 0.0, curve)
    rough = renyi_epsilon(parts, delta)
    if (mu := only_gaussian(parts)) is not None:
        exact = gaussian.epsilon(delta, mu)
        return Statement(exact, delta, exact, max(rough, exact), "gaussian", adjacency, mu, curve)
    solved = pld.solve(parts, delta, rough)
    if solved is None or solved[0] >= rough:
        best, estimate, accountant = rough, rough, "rdp"
    else:
        (best, estimate), accountant = solved, "pld"
    return Statement(best, delta, estimate, rough, accountant, adjacency, curve.mu(delta), curve)
