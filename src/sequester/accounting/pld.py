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

    def bias(self, theta: float) -> float:
        """Estimate of what this grid adds to ε, from this grid and the next coarser one."""
        change = sum(
            count * (pmf.coarsen().cumulant(theta) - pmf.cumulant(theta))
            for pmf, count in self.pmfs
        )
        return max(change, 0.0) / 3.0 / theta

    def at(self, theta: float, level: float) -> Tilted:
        """Compose at a tilt, for δ around e^level; too fine a grid for memory is coarsened."""
        loss = self
        span = window(loss.summaries, theta, level)
        while (span[1] - span[0]) / loss.step > MOST_POINTS:
            loss = loss.coarsen()
            span = window(loss.summaries, theta, level)
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


def fit(pairs: list[tuple[Pair, int]], delta: float, epsilon: float) -> Loss:
    """The loss on the coarsest grid that adds at most the tolerance to ε.

    Args:
        pairs: One direction's pairs with counts.
        delta: The δ at which ε is wanted.
        epsilon: A rough upper bound on ε, for the relative tolerance.
    """
    tail = _tail(pairs, delta)
    ranges = [loss_range(pair, tail) for pair, _ in pairs]
    step = _round_step(max(max(high - low for low, high in ranges) / 1500.0, 1e-12))
    tolerance = max(RELATIVE * epsilon, ABSOLUTE) if math.isfinite(epsilon) else 1e-2
    loss = build(pairs, step, tail)
    for _ in range(12):
        bias = loss.bias(loss.tilt_for_delta(delta))
        if bias <= tolerance:
            break
        finer = loss.step * min(0.9, max(1.0 / 64.0, 0.8 * math.sqrt(tolerance / bias)))
        finer = _round_step(finer)
        if max(high - low for low, high in ranges) / finer > MOST_CELLS:
            break
        loss = build(pairs, finer, tail)
    return loss


def _round_step(step: float) -> float:
    """The next power of √2 below: similar runs share a grid, so ε varies smoothly."""
    return float(2.0 ** (math.floor(2.0 * math.log2(step)) / 2.0))


def epsilon(parts: Parts, delta: float, rough: float) -> float | None:
    """Certified upper bound on ε at `delta`; None if some part has no dominating pair.

    Args:
        parts: The composition.
        delta: δ in (0, 1).
        rough: Any upper bound on ε (the Rényi one).
    """
    both = directions(parts)
    return None if both is None else _worst(both, delta, rough)[0]


def solve(parts: Parts, delta: float, rough: float) -> tuple[float, float] | None:
    """(certified upper bound, extrapolated estimate) of ε; None as in `epsilon`.

    The estimate removes the discretisation's leading error, which falls with the square of
    the step (Richardson); it is no guarantee.
    """
    both = directions(parts)
    if both is None:
        return None
    upper, loss = _worst(both, delta, rough)
    if not math.isfinite(upper):
        return upper, upper
    coarse = _epsilon_of(loss.coarsen(), delta)
    estimate = upper - max(0.0, coarse - upper) / 3.0
    return upper, max(0.0, estimate)


def _worst(both: list[list[tuple[Pair, int]]], delta: float, rough: float) -> tuple[float, Loss]:
    """ε of the worse direction, and that direction's loss."""
    loss = fit(both[0], delta, rough)
    value = _epsilon_of(loss, delta)
    for pairs in both[1:]:
        tail = _tail(pairs, delta)
        # The second direction is mostly smaller: a coarse bound below the first settles it.
        quick = build(pairs, 4.0 * loss.step, tail)
        if _epsilon_of(quick, delta) <= value:
            continue
        other = fit(pairs, delta, rough)
        if (second := _epsilon_of(other, delta)) > value:
            value, loss = second, other
    return value, loss


def _tail(pairs: list[tuple[Pair, int]], delta: float) -> float:
    """Mass per mechanism that may go to infinity: together a millionth of δ."""
    return delta * 1e-6 / sum(count for _, count in pairs)


def _epsilon_of(loss: Loss, delta: float) -> float:
    return loss.at(loss.tilt_for_delta(delta), math.log(delta)).epsilon(delta)


def delta(parts: Parts, epsilon: float, rough: float) -> float | None:
    """Certified upper bound on δ at `epsilon`; `rough` is any upper bound on it."""
    both = directions(parts)
    if both is None:
        return None
    scale = max(rough, 1e-290)
    values = []
    for pairs in both:
        loss = fit(pairs, scale, max(epsilon, 0.1))
        theta = loss.tilt_for_epsilon(epsilon)
        tilted = loss.at(theta, loss.level(theta, epsilon))
        values.append(float(tilted.delta(np.array([epsilon]))[0]))
    return max(values)
