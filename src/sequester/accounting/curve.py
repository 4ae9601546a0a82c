"""The trade-off curve: the most any membership attacker can achieve, at every threshold.

The privacy profile δ(ε) and the trade-off function f of f-DP are duals: every certified point
(ε, δ) says TPR ≤ e^ε·FPR + δ, and the curve is the lowest of those lines. A single (ε, δ)
says about a third of that. Source: Dong, Roth & Su 2022 (1905.02383), proposition 2.13.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sequester.accounting import checks, gaussian, pld
from sequester.accounting.accountant import only_gaussian, renyi_delta, renyi_epsilon
from sequester.accounting.events import Event
from sequester.accounting.lower import Parts, lower
from sequester.accounting.parts import Pair
from sequester.core.errors import UsageError

# δ levels at which the composition is tilted; between them the bounds overlap.
_LEVELS = (0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-7, 1e-9, 1e-11)
_POINTS = 1500


@dataclass(frozen=True)
class Tradeoff:
    """Certified upper bounds on what an attacker can do, from points of the privacy profile.

    Attributes:
        epsilons: ε of each point `[point]`, increasing from 0.
        deltas: Certified δ of each point `[point]`, falling, the larger of both directions.
    """

    epsilons: np.ndarray
    deltas: np.ndarray

    def tpr(self, fpr: float) -> float:
        """Highest true-positive rate of any attack whose false-positive rate is `fpr`.

        Raises:
            UsageError: SQ-207 unless 0 ≤ fpr ≤ 1.
        """
        rate = checks.rate(fpr, "fpr")
        if rate >= 1.0:
            return 1.0
        with np.errstate(over="ignore"):
            growth = np.exp(self.epsilons)
        lines = self.deltas + growth * rate if rate > 0.0 else self.deltas  # never inf · 0
        # The other direction bounds the true negatives: 1 − FPR ≤ e^ε·(1 − TPR) + δ.
        mirrored = 1.0 - np.maximum(0.0, 1.0 - rate - self.deltas) / growth
        return float(min(1.0, max(rate, min(lines.min(), mirrored.min()))))

    def fnr(self, fpr: float) -> float:
        """The trade-off function f: the lowest false-negative rate at `fpr`."""
        return 1.0 - self.tpr(fpr)

    @property
    def advantage(self) -> float:
        """Largest TPR − FPR of any attack: δ at ε = 0."""
        return float(self.deltas[0])

    def delta(self, epsilon: float) -> float:
        """Certified δ at any ε ≥ 0: that of the last point not above it."""
        place = int(np.searchsorted(self.epsilons, epsilon, side="right")) - 1
        return float(self.deltas[max(place, 0)])

    def mu(self, smallest_delta: float) -> float:
        """Least μ whose Gaussian curve lies below this one wherever δ ≥ `smallest_delta`.

        Rounded up by one part in a thousand, which covers what lies between points. Where no δ is
        that large, the curve's beginning counts: an attacker's advantage is small then, not 0.
        """
        if self.deltas[0] <= 0.0:
            return 0.0
        inside = np.flatnonzero(self.deltas >= min(smallest_delta, self.deltas[0]))
        last = int(inside[-1])
        chosen = np.unique(np.linspace(0, last, 60).astype(int))
        values = [self._mu_at(k) for k in chosen]
        best = int(np.argmax(values))
        around = range(
            int(chosen[max(best - 1, 0)]), int(chosen[min(best + 1, chosen.size - 1)]) + 1
        )
        return max(*values, *(self._mu_at(k) for k in around)) * 1.001

    def _mu_at(self, k: int) -> float:
        if self.deltas[k] >= 1.0:
            return math.inf
        return gaussian.mu_from(float(self.epsilons[k]), float(self.deltas[k]))

    def points(self, count: int = 41) -> tuple[list[float], list[float]]:
        """(FPR, TPR) for drawing: 0, logarithmic from 10⁻⁶ to ½, then evenly to 1."""
        half = max(2, count // 2)
        fpr = [0.0, *np.geomspace(1e-6, 0.5, half), *np.linspace(0.5, 1.0, half)[1:]]
        return [float(x) for x in fpr], [self.tpr(float(x)) for x in fpr]


def tradeoff(
    event: Event, *, adjacency: str = "add-or-remove", smallest_delta: float = 1e-10
) -> Tradeoff:
    """The certified trade-off curve of `event`, down to about `smallest_delta`.

    Raises:
        UsageError: SQ-201, 210 or 211.
    """
    least = checks.delta_or_zero(smallest_delta)
    if least == 0.0:
        raise UsageError(201, "smallest_delta must be > 0; 1e-10 is far below any claim")
    return of_parts(lower(event, checks.adjacency(adjacency)), least)


@lru_cache(maxsize=64)
def of_parts(parts: Parts, least: float) -> Tradeoff:
    """The curve of a composition in normal form."""
    if not parts:
        return Tradeoff(np.zeros(1), np.zeros(1))
    if (mu := only_gaussian(parts)) is not None:
        if math.isinf(mu):
            return Tradeoff(np.zeros(1), np.ones(1))
        grid = np.linspace(0.0, max(gaussian.epsilon(least, mu), 1e-9), _POINTS)
        return Tradeoff(grid, np.array([gaussian.delta(float(e), mu) for e in grid]))
    rough = renyi_epsilon(parts, least)
    if math.isinf(rough):
        rough = 50.0
    both = pld.directions(parts)
    if both is not None:
        with suppress(pld.Unbounded):
            return _of_pairs(both, least, rough)
    grid = np.linspace(0.0, max(rough, 1e-9), 200)
    return Tradeoff(grid, np.array([renyi_delta(parts, float(e)) for e in grid]))


def _of_pairs(both: list[list[tuple[Pair, int]]], least: float, rough: float) -> Tradeoff:
    seen, reach = [], 0.0
    for pairs in both:
        loss = pld.fit(pairs, least, pld.RELATIVE * rough)
        tilted = [loss.at(loss.tilt_for_epsilon(0.0), math.log(0.3))]
        tilted += [
            loss.at(loss.tilt_for_delta(level), math.log(level))
            for level in (*_LEVELS, least)
            if level >= least
        ]
        ends = [one.epsilon(least) for one in tilted]
        reach = max(reach, min(*ends, rough))
        seen.append(tilted)
    grid = np.linspace(0.0, max(reach, 1e-9), _POINTS)
    # Every tilt certifies every ε; the smallest bound is certified too.
    directions = [np.min([one.delta(grid) for one in tilted], axis=0) for tilted in seen]
    deltas = np.max(directions, axis=0)
    return Tradeoff(grid, np.minimum.accumulate(deltas))
