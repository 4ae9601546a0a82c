"""ε and δ from privacy loss distributions: choosing grid and tilt, and both directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sequester.accounting.discretise import MOST_CELLS, discretise, loss_range
from sequester.accounting.lower import Parts
from sequester.accounting.parts import Pair
from sequester.accounting.pmf import Pmf, Summary
from sequester.accounting.tilted import MOST_POINTS, Tilted, compose, total_cumulants, window

# How far above the truth discretisation may push ε: relative, and absolute for tiny ε.
RELATIVE = 1e-4
ABSOLUTE = 1e-6


class Unbounded(ArithmeticError):
    """No grid in memory bounds this composition; its Rényi bound stands."""


@dataclass(frozen=True)
class Loss:
    """The composed loss in one direction on one grid, before any tilt is chosen."""

    pmfs: list[tuple[Pmf, int]]
    summaries: list[tuple[Summary, int]]

    @property
    def step(self) -> float:
        """Grid distance in nats."""
        return self.pmfs[0][0].step

    def coarsen(self) -> Loss:
        """The same loss on twice the step."""
        return _loss([(pmf.coarsen(), count) for pmf, count in self.pmfs])

    def tilt_for_delta(self, delta: float) -> float:
        """The saddle point of ε at `delta`."""
        thetas = np.exp(np.linspace(math.log(1e-2), math.log(6e4), 120))
        cumulants = total_cumulants(self.summaries, thetas)
        bound = (cumulants - math.log(delta) - np.log1p(thetas)) / thetas + np.log(
            thetas / (1.0 + thetas)
        )
        return float(thetas[int(np.argmin(bound))])

    def tilt_for_epsilon(self, epsilon: float) -> float:
        """The saddle point of δ at `epsilon`."""
        thetas = np.exp(np.linspace(math.log(1e-2), math.log(6e4), 120))
        bound = total_cumulants(self.summaries, thetas) - thetas * (epsilon + 1.0 / (1.0 + thetas))
        return float(thetas[int(np.argmin(bound - np.log1p(thetas)))])

    def level(self, theta: float, epsilon: float) -> float:
        """Roughly log δ at `epsilon`, whose saddle point `theta` is."""
        cumulant = float(total_cumulants(self.summaries, np.array([theta]))[0])
        return cumulant - theta * epsilon - 2.0 * math.log1p(theta) - 3.0

    def chernoff(self, theta: float, level: float) -> float:
        """The Rényi bound on ε at log δ = `level` from this tilt alone."""
        cumulant = float(total_cumulants(self.summaries, np.array([theta]))[0])
        return (cumulant - level - math.log1p(theta)) / theta - math.log1p(1.0 / theta)

    def bias(self, theta: float) -> float:
        """Estimate of what this grid adds to ε, from this grid and the next coarser one."""
        change = sum(
            count * (pmf.coarsen().cumulant(theta) - pmf.cumulant(theta))
            for pmf, count in self.pmfs
        )
        return max(change, 0.0) / 3.0 / theta

    def at(self, theta: float, level: float, least: float = 0.0) -> Tilted:
        """Compose at a tilt, for δ around e^level and ε ≥ `least`.

        A grid too fine for memory is coarsened.

        Raises:
            Unbounded: If rounding up on any grid that fits adds more than the loss itself.
        """
        loss, before = self, math.inf
        span = window(loss.summaries, theta, level, least)
        # Negated, so that what overflowed to NaN is too much as well.
        while not (points := (span[1] - span[0]) / loss.step) <= MOST_POINTS:
            if not points < before:
                raise Unbounded
            loss, before = loss.coarsen(), points
            span = window(loss.summaries, theta, level, least)
        return compose(loss.pmfs, theta, span)


def _loss(pmfs: list[tuple[Pmf, int]]) -> Loss:
    return Loss(pmfs, [(pmf.summary(), count) for pmf, count in pmfs])


def directions(parts: Parts) -> list[list[tuple[Pair, int]]] | None:
    """The dominating pairs of a composition, per direction; None if a part has none."""
    removing, adding = [], []
    for part, count in parts:
        pairs = part.pairs()
        if pairs is None:
            return None
        removing.append((pairs[0], count))
        adding.append((pairs[1], count))
    return [removing] if removing == adding else [removing, adding]


def build(pairs: list[tuple[Pair, int]], step: float, tail: float) -> Loss:
    """Discretise every pair on one grid; `tail` per composed mechanism goes to infinity."""
    widest = max(high - low for low, high in (loss_range(pair, tail) for pair, _ in pairs))
    step = max(step, widest / MOST_CELLS)
    return _loss([(discretise(pair, step, tail), count) for pair, count in pairs])


def fit(pairs: list[tuple[Pair, int]], delta: float, tolerance: float) -> Loss:
    """The loss on a grid which, by its cumulants, adds about `tolerance` to ε at `delta`."""
    tail = _tail(pairs, delta)
    loss = build(pairs, _round_step(max(_width(pairs, tail) / 1500.0, 1e-12)), tail)
    for _ in range(12):
        bias = loss.bias(loss.tilt_for_delta(delta))
        finer = _finer(loss.step, bias, tolerance)
        if bias <= tolerance or _width(pairs, tail) / finer > MOST_CELLS:
            break
        loss = build(pairs, finer, tail)
    return loss


def _width(pairs: list[tuple[Pair, int]], tail: float) -> float:
    """The widest range of losses among the pairs."""
    return max(high - low for low, high in (loss_range(pair, tail) for pair, _ in pairs))


def _finer(step: float, bias: float, tolerance: float) -> float:
    """A step at which a bias falling with the square of the step meets the tolerance."""
    wanted = 0.8 * math.sqrt(tolerance / bias) if bias > 0.0 else 1.0
    return _round_step(step * min(0.8, max(1.0 / 64.0, wanted)))


def _round_step(step: float) -> float:
    """The next power of √2 below: similar runs share a grid, so ε varies smoothly."""
    return float(2.0 ** (math.floor(2.0 * math.log2(step)) / 2.0))


def epsilon(parts: Parts, delta: float, rough: float) -> float | None:
    """Certified upper bound on ε at `delta`.

    None if some part has no dominating pair, or no grid in memory bounds them.

    Args:
        parts: The composition.
        delta: δ in (0, 1).
        rough: Any upper bound on ε (the Rényi one).
    """
    both = directions(parts)
    if both is None:
        return None
    try:
        return _worst(both, delta, rough)[0]
    except Unbounded:
        return None


def solve(parts: Parts, delta: float, rough: float) -> tuple[float, float] | None:
    """(certified upper bound, extrapolated estimate) of ε; None as in `epsilon`.

    The estimate removes the discretisation's leading error, which falls with the square of
    the step (Richardson); it is no guarantee.
    """
    both = directions(parts)
    if both is None:
        return None
    try:
        upper, loss = _worst(both, delta, rough)
        if not math.isfinite(upper):
            return upper, upper
        _, coarse = _epsilon_of(loss.coarsen(), delta)
    except Unbounded:
        return None
    estimate = upper - max(0.0, coarse - upper) / 3.0
    return upper, max(0.0, estimate)


def _worst(both: list[list[tuple[Pair, int]]], delta: float, rough: float) -> tuple[float, Loss]:
    """ε of the worse direction, and that direction's loss."""
    value, loss = _direction(both[0], delta, rough)
    for pairs in both[1:]:
        # The second direction is mostly smaller: a coarse bound below the first settles it.
        quick = build(pairs, 4.0 * loss.step, _tail(pairs, delta))
        if _epsilon_of(quick, delta)[1] <= value:
            continue
        second, other = _direction(pairs, delta, rough)
        if second > value:
            value, loss = second, other
    return value, loss


def _direction(pairs: list[tuple[Pair, int]], delta: float, rough: float) -> tuple[float, Loss]:
    """ε of one direction on a grid fine enough for it, and the loss on that grid."""
    loss = fit(pairs, delta, _tolerance(rough))
    value = math.inf
    for _ in range(5):
        coarse, value = _epsilon_of(loss, delta)
        if not math.isfinite(coarse):
            break
        # Four times the step has sixteen times the bias.
        bias, tolerance = (coarse - value) / 15.0, _tolerance(value)
        finer = _finer(loss.step, bias, tolerance)
        tail = _tail(pairs, delta)
        if bias <= 1.5 * tolerance or _width(pairs, tail) / finer > MOST_CELLS:
            break
        loss = build(pairs, finer, tail)
    return value, loss


def _tolerance(epsilon: float) -> float:
    return max(RELATIVE * epsilon, ABSOLUTE) if math.isfinite(epsilon) else 1e-2


def _tail(pairs: list[tuple[Pair, int]], delta: float) -> float:
    """Mass per mechanism that may go to infinity: together a millionth of δ."""
    return delta * 1e-6 / sum(count for _, count in pairs)


def _epsilon_of(loss: Loss, delta: float) -> tuple[float, float]:
    """ε at four times the step and on this grid; the first allows a smaller second transform."""
    theta, level = loss.tilt_for_delta(delta), math.log(delta)
    coarse = loss.coarsen().coarsen()
    rough = coarse.at(theta, level).epsilon(delta)
    if rough < 0.6 * loss.chernoff(theta, level):
        # Far below its Chernoff bound (few steps, rare sampling) ε has a smaller best tilt.
        others = {share * theta: 0.0 for share in (0.75, 0.5, 0.25)}
        for other in others:
            others[other] = coarse.at(other, level).epsilon(delta)
        best = min(others, key=lambda other: others[other])
        if others[best] < rough:
            theta, rough = best, others[best]
    if not 0.0 < rough < math.inf:
        return rough, loss.at(theta, level).epsilon(delta)
    least = max(0.0, 0.98 * rough - 8.0 * loss.step)
    value = loss.at(theta, level, least).epsilon(delta)
    if value <= least:  # there the small transform is loose, though never wrong
        value = min(value, loss.at(theta, level).epsilon(delta))
    return rough, value


def delta(parts: Parts, epsilon: float, rough: float) -> float | None:
    """Certified upper bound on δ at `epsilon`, None as in `epsilon`; `rough` is any upper bound."""
    both = directions(parts)
    if both is None:
        return None
    try:
        return max(_delta_of(pairs, epsilon, rough) for pairs in both)
    except Unbounded:
        return None


def _delta_of(pairs: list[tuple[Pair, int]], epsilon: float, rough: float) -> float:
    value = max(rough, 1e-290)
    tolerance = _tolerance(max(epsilon, 0.1))
    for _ in range(4):
        scale = value
        loss = fit(pairs, scale, tolerance)
        theta = loss.tilt_for_epsilon(epsilon)
        if loss.bias(theta) * theta > 2e-3:  # relative to δ
            loss = fit(pairs, scale, 1e-3 / theta)
        tilted = loss.at(theta, loss.level(theta, epsilon), epsilon)
        value = min(value, max(float(tilted.delta(np.array([epsilon]))[0]), 1e-290))
        # Mass sent to infinity was chosen for `scale`; a much smaller δ deserves less of it.
        if value > 1e-3 * scale:
            break
    return value
