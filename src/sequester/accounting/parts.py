"""Parts: what the accountants compute with, after events have been brought to normal form.

A part is one mechanism under one adjacency. It always has a Rényi curve (`renyi`), and most
have *dominating pairs* (`pairs`): two distributions (P, Q), one pair per direction, whose
hockey-stick divergence bounds that of any neighbouring data sets (Zhu, Dong & Wang 2022,
2106.08567). `pairs` is None where only the Rényi curve is known.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sequester.accounting import renyi, summed
from sequester.accounting.renyi import Components


@dataclass(frozen=True)
class MixturePair:
    """P and Q are mixtures of N(shift, sigma²); log P/Q increases in x."""

    upper: Components
    lower: Components
    sigma: float


@dataclass(frozen=True)
class LaplacePair:
    """P = (1−q)·Lap(0, scale) + q·Lap(1, scale) against Q = Lap(0, scale), or the reverse."""

    scale: float
    rate: float
    reverse: bool


@dataclass(frozen=True)
class AtomPair:
    """Two distributions on the same finite set, and the mass that P has outside it."""

    upper: tuple[float, ...]
    lower: tuple[float, ...]
    lost: float = 0.0


@dataclass(frozen=True)
class BlendPair:
    """One of several pairs, chosen at random with known weights and then announced."""

    weights: tuple[float, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class MirroredPair:
    """The symmetric pair whose positive losses are those of `pair` (P mass l > 0 kept).

    It dominates `pair` and its reverse at every threshold: sampling without replacement.
    """

    pair: MixturePair


@dataclass(frozen=True)
class NearPair:
    """Distributions within `slack` in max-divergence of post-processed ones of `pair`."""

    pair: Pair
    slack: float


Pair = MixturePair | LaplacePair | AtomPair | BlendPair | MirroredPair | NearPair


class Part(ABC):
    """One mechanism under one adjacency."""

    @property
    def slack(self) -> float:
        """Probability of a catastrophic outcome that the Rényi curve leaves out."""
        return 0.0

    @abstractmethod
    def renyi(self, order: float) -> float:
        """Upper bound on D_order in both directions."""

    def pairs(self) -> tuple[Pair, Pair] | None:
        """Dominating pairs for removing and for adding a unit; None if unknown."""
        return None


@dataclass(frozen=True)
class GaussianPart(Part):
    """Gaussian noise without sampling; `mu` is sensitivity over standard deviation."""

    mu: float

    def renyi(self, order: float) -> float:
        """α·μ²/2, exactly."""
        return order * self.mu * self.mu / 2.0 * renyi.UP

    def pairs(self) -> tuple[Pair, Pair]:
        """N(1, σ²) against N(0, σ²): the same in both directions."""
        pair = MixturePair(((1.0, 1.0),), ((0.0, 1.0),), 1.0 / self.mu)
        return pair, pair


@dataclass(frozen=True)
class SampledGaussianPart(Part):
    """Gaussian noise on a Poisson lot."""

    rate: float
    sigma: float

    def renyi(self, order: float) -> float:
        """Exact; removal is the larger direction."""
        return renyi.sampled_gaussian(self.rate, self.sigma, order)

    def pairs(self) -> tuple[Pair, Pair]:
        """The mixture against N(0, σ²), and the reverse mirrored so that losses increase."""
        q, point = self.rate, ((0.0, 1.0),)
        removing = MixturePair(((0.0, 1.0 - q), (1.0, q)), point, self.sigma)
        adding = MixturePair(point, ((0.0, 1.0 - q), (-1.0, q)), self.sigma)
        return removing, adding


@dataclass(frozen=True)
class MixturePart(Part):
    """A unit's random shift against none, or against the opposite shift if `opposed`."""

    shifts: Components
    sigma: float
    opposed: bool

    def _pairs(self) -> tuple[MixturePair, MixturePair]:
        negative = tuple((-shift, weight) for shift, weight in self.shifts)
        if self.opposed:
            pair = MixturePair(self.shifts, negative, self.sigma)
            return pair, pair
        point = ((0.0, 1.0),)
        return (
            MixturePair(self.shifts, point, self.sigma),
            MixturePair(point, negative, self.sigma),
        )

    def renyi(self, order: float) -> float:
        """The larger of both directions, by quadrature."""
        return max(
            renyi.mixture(pair.upper, pair.lower, pair.sigma, order) for pair in set(self._pairs())
        )

    def pairs(self) -> tuple[Pair, Pair]:
        """The mixtures themselves."""
        return self._pairs()


@dataclass(frozen=True)
class BlendPart(Part):
    """One of several parts, chosen at random independently of the unit and announced."""

    weights: tuple[float, ...]
    parts: tuple[Part, ...]

    def renyi(self, order: float) -> float:
        """Moments of the announced choice are averaged."""
        terms = [
            math.log(weight) + (order - 1.0) * part.renyi(order)
            for weight, part in zip(self.weights, self.parts, strict=True)
            if weight > 0.0
        ]
        return float(np.logaddexp.reduce(terms)) / (order - 1.0) * renyi.UP

    def pairs(self) -> tuple[Pair, Pair] | None:
        """Both directions blended."""
        known = [part.pairs() for part in self.parts]
        both = [pair for pair in known if pair is not None]
        if len(both) < len(known):
            return None
        return (
            BlendPair(self.weights, tuple(pair[0] for pair in both)),
            BlendPair(self.weights, tuple(pair[1] for pair in both)),
        )


@dataclass(frozen=True)
class LaplacePart(Part):
    """Laplace noise on a Poisson lot (rate 1: on everybody)."""

    scale: float
    rate: float

    def renyi(self, order: float) -> float:
        """Mironov 2017 (1702.07476), proposition 6; sampling by Zhu & Wang 2019."""
        if self.rate < 1.0:
            whole = LaplacePart(self.scale, 1.0)
            return renyi.poisson_sampled(whole.renyi, self.rate, order)
        a, b = order, self.scale
        first = math.log(a / (2.0 * a - 1.0)) + (a - 1.0) / b
        second = math.log((a - 1.0) / (2.0 * a - 1.0)) - a / b
        return min(float(np.logaddexp(first, second)) / (a - 1.0) * renyi.UP, 1.0 / b)

    def pairs(self) -> tuple[Pair, Pair]:
        """One line, two directions."""
        return (
            LaplacePair(self.scale, self.rate, reverse=False),
            LaplacePair(self.scale, self.rate, reverse=True),
        )


@dataclass(frozen=True)
class AtomPart(Part):
    """A mechanism with finitely many outcomes; `lost` is mass with infinite loss either way."""

    upper: tuple[float, ...]
    lower: tuple[float, ...]
    lost: float = 0.0

    @property
    def slack(self) -> float:
        """The mass at infinite loss."""
        return self.lost

    def renyi(self, order: float) -> float:
        """The larger of both directions, conditioned on a finite loss."""
        p, q = np.array(self.upper), np.array(self.lower)
        both = (p > 0.0) & (q > 0.0)
        log_p, log_q = np.log(p[both] / p[both].sum()), np.log(q[both] / q[both].sum())
        forward = float(np.logaddexp.reduce(order * log_p + (1.0 - order) * log_q))
        backward = float(np.logaddexp.reduce(order * log_q + (1.0 - order) * log_p))
        return max(0.0, forward, backward) / (order - 1.0) * renyi.UP + 1e-15

    def pairs(self) -> tuple[Pair, Pair]:
        """The atoms, both ways."""
        return (
            AtomPair(self.upper, self.lower, self.lost),
            AtomPair(self.lower, self.upper, self.lost),
        )


@dataclass(frozen=True)
class FixedSizePart(Part):
    """Gaussian noise on a lot of fixed size, replace-one; `sigma` over the replacement."""

    rate: float
    sigma: float

    def renyi(self, order: float) -> float:
        """Wang, Balle & Kasiviswanathan 2019."""
        return renyi.fixed_size_gaussian(self.rate, self.sigma, order)

    def pairs(self) -> tuple[Pair, Pair]:
        """Zhu, Dong & Wang 2022, proposition 30: remove above threshold 1, its mirror below."""
        q = self.rate
        pair = MirroredPair(MixturePair(((0.0, 1.0 - q), (1.0, q)), ((0.0, 1.0),), self.sigma))
        return pair, pair


@dataclass(frozen=True)
class ZcdpPart(Part):
    """Only ρ is known: D_α ≤ ρα."""

    rho: float

    def renyi(self, order: float) -> float:
        """ρα (Bun & Steinke 2016)."""
        return self.rho * order * renyi.UP


@dataclass(frozen=True)
class DiscreteGaussianPart(Part):
    """Integer noise; exact in one dimension with one noise source, else near a Gaussian."""

    standard_deviation: float
    sensitivity: float
    dimension: int
    clients: int

    def renyi(self, order: float) -> float:
        """As continuous noise (Canonne et al. 2020, theorem 14), plus the price of summing."""
        return summed.divergence(
            self.standard_deviation, self.sensitivity, self.dimension, self.clients, order
        )

    def pairs(self) -> tuple[Pair, Pair] | None:
        """The two shifted distributions on the integers; else those of a near Gaussian."""
        return self._atoms() or self.near(1.0)

    def near(self, rate: float) -> tuple[Pair, Pair] | None:
        """The pairs of the Gaussian that the sum nearly post-processes, on a Poisson lot."""
        found = summed.useful(self.standard_deviation, self.clients, self.dimension)
        if found is None:
            return None
        sigma, slack = found[0] / self.sensitivity * (1.0 - 1e-12), found[1]
        part = GaussianPart(1.0 / sigma) if rate == 1.0 else SampledGaussianPart(rate, sigma)
        removing, adding = part.pairs()
        return NearPair(removing, slack), NearPair(adding, slack)

    def _atoms(self) -> tuple[Pair, Pair] | None:
        """The exact distributions of one noise in one dimension, cut where 10⁻³⁰⁰ is left."""
        shift = round(self.sensitivity)
        if self.dimension > 1 or self.clients > 1 or shift != self.sensitivity:
            return None
        sigma = self.standard_deviation
        reach = math.ceil(37.0 * sigma) + shift
        if reach > 1_000_000:
            return None
        k = np.arange(-reach, reach + shift + 1, dtype=float)
        p, q = (np.exp(-((k - at) ** 2) / (2.0 * sigma**2)) for at in (shift, 0))
        mass = float(np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2.0 * sigma**2)).sum())
        pair = AtomPair(tuple(p / mass), tuple(q / mass), lost=1e-290)
        return pair, pair


@dataclass(frozen=True)
class SkellamPart(Part):
    """Skellam noise in any dimension."""

    variance: float
    l2: float
    l1: float

    def renyi(self, order: float) -> float:
        """Agarwal, Kairouz & Liu 2021."""
        return renyi.skellam(self.variance, self.l2, self.l1, order)


@lru_cache(maxsize=64)
def _cumulants(part: DiscreteGaussianPart | SkellamPart) -> np.ndarray:
    return renyi.cumulants(part.renyi)


@lru_cache(maxsize=65536)
def _sampled(part: DiscreteGaussianPart | SkellamPart, rate: float, order: float) -> float:
    return renyi.symmetric_poisson_sampled(_cumulants(part), part.renyi, rate, order)


@dataclass(frozen=True)
class SampledPart(Part):
    """Poisson sampling of a mechanism of which only the Rényi curve is used."""

    rate: float
    part: Part

    def renyi(self, order: float) -> float:
        """Mironov et al. 2019 for symmetric integer noise, Zhu & Wang 2019 for anything."""
        if isinstance(self.part, DiscreteGaussianPart | SkellamPart):
            part, rate = self.part, self.rate
            return renyi.interpolated(lambda whole: _sampled(part, rate, whole), order)
        return renyi.poisson_sampled(self.part.renyi, self.rate, order)

    def pairs(self) -> tuple[Pair, Pair] | None:
        """A coin before the atoms, or before the near Gaussian (Zhu et al. 2022, theorem 11)."""
        inner = self.part.pairs()
        if inner is None or not all(isinstance(pair, AtomPair) for pair in inner):
            part = self.part
            return part.near(self.rate) if isinstance(part, DiscreteGaussianPart) else None
        removing, adding = (pair for pair in inner if isinstance(pair, AtomPair))
        q = self.rate
        mixed = tuple(
            q * p + (1.0 - q) * o for p, o in zip(removing.upper, removing.lower, strict=True)
        )
        other = tuple(
            q * p + (1.0 - q) * o for p, o in zip(adding.lower, adding.upper, strict=True)
        )
        return (
            AtomPair(mixed, removing.lower, q * removing.lost),
            AtomPair(adding.upper, other, adding.lost),
        )


@dataclass(frozen=True)
class SelectedPart(Part):
    """The best of a random number of runs."""

    parts: tuple[tuple[Part, int], ...]
    mean: float
    shape: float

    def renyi(self, order: float) -> float:
        """Papernot & Steinke 2022."""
        return renyi.repeat_and_select(
            lambda a: sum(n * part.renyi(a) for part, n in self.parts),
            self.mean,
            self.shape,
            order,
        )
