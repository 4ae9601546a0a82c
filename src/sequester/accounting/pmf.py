"""The privacy loss as a probability mass function on a grid, always on the pessimistic side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class Pmf:
    """P-mass of the privacy loss at `(first + k)·step`, dominating the true loss.

    Attributes:
        first: Grid index of `mass[0]`.
        mass: Mass per grid point `[loss]`; rounded up, so it may sum to slightly above 1.
        infinite: Mass at infinite loss.
        step: Distance of grid points, in nats.
        shift: How much the true loss may exceed the grid's by rounding or slack, in nats.
        growth: How much the true mass of any outcome may exceed the grid's, in nats.
    """

    first: int
    mass: np.ndarray
    infinite: float
    step: float
    shift: float = 0.0
    growth: float = 0.0

    @property
    def losses(self) -> np.ndarray:
        """Loss of each grid point `[loss]`."""
        return (self.first + np.arange(self.mass.size)) * self.step

    def coarsen(self) -> Pmf:
        """The same loss connected at every second grid point: a further upper bound.

        A mass between two points is split so that P- and Q-mass are kept, which is exactly
        what discretising at twice the step gives.
        """
        first = self.first if self.first % 2 == 0 else self.first - 1
        size = (self.first + self.mass.size - 1 - first) // 2 * 2 + 3
        full = np.zeros(size)
        full[self.first - first : self.first - first + self.mass.size] = self.mass
        odd, coarse = full[1::2], full[0::2].copy()
        share = 1.0 / (1.0 + math.exp(-self.step)) * (1.0 + 4.0 * EPS)
        coarse[1:] += odd * share
        coarse[:-1] += odd * (1.0 - share) * (1.0 + 4.0 * EPS)
        if coarse[-1] == 0.0:
            coarse = coarse[:-1]
        return Pmf(first // 2, coarse, self.infinite, 2.0 * self.step, self.shift, self.growth)

    def cumulant(self, theta: float) -> float:
        """Log Σ mass·e^(θ·loss) over finite losses."""
        return _log_moment(self.mass, self.losses, theta)

    def summary(self) -> Summary:
        """A few hundred points whose cumulants bound this one's from above for θ > 0."""
        centre = int(np.argmax(self.mass))
        reach = max(centre, self.mass.size - 1 - centre)
        offsets = [0]
        while offsets[-1] < reach:
            offsets.append(offsets[-1] + max(1, offsets[-1] // 32))
        up = centre + np.array(offsets)
        nodes = np.unique(np.clip(np.concatenate([2 * centre - up, up]), 0, self.mass.size - 1))
        if nodes.size == 1:
            return Summary(self.losses, self.mass)
        cell = np.clip(
            np.searchsorted(nodes, np.arange(self.mass.size), side="right") - 1, 0, nodes.size - 2
        )
        left, right = nodes[cell], nodes[cell + 1]
        above = (np.arange(self.mass.size) - left) * self.step
        share = np.expm1(-above) / np.expm1(-(right - left) * self.step)
        merged = np.bincount(cell + 1, self.mass * share, nodes.size)
        merged += np.bincount(cell, self.mass * (1.0 - share), nodes.size)
        return Summary((self.first + nodes) * self.step, merged)


@dataclass(frozen=True)
class Summary:
    """A coarse distribution of the loss, for choosing tilts and windows."""

    losses: np.ndarray
    mass: np.ndarray

    def cumulants(self, thetas: np.ndarray) -> np.ndarray:
        """Upper bounds on the cumulant at each θ > 0, shape `(thetas,)`."""
        positive = self.mass > 0.0
        exponents = np.log(self.mass[positive]) + np.multiply.outer(
            np.asarray(thetas), self.losses[positive]
        )
        largest = exponents.max(axis=1)
        moments: np.ndarray = largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))
        padded: np.ndarray = moments + 1e-9 * np.abs(moments) + 1e-12
        return padded


def _log_moment(mass: np.ndarray, losses: np.ndarray, theta: float) -> float:
    positive = mass > 0.0
    exponents = np.log(mass[positive]) + theta * losses[positive]
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest).sum()))


def blend(weights: tuple[float, ...], pmfs: list[Pmf]) -> Pmf:
    """The loss when one of `pmfs` (on one grid) is chosen with known weights and announced."""
    first = min(pmf.first for pmf in pmfs)
    last = max(pmf.first + pmf.mass.size for pmf in pmfs)
    mass = np.zeros(last - first)
    for weight, pmf in zip(weights, pmfs, strict=True):
        mass[pmf.first - first : pmf.first - first + pmf.mass.size] += weight * pmf.mass
    infinite = sum(w * pmf.infinite for w, pmf in zip(weights, pmfs, strict=True))
    shift, growth = max(pmf.shift for pmf in pmfs), max(pmf.growth for pmf in pmfs)
    return Pmf(first, mass, infinite, pmfs[0].step, shift, growth)


def mirror(pmf: Pmf) -> Pmf:
    """The symmetric loss whose positive part is that of `pmf`; the rest sits at zero."""
    losses = pmf.losses
    keep = losses > 0.0
    index, up = pmf.first + np.flatnonzero(keep), pmf.mass[keep]
    if index.size == 0:
        return Pmf(0, np.ones(1), pmf.infinite, pmf.step, pmf.shift, pmf.growth)
    down = up * np.exp(-losses[keep])
    reach = int(index[-1])
    mass = np.zeros(2 * reach + 1)
    mass[reach + index] = up
    mass[reach - index] = down
    mass[reach] = max(0.0, 1.0 - float(up.sum() + down.sum()) - pmf.infinite) + 4.0 * EPS
    return Pmf(-reach, mass, pmf.infinite, pmf.step, pmf.shift, pmf.growth)
