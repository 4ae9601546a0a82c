"""Secure aggregation in a study, as numbers: members, grid, noise shares, event.

Proof: `proofs/federated_placements.md`, section "Masked sums".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sequester import secagg
from sequester.accounting import (
    Composed,
    DiscreteGaussian,
    Event,
    SelfComposed,
    Skellam,
    calibrate,
    epsilon,
    to_json,
)
from sequester.core.errors import UsageError
from sequester.federated.settings import SecureSum
from sequester.mechanism.plan import FLOAT_SLACK, GRID_BITS
from sequester.sampling import poisson_event
from sequester.secagg.encoding import Encoding
from sequester.secagg.plan import GRAINS
from sequester.secagg.rotation import padded_length
from sequester.training.planning import most_steps
from sequester.training.resumption import Begun
from sequester.training.study import Study

SITE_GRAIN = 0.02
"""Sites round sums, not single people's vectors, and a person moves each coordinate's rounding by
up to one step: a grid of this fraction of clip/√d makes that 2 % of the noise."""
LARGEST_MARGIN = 0.1
EXTRAS = 2
"""Coordinates beside an exact sum: a weight, or the two counts of adaptive clipping."""


@dataclass(frozen=True)
class Sums:
    """What the members of a run add up; public numbers only.

    Attributes:
        chosen: The study's `[federated.secagg]`.
        members: Enrolled members: sites, or clients. All of them take part in every round;
            whoever is not drawn adds zeros.
        size: Coordinates that travel.
        sites: Members are sites that add up their people, not single persons.
        most: Most people whose contributions one sum may hold: the declared population.
    """

    chosen: SecureSum
    members: int
    size: int
    sites: bool
    most: int

    def __post_init__(self) -> None:
        """Refuse cohorts in which nobody hides.

        Raises:
            UsageError: SQ-624.
        """
        if self.members < self.chosen.min_cohort:
            raise UsageError(
                624,
                f"[federated.secagg] {self.members} members are enrolled and each wants to hide "
                f"among {self.chosen.min_cohort} or more; enrol more or lower min_cohort knowingly",
                where="federated.secagg.min_cohort",
            )
        if not self.sites and self.members > self.most:
            raise UsageError(
                624,
                f"[federated.secagg] {self.members} clients are enrolled and data.population "
                f"declares {self.most}; the declared number bounds the sum",
                where="data.population",
            )

    @property
    def noisy(self) -> bool:
        """Whether members add noise shares."""
        return self.chosen.noise != "none"

    @property
    def threats(self) -> secagg.Threats:
        """What a round withstands."""
        chosen = self.chosen
        return secagg.Threats(chosen.corrupt, chosen.dropout, active=not chosen.semi_honest)

    @property
    def fewest(self) -> int:
        """Fewest vectors in an opened sum."""
        return self.members - self.threats.counts(self.members)[1]

    def honest(self, survivors: int) -> int:
        """Noise shares that count among those that arrived."""
        return survivors - self.threats.counts(self.members)[0]

    @property
    def extras(self) -> int:
        """Coordinates beside the vector."""
        return 0 if self.noisy else EXTRAS

    def round_plan(self, clip: float, multiplier: float) -> secagg.RoundPlan:
        """The protocol's plan of one round.

        Raises:
            UsageError: SQ-717 or SQ-718 for what cannot work, SQ-624 for an exact sum so large
                that its grid would cost a tenth of the clip.
        """
        common: dict[str, Any] = {
            "dropout": self.chosen.dropout,
            "corrupt": self.chosen.corrupt,
            "active": not self.chosen.semi_honest,
        }
        if self.noisy and not self.sites:
            plan = secagg.plan(
                self.members,
                self.size,
                clip=clip,
                noise_multiplier=multiplier,
                noise=self.chosen.noise,
                **common,
            )
        else:
            # Together the members' integers reach most·clip at the most, however they share it.
            plan = secagg.plan(
                self.members,
                self.size + self.extras,
                clip=self.most * clip / self.members,
                granularity=SITE_GRAIN * clip / math.sqrt(self.size) if self.noisy else None,
                bits=32,
                **common,
            )
            if self.margin(plan) > LARGEST_MARGIN * clip:
                raise UsageError(
                    624,
                    f"[federated.secagg] exact sums of {self.most} people in {self.size} "
                    "coordinates do not fit 32-bit words; set noise = 'discrete-gaussian'",
                    where="federated.secagg.noise",
                )
        return replace(plan, min_cohort=max(plan.min_cohort, self.chosen.min_cohort))

    def margin(self, plan: secagg.RoundPlan) -> float:
        """How much an exact contribution is clipped further, so that rounding keeps the bound."""
        return 0.0 if self.noisy else plan.encoding.granularity * math.sqrt(self.size)

    def site_sensitivity(self) -> float:
        """How far one person moves a site's integers in L2, in grid units.

        The clipped sum is rounded twice to a nearest multiple, each coordinate moving by at most
        one step of either grid.
        """
        root = math.sqrt(self.size)
        return root / SITE_GRAIN * (1.0 + FLOAT_SLACK + 2.0**-GRID_BITS * root) + root

    def share(self, multiplier: float) -> float:
        """Standard deviation of a site's noise share, in grid units."""
        return multiplier * self.site_sensitivity() / math.sqrt(self.honest(self.fewest))

    def event(self, multiplier: float, survivors: int | None = None) -> Event:
        """What one round does to its lot.

        Args:
            multiplier: Noise of the fewest honest survivors over the clip.
            survivors: Vectors in the sum; None for the fewest.
        """
        honest = self.honest(self.fewest if survivors is None else survivors)
        if self.sites:
            share, bound, size = self.share(multiplier), self.site_sensitivity(), self.size
            bound_l1 = min(math.sqrt(size) * bound, bound**2)
        else:
            size = padded_length(self.size)
            grid = GRAINS[self.chosen.noise] / math.sqrt(size)
            share = multiplier / (grid * math.sqrt(self.honest(self.fewest)))
            encoding = Encoding(self.size, 1.0, grid, 32, self.chosen.noise, share)
            bound, bound_l1 = encoding.sensitivity, encoding.sensitivity_l1
        if self.chosen.noise == "skellam":
            return Skellam(honest * share**2, bound, bound_l1)
        return DiscreteGaussian(share, bound, size, clients=honest)


def settle(sums: Sums, study: Study, begun: Begun) -> Begun:
    """Solve for the noise shares, or for the rounds that fit, under the event that will run.

    Raises:
        UsageError: SQ-270 if no noise, or not even one round, meets the target; SQ-717 if fewer
            than two honest shares would be left.
    """
    privacy, rate, steps = study.privacy, study.training.sampling_rate, study.training.steps
    sums.round_plan(privacy.clip, privacy.noise_multiplier or 1.0)

    def after(multiplier: float, rounds: int) -> Event:
        return SelfComposed(poisson_event(rate, sums.event(multiplier)), rounds)

    def spent(multiplier: float, rounds: int) -> float:
        return epsilon(after(multiplier, rounds), privacy.delta, adjacency="zero-out")

    multiplier, cut = privacy.noise_multiplier, False
    if multiplier is None:
        target = float(privacy.epsilon or 0.0)
        try:
            multiplier = calibrate.noise_for(
                lambda z: after(z, steps), target, privacy.delta, adjacency="zero-out"
            )
        except UsageError as refusal:
            raise UsageError(270, refusal.message, where="privacy.epsilon") from None
    elif privacy.epsilon is not None and spent(multiplier, steps) > privacy.epsilon:
        ceiling, fixed = privacy.epsilon, multiplier
        steps, cut = most_steps(steps, lambda n: spent(fixed, n) <= ceiling), True
        if not steps:
            raise UsageError(
                270,
                f"not one round fits under epsilon {ceiling} at noise_multiplier {multiplier}",
                where="privacy.noise_multiplier",
            )
    return msgspec.structs.replace(
        begun,
        noise_multiplier=multiplier,
        steps=steps,
        cut=cut,
        mechanism=to_json(sums.event(multiplier)),
    )


def happened(sums: Sums, multiplier: float, rate: float, arrived: list[int]) -> Event:
    """The event of rounds whose sums held so many shares each: more shares, more noise."""
    parts = [
        SelfComposed(poisson_event(rate, sums.event(multiplier, held)), arrived.count(held))
        for held in sorted(set(arrived))
    ]
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))
