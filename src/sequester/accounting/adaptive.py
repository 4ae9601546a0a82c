"""Runs whose parameters are chosen after looking at earlier outputs: filters and odometers.

A loss distribution composes mechanisms that were fixed in advance. If the next noise, rate or
length depends on what was released, only these bounds are valid. A *filter* has its ceiling
fixed in advance and says when to stop; an *odometer* says at any moment, including one chosen
by looking, what has been spent. Both count Rényi divergence at orders chosen *before* the
first release; the best order in hindsight is not covered.

Sources: Feldman & Zrnic 2021 (2008.11193), theorem 3.1 (Rényi filter); Smith & Thakurta 2022
(2210.17520) and Koskela et al. 2023 (Gaussian filter); Whitehouse, Ramdas, Rogers & Wu 2023
(2203.05481), sections 4 and 5 (time-uniform bounds). Proof note: proofs/adaptive_composition.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sequester.accounting import checks, gaussian, renyi
from sequester.accounting.accountant import best_order, only_gaussian
from sequester.accounting.events import Event, SelfComposed
from sequester.accounting.lower import Parts, lower
from sequester.core.errors import UsageError
from sequester.core.values import check_delta

# Orders among which an odometer may choose, and what each one costs: δ is split over them.
ODOMETER_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0)


@dataclass
class Filter:
    """Admits events chosen adaptively until (ε, δ) would be passed; never beyond it.

    With `order` None only plain Gaussian noise is admitted and the filter is exact (μ adds in
    squares). Otherwise the Rényi divergence at the one given order is counted.

    Attributes:
        epsilon: The ceiling.
        delta: The δ of the ceiling.
        order: The Rényi order, fixed in advance (`order_for` picks one for a plan).
        adjacency: What makes two data sets neighbours.
    """

    epsilon: float
    delta: float
    order: float | None
    adjacency: str = "add-or-remove"
    _spent: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Check the ceiling (SQ-201, SQ-202) and the order (SQ-216)."""
        check_delta(self.delta)
        checks.adjacency(self.adjacency)
        if not checks.real(self.epsilon, "epsilon") > 0.0:
            raise UsageError(202, f"epsilon must be > 0, got {self.epsilon}")
        if self.order is not None:
            renyi.check_orders(self.order)

    @property
    def name(self) -> str:
        """How a claim calls this bound."""
        return "gaussian-filter" if self.order is None else f"renyi-filter({self.order:g})"

    @property
    def capacity(self) -> float:
        """The total that may be spent: μ² for Gaussians, else Rényi divergence at the order."""
        if self.order is None:
            return _largest_mu(self.epsilon, self.delta) ** 2
        bare = math.log1p(-1.0 / self.order) - (math.log(self.delta) + math.log(self.order)) / (
            self.order - 1.0
        )
        return max(0.0, self.epsilon - bare)

    @property
    def spent(self) -> float:
        """What has been charged, in the unit of `capacity`."""
        return self._spent

    @property
    def spent_epsilon(self) -> float:
        """ε at `delta` of what has been charged, had the run been meant to end here.

        For a moment chosen by looking at outputs use an `Odometer`.
        """
        if self._spent == 0.0:
            return 0.0
        if self.order is None:
            return gaussian.epsilon(self.delta, math.sqrt(self._spent))
        return renyi.epsilon_at(self.order, self._spent, self.delta)

    def cost(self, event: Event) -> float:
        """What `event` takes from the capacity.

        Raises:
            UsageError: SQ-211 if the event has no Rényi curve, or is not Gaussian although
                this filter counts Gaussians.
        """
        return _cost(lower(event, self.adjacency), self.order)

    def admits(self, event: Event) -> bool:
        """Whether `event` still fits; asking changes nothing."""
        return self._spent + self.cost(event) <= self.capacity

    def fits(self, step: Event, *, most: int = 10**9) -> int:
        """How many more repetitions of `step` would be admitted, up to `most`."""
        cost = self.cost(step)
        left = self.capacity - self._spent
        if cost == 0.0:
            return most
        count = min(most, max(0, math.floor(left / cost)))
        while count > 0 and self._spent + self.cost(SelfComposed(step, count)) > self.capacity:
            count -= 1
        return count

    def charge(self, event: Event) -> None:
        """Charge `event` before it runs.

        Raises:
            UsageError: SQ-217 if it does not fit; nothing is charged then.
        """
        cost = self.cost(event)
        if self._spent + cost > self.capacity:
            raise UsageError(
                217,
                f"the filter at epsilon {self.epsilon}, delta {self.delta} has "
                f"{max(0.0, self.capacity - self._spent):.6g} left and this event costs "
                f"{cost:.6g}; stop here, or use more noise or fewer steps",
            )
        self._spent += cost


def order_for(plan: Event, delta: float, *, adjacency: str = "add-or-remove") -> float:
    """The order that suits `plan` best; choose it before the first release and keep it."""
    check_delta(delta)
    return best_order(lower(plan, checks.adjacency(adjacency)), delta)[0]


@dataclass
class Odometer:
    """ε so far, valid at every moment at once, also one chosen after seeing outputs.

    With probability ≥ 1 − δ the privacy loss is below `reading` at *all* times: for each order
    exp((α−1)·loss − (α−1)·ΣD_α) is a supermartingale (Ville), and δ is split over the orders.
    """

    delta: float
    adjacency: str = "add-or-remove"
    _spent: dict[float, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Check δ (SQ-201) and the adjacency (SQ-210)."""
        check_delta(self.delta)
        checks.adjacency(self.adjacency)
        self._spent = dict.fromkeys(ODOMETER_ORDERS, 0.0)

    def charge(self, event: Event) -> None:
        """Add an event, whatever made somebody choose it."""
        parts = lower(event, self.adjacency)
        for order in ODOMETER_ORDERS:
            self._spent[order] += _cost(parts, order)

    @property
    def reading(self) -> float:
        """Certified ε of everything charged so far."""
        if all(value == 0.0 for value in self._spent.values()):
            return 0.0
        share = math.log(len(ODOMETER_ORDERS) / self.delta)
        return min(value + share / (order - 1.0) for order, value in self._spent.items())


def _cost(parts: Parts, order: float | None) -> float:
    if order is None:
        mu = only_gaussian(parts) if parts else 0.0
        if mu is None:
            raise UsageError(
                211, "a filter without a Rényi order takes plain Gaussian noise only; give an order"
            )
        return mu * mu
    if any(part.slack > 0.0 for part, _ in parts):
        raise UsageError(
            211, "an event with its own delta cannot pass a Rényi filter; budget it separately"
        )
    return sum(count * part.renyi(order) for part, count in parts)


def _largest_mu(epsilon: float, delta: float) -> float:
    """The largest μ with δ(ε) ≤ `delta`, rounded down."""
    low, high = 0.0, 1.0
    while gaussian.epsilon(delta, high) <= epsilon:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if gaussian.epsilon(delta, middle) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def quantile_split(noise_multiplier: float, quantile_deviation: float) -> float:
    """Noise multiplier for the gradient when a noisy clipping count is released beside it.

    Together the two are worth one Gaussian of `noise_multiplier`:
    z_gradient = (z⁻² − (2σ_b)⁻²)^(−1/2). Source: Andrew et al. 2021 (1905.03871), theorem 1.

    Raises:
        UsageError: SQ-218 if the count alone costs more than the whole.
    """
    whole = checks.positive(noise_multiplier, "noise_multiplier")
    count = checks.positive(quantile_deviation, "quantile_deviation")
    if not whole < 2.0 * count:
        raise UsageError(
            218,
            f"noise_multiplier must be < 2·quantile_deviation = {2.0 * count:g}, got {whole}; "
            "add more noise to the clipping count or choose a fixed clip",
        )
    return 1.0 / math.sqrt(whole**-2 - (2.0 * count) ** -2)
