"""What touched the data: a typed vocabulary of privacy events.

The vocabulary only grows. A class or a field is never renamed or removed, because ledgers on
disk hold events for as long as the data they charge. Events carry no ε: accountants compute
it from them (`accountant.py`), so a better accountant improves every old claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from sequester.accounting import checks
from sequester.accounting.mechanisms import (
    ZCDP,
    ApproximateDP,
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    MatrixMechanism,
    QuantileEstimate,
    RandomizedResponse,
    Skellam,
    TreeAggregation,
)
from sequester.core.errors import UsageError

__all__ = [
    "VOCABULARY",
    "ZCDP",
    "ApproximateDP",
    "Composed",
    "CyclicPoissonSampled",
    "DiscreteGaussian",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "MatrixMechanism",
    "PoissonSampled",
    "QuantileEstimate",
    "RandomizedResponse",
    "RecordsPoissonSampled",
    "RepeatAndSelect",
    "SelfComposed",
    "Shuffled",
    "Skellam",
    "TreeAggregation",
    "TruncatedPoissonSampled",
]

# --- who takes part --------------------------------------------------------------------------


@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a lot in which each unit takes part independently with `sampling_rate`."""

    kind: ClassVar[str] = "poisson-sampled"
    sampling_rate: float
    event: Event

    def __post_init__(self) -> None:
        """Refuse a rate outside [0, 1] (SQ-207)."""
        self._set("sampling_rate", checks.rate(self.sampling_rate))
        _require_event(self.event)


@dataclass(frozen=True)
class TruncatedPoissonSampled(Event):
    """Poisson sampling whose lots are cut at random to `cap` units.

    `population` is public here and counts all units; the pair with one unit fewer is meant by
    add-or-remove. Source: Ganesh 2025 / dp-accounting's mixture bound.
    """

    kind: ClassVar[str] = "truncated-poisson-sampled"
    sampling_rate: float
    population: int
    cap: int
    event: Event

    def __post_init__(self) -> None:
        """Refuse bad rates and counts (SQ-207, SQ-208)."""
        self._set("sampling_rate", checks.rate(self.sampling_rate))
        self._set("population", checks.count(self.population, "population", least=1))
        self._set("cap", checks.count(self.cap, "cap", least=1))
        _require_event(self.event)


@dataclass(frozen=True)
class FixedSizeSampled(Event):
    """`event` on exactly `size` of `population` units, drawn without replacement."""

    kind: ClassVar[str] = "fixed-size-sampled"
    population: int
    size: int
    event: Event

    def __post_init__(self) -> None:
        """Refuse counts below 1 and a lot larger than the population (SQ-208)."""
        self._set("population", checks.count(self.population, "population", least=1))
        self._set("size", checks.count(self.size, "size", least=1))
        if self.size > self.population:
            raise UsageError(
                208, f"size must be at most the population {self.population}, got {self.size}"
            )
        _require_event(self.event)


@dataclass(frozen=True)
class Shuffled(Event):
    """`epochs` passes over shuffled data cut into `batches` batches, `event` on each batch.

    Each unit takes part once per epoch. No amplification is claimed: none is proven, and
    attacks get close to the unamplified value (Chua et al. 2024, 2403.17673).
    """

    kind: ClassVar[str] = "shuffled"
    batches: int
    epochs: int
    event: Event

    def __post_init__(self) -> None:
        """Refuse bad counts (SQ-208)."""
        self._set("batches", checks.count(self.batches, "batches", least=1))
        self._set("epochs", checks.count(self.epochs, "epochs"))
        _require_event(self.event)


@dataclass(frozen=True)
class CyclicPoissonSampled(Event):
    """Step t draws by Poisson from group t mod `cycle` of a partition fixed in advance.

    A unit of one group meets ⌈steps/cycle⌉ draws. With a matrix mechanism of at most `cycle`
    bands this is also the event of amplified banded noise (Choquette-Choo et al. 2023,
    2306.08153), with `event` = Gaussian(noise over the largest column norm).
    """

    kind: ClassVar[str] = "cyclic-poisson-sampled"
    sampling_rate: float
    cycle: int
    steps: int
    event: Event

    def __post_init__(self) -> None:
        """Refuse bad rates and counts (SQ-207, SQ-208)."""
        self._set("sampling_rate", checks.rate(self.sampling_rate))
        self._set("cycle", checks.count(self.cycle, "cycle", least=1))
        self._set("steps", checks.count(self.steps, "steps"))
        _require_event(self.event)


@dataclass(frozen=True)
class RecordsPoissonSampled(Event):
    """Poisson sampling of records, seen by a person who owns up to `records` of them.

    Each of the person's records is drawn independently and bounded on its own.
    """

    kind: ClassVar[str] = "records-poisson-sampled"
    sampling_rate: float
    records: int
    event: Event

    def __post_init__(self) -> None:
        """Refuse bad rates and counts (SQ-207, SQ-208)."""
        self._set("sampling_rate", checks.rate(self.sampling_rate))
        self._set("records", checks.count(self.records, "records", least=1))
        _require_event(self.event)


# --- several events --------------------------------------------------------------------------


@dataclass(frozen=True)
class SelfComposed(Event):
    """`event`, `count` times; what is chosen in between may depend on earlier outputs."""

    kind: ClassVar[str] = "self-composed"
    event: Event
    count: int

    def __post_init__(self) -> None:
        """Refuse counts that are negative or not whole (SQ-208)."""
        _require_event(self.event)
        self._set("count", checks.count(self.count, "count"))


@dataclass(frozen=True)
class Composed(Event):
    """Several events on the same data; an empty one has touched nothing."""

    kind: ClassVar[str] = "composed"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        """Take any sequence of events (SQ-211 otherwise)."""
        if isinstance(self.events, Event) or not isinstance(self.events, list | tuple):
            raise UsageError(211, f"events must be a sequence of events, got {self.events!r}")
        self._set("events", tuple(self.events))
        for event in self.events:
            _require_event(event)


@dataclass(frozen=True)
class RepeatAndSelect(Event):
    """`event` repeated a random number of times, only the best outcome released.

    Attributes:
        event: One run.
        mean: Expected number of runs, ≥ 1.
        shape: Of the number's distribution: 0 logarithmic, 1 geometric, else truncated
            negative binomial; ∞ is Poisson. Source: Papernot & Steinke 2022 (2110.03620).
    """

    kind: ClassVar[str] = "repeat-and-select"
    event: Event
    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a mean below 1 and a negative shape (SQ-209)."""
        _require_event(self.event)
        mean = checks.real(self.mean, "mean")
        shape: Any = self.shape
        shape = math.inf if shape == math.inf else checks.real(shape, "shape")
        if not (mean >= 1.0 and shape >= 0.0):
            raise UsageError(
                209, f"mean must be ≥ 1 and shape ≥ 0 (∞ for Poisson), got {mean} and {shape}"
            )
        self._set("mean", mean)
        self._set("shape", shape)


def _require_event(value: object) -> None:
    if not isinstance(value, Event) or type(value) is Event:
        raise UsageError(211, f"an event of sequester.accounting is needed here, got {value!r}")


VOCABULARY: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Gaussian,
        Laplace,
        RandomizedResponse,
        DiscreteGaussian,
        Skellam,
        ZCDP,
        ApproximateDP,
        QuantileEstimate,
        MatrixMechanism,
        TreeAggregation,
        PoissonSampled,
        TruncatedPoissonSampled,
        FixedSizeSampled,
        Shuffled,
        CyclicPoissonSampled,
        RecordsPoissonSampled,
        SelfComposed,
        Composed,
        RepeatAndSelect,
    )
}
