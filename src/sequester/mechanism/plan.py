"""A plan: everything that decides the guarantee, frozen; event and sensitivity are derived."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sequester import accounting
from sequester.accounting import Composed, Event, Gaussian, SelfComposed
from sequester.core.errors import UsageError
from sequester.core.values import check_delta
from sequester.mechanism.adaptive import AdaptiveClipping
from sequester.sampling import fixed_size_event, poisson_event

UNITS = ("person", "window", "step")
GRID_BITS = 24
# Norms are computed in the model's precision; the noise covers their rounding (proof note).
FLOAT_SLACK = 1e-5


@dataclass(frozen=True)
class Plan:
    """One training run under DP-SGD, before it happens.

    Two numbers that must agree are one field: the accounting event and the sensitivity come
    from here and are never typed in.

    Attributes:
        unit: Whose presence is hidden: "person" (default of the house), "window" or "step".
        population: Declared public number of units that could have taken part.
        sampling_rate: Probability of a unit to take part in one step.
        steps: Number of noisy steps.
        noise_multiplier: Noise over sensitivity of one step, everything released in the
            step together (gradient, and the clipping count if adaptive).
        clip: Bound on one unit's contribution in L2 (the first one, if adaptive).
        parameters: Number of trained coordinates.
        delta: The δ at which ε is stated.
        adaptive: How the bound follows a quantile of the norms, or is counted against; None
            keeps it fixed and counts nothing.
        setup: What was released privately before step 0 (ranges, means, vocabularies).
        adjacency: Neighbouring data sets differ by adding or removing one unit.
        mechanism: What a step does to its lot where that is not one Gaussian of
            `noise_multiplier`: integer noise that many members share.
        lot_size: Exactly this many units in every lot, drawn without replacement; 0 for Poisson
            lots. `sampling_rate` is then `lot_size / population`, and neighbours exchange one
            unit (adjacency "replace-one"), since such lots tell how many units there are.
    """

    unit: str
    population: int
    sampling_rate: float
    steps: int
    noise_multiplier: float
    clip: float
    parameters: int
    delta: float
    adaptive: AdaptiveClipping | None = None
    setup: tuple[Event, ...] = ()
    adjacency: str = "add-or-remove"
    mechanism: Event | None = None
    lot_size: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            UsageError: SQ-201, 214, 233, 234, 235 or 244.
        """
        check_delta(self.delta)
        if self.unit not in UNITS:
            raise UsageError(233, f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise UsageError(
                214,
                f"noise_multiplier must be > 0, got {self.noise_multiplier}; larger is more "
                "private. 'sequester calibrate' picks one",
            )
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise UsageError(
                234, f"clip must be > 0, got {self.clip}; it bounds one person's contribution"
            )
        if self.population < 1 or self.steps < 1 or self.parameters < 1:
            raise UsageError(
                235,
                "population, steps and parameters must be ≥ 1, got "
                f"{self.population}, {self.steps} and {self.parameters}",
            )
        poisson_event(self.sampling_rate, Gaussian(self.noise_multiplier))
        if self.lot_size:
            self._check_fixed_size()

    def _check_fixed_size(self) -> None:
        agrees = self.sampling_rate == self.lot_size / self.population
        if not (0 < self.lot_size <= self.population and agrees and self.mechanism is None):
            raise UsageError(
                244,
                f"a lot of fixed size needs 1 ≤ size ≤ population, got {self.lot_size} of "
                f"{self.population}; the rate follows from both",
            )
        if self.adjacency != "replace-one":
            raise UsageError(
                244, "lots of fixed size hide an exchange; set adjacency = 'replace-one'"
            )

    @property
    def expected_lot(self) -> float:
        """The denominator of every mean: public, unlike the size of the lot drawn."""
        return self.population * self.sampling_rate

    @property
    def gradient_noise_multiplier(self) -> float:
        """Noise of the gradient alone; more than `noise_multiplier` if the count is noised too."""
        if self.adaptive is None:
            return self.noise_multiplier
        return self.adaptive.gradient_noise_multiplier(self.noise_multiplier)

    def step_event(self) -> Event:
        """What one step releases."""
        mechanism = self.mechanism or Gaussian(self.noise_multiplier)
        if self.lot_size:
            return fixed_size_event(self.population, self.lot_size, mechanism)
        return poisson_event(self.sampling_rate, mechanism)

    def event(self, steps: int | None = None) -> Event:
        """What `steps` steps (all of them by default) and the set-up release together."""
        count = self.steps if steps is None else steps
        training = (SelfComposed(self.step_event(), count),) if count else ()
        parts = self.setup + training
        return parts[0] if len(parts) == 1 else Composed(parts)

    def grid(self, clip: float | None = None) -> float:
        """The spacing to which sums and noise are rounded."""
        return (self.clip if clip is None else clip) * 2.0**-GRID_BITS

    def sensitivity(self, clip: float | None = None) -> float:
        """How far one unit can move the rounded sum in L2, rounding included."""
        bound = self.clip if clip is None else clip
        return bound * (1.0 + FLOAT_SLACK) + self.grid(bound) * math.sqrt(self.parameters)

    def epsilon(self, delta: float | None = None, *, accountant: str = "pld") -> float:
        """Certified upper bound on ε of the whole plan at `delta` (the plan's by default)."""
        return accounting.epsilon(
            self.event(),
            self.delta if delta is None else delta,
            adjacency=self.adjacency,
            accountant=accountant,
        )
