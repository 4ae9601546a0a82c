"""Privacy events of single mechanisms; `events.py` adds samplers and compositions.

The vocabulary only grows. A class or a field is never renamed or removed, because ledgers on
disk hold events for as long as the data they charge. Events carry no ε: accountants compute
it from them (`accountant.py`), so a better accountant improves every old claim.

Noise multipliers are noise over *one unit's bound* (σ/C), whatever the adjacency; the
accountant doubles the sensitivity under replace-one itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sequester.accounting import checks


@dataclass(frozen=True)
class Event:
    """Something that was, or will be, released about the data."""

    kind: ClassVar[str] = ""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Gaussian(Event):
    """A vector of L2 sensitivity C plus N(0, (C·noise_multiplier)²) in every coordinate."""

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse NaN, infinities and negatives (SQ-206)."""
        self._set("noise_multiplier", checks.noise_multiplier(self.noise_multiplier))


@dataclass(frozen=True)
class Laplace(Event):
    """A number (or vector in L1) of sensitivity C plus Laplace noise of scale C·z."""

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse NaN, infinities and negatives (SQ-206)."""
        self._set("noise_multiplier", checks.noise_multiplier(self.noise_multiplier))


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """One person's answer among `categories`, replaced by a uniform one with `flip_probability`.

    Defined for neighbours that change an answer (replace-one, or zero-out to a fixed answer).
    """

    kind: ClassVar[str] = "randomized-response"
    flip_probability: float
    categories: int = 2

    def __post_init__(self) -> None:
        """Refuse a probability outside [0, 1] (SQ-207) or fewer than 2 categories (SQ-208)."""
        self._set("flip_probability", checks.rate(self.flip_probability, "flip_probability"))
        self._set("categories", checks.count(self.categories, "categories", least=2))


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """Integers of L2 sensitivity `sensitivity` plus the discrete Gaussian of parameter σ.

    Attributes:
        standard_deviation: σ of N_Z(0, σ²), in grid units.
        sensitivity: L2 sensitivity, in grid units.
        dimension: Number of coordinates; one coordinate has an exact loss distribution.
        clients: Number of independent noises that are summed (distributed noise); the sum of
            discrete Gaussians is not one, and the difference is charged (Kairouz et al. 2021).
    """

    kind: ClassVar[str] = "discrete-gaussian"
    standard_deviation: float
    sensitivity: float = 1.0
    dimension: int = 1
    clients: int = 1

    def __post_init__(self) -> None:
        """Refuse what is not positive (SQ-208, SQ-209)."""
        for name in ("standard_deviation", "sensitivity"):
            self._set(name, checks.positive(getattr(self, name), name))
        for name in ("dimension", "clients"):
            self._set(name, checks.count(getattr(self, name), name, least=1))


@dataclass(frozen=True)
class Skellam(Event):
    """Integers plus symmetric Skellam noise of the given total variance in every coordinate.

    Attributes:
        variance: Variance of the summed noise, in grid units squared.
        sensitivity: L2 sensitivity, in grid units.
        sensitivity_l1: L1 sensitivity, in grid units.
    """

    kind: ClassVar[str] = "skellam"
    variance: float
    sensitivity: float
    sensitivity_l1: float

    def __post_init__(self) -> None:
        """Refuse what is not positive (SQ-209)."""
        for name in ("variance", "sensitivity", "sensitivity_l1"):
            self._set(name, checks.positive(getattr(self, name), name))


@dataclass(frozen=True)
class ZCDP(Event):
    """Anything known to be ρ-zero-concentrated differentially private (add-or-remove)."""

    kind: ClassVar[str] = "zcdp"
    rho: float

    def __post_init__(self) -> None:
        """Refuse NaN, infinities and negatives (SQ-206)."""
        self._set("rho", checks.noise_multiplier(self.rho, "rho"))


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Anything known only to be (ε, δ)-differentially private (add-or-remove)."""

    kind: ClassVar[str] = "approximate-dp"
    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        """Refuse ε that is not finite and ≥ 0 (SQ-206) and δ outside [0, 1) (SQ-201)."""
        self._set("epsilon", checks.noise_multiplier(self.epsilon, "epsilon"))
        self._set("delta", checks.delta_or_zero(self.delta))


@dataclass(frozen=True)
class QuantileEstimate(Event):
    """The noisy count behind adaptive clipping: each person adds +½ or −½.

    Source: Andrew et al. 2021 (1905.03871), with the count centred.
    """

    kind: ClassVar[str] = "quantile-estimate"
    standard_deviation: float

    def __post_init__(self) -> None:
        """Refuse NaN, infinities and negatives (SQ-206)."""
        self._set(
            "standard_deviation",
            checks.noise_multiplier(self.standard_deviation, "standard_deviation"),
        )


@dataclass(frozen=True)
class MatrixMechanism(Event):
    """Correlated noise C⁻¹Z over a whole run: one Gaussian release of C·G.

    Attributes:
        noise_multiplier: Standard deviation of Z over one participation's clip bound.
        sensitivity: Largest L2 norm of C·x over all participation patterns allowed, for one
            unit with contributions of norm 1 (`matrix.py` computes it).
    """

    kind: ClassVar[str] = "matrix-mechanism"
    noise_multiplier: float
    sensitivity: float

    def __post_init__(self) -> None:
        """Refuse bad numbers (SQ-206, SQ-209)."""
        self._set("noise_multiplier", checks.noise_multiplier(self.noise_multiplier))
        self._set("sensitivity", checks.positive(self.sensitivity, "sensitivity"))


@dataclass(frozen=True)
class TreeAggregation(Event):
    """Binary-tree prefix sums over `leaves` steps, every node noised.

    Attributes:
        noise_multiplier: Node noise over one participation's clip bound.
        leaves: Number of steps the tree covers.
        participations: How often one unit may take part.
        separation: Least number of steps between two of its participations.
    """

    kind: ClassVar[str] = "tree-aggregation"
    noise_multiplier: float
    leaves: int
    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        """Refuse bad numbers (SQ-206, SQ-208)."""
        self._set("noise_multiplier", checks.noise_multiplier(self.noise_multiplier))
        for name in ("leaves", "participations", "separation"):
            self._set(name, checks.count(getattr(self, name), name, least=1))
