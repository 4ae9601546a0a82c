"""Trade-off curves as the f-DP audit needs them: the inverse of their blow-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.audit.mechanism.gaussian import mu_of_epsilon

_NORMAL = NormalDist()
_ROOT_HALF = math.sqrt(0.5)


class Curve(Protocol):
    """A hypothesis about the best attack on a mechanism."""

    def blow_up_inverse(self, probability: float) -> float:
        """The least probability on one data set of an event that has `probability` on its twin."""
        ...


@dataclass(frozen=True)
class GaussianCurve:
    """μ-GDP: `B⁻¹(y) = Φ(Φ⁻¹(y) − μ)`."""

    mu: float

    @classmethod
    def of_epsilon(cls, epsilon: float, delta: float) -> GaussianCurve:
        """The Gaussian mechanism that has exactly this ε at `delta`."""
        return cls(mu_of_epsilon(epsilon, delta))

    def blow_up_inverse(self, probability: float) -> float:
        """See `Curve`."""
        if probability <= 0.0:
            return 0.0
        if probability >= 1.0:
            return 1.0
        return 0.5 * math.erfc((self.mu - _NORMAL.inv_cdf(probability)) * _ROOT_HALF)


@dataclass(frozen=True)
class ProfileCurve:
    """A curve given by points of its privacy profile δ(ε), for example of a PLD.

    `B⁻¹(y) = sup_ε (y − δ(ε)) e^−ε` over all real ε (Wasserman and Zhou 2010, duality). Any
    subset of the ε gives a smaller supremum, so that a coarse grid refutes less, never more.
    Negative ε follow from the twin direction: `δ(−ε) = 1 − e^−ε (1 − δ(ε))`, with the larger
    of both directions' profiles on both sides.

    Attributes:
        slopes: `e^−ε`, `(points,)`.
        offsets: `δ(ε) e^−ε`, `(points,)`.
    """

    slopes: NDArray[np.float64]
    offsets: NDArray[np.float64]

    @classmethod
    def of_points(cls, epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> ProfileCurve:
        """The curve through upper bounds `deltas` at `epsilons` ≥ 0, and their mirrors."""
        mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
        every = np.concatenate([-epsilons[::-1], epsilons])
        profile = np.concatenate([mirrored[::-1], deltas])
        slopes = np.exp(-every)
        return cls(slopes, profile * slopes)

    def blow_up_inverse(self, probability: float) -> float:
        """See `Curve`."""
        return max(0.0, float((probability * self.slopes - self.offsets).max()))
