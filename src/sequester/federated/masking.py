"""Rounds whose updates the server never sees: the real protocol between simulated members.

The members' own work (clip, round, add a noise share, mask) and the server's (open the sum) meet
only in `secagg`'s messages. Every enrolled member takes part in every round: whoever was not
drawn, has no data or was refused by its own checks adds zeros and its share, so that neither
silence nor the cohort's size tells the server anything about anybody's data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sequester import secagg
from sequester.core.errors import LedgerRefusal, VerificationError
from sequester.core.rng import Keystream, public_generator
from sequester.federated.combinations import WEIGHT_ONE
from sequester.federated.gate import Accepted
from sequester.federated.messages import Sum
from sequester.federated.round import Unsummable
from sequester.federated.shares import Sums, happened
from sequester.secagg import sampler
from sequester.secagg.faults import Faults
from sequester.secagg.simulator import PHASES, RoundContext, RoundReport


@dataclass(frozen=True)
class Ticket:
    """Which round it is.

    Attributes:
        number: From 0.
        version: Of the model that every member received.
        clip: The bound in force.
        private: Whether a guarantee is claimed, so that members do not send their weights.
        counted: Whether adaptive clipping counts who stayed below the bound.
    """

    number: int
    version: str
    clip: float
    private: bool
    counted: bool = False


@dataclass(frozen=True)
class Opened:
    """What the server learns of a round.

    Attributes:
        total: Sum of the members' clipped updates, with their noise shares if there are any.
        weight: Sum of their weights; 0 where they send none.
        below: People whose norm stayed below the bound, where that is counted.
        units: People in the sum, likewise.
    """

    total: Sum = field(repr=False)
    weight: float = field(default=0.0, repr=False)
    below: int = field(default=0, repr=False)
    units: int = field(default=0, repr=False)


@dataclass
class Masking:
    """The members of a run and its masked sums.

    Attributes:
        sums: Public numbers.
        multiplier: Noise of the fewest honest survivors over the clip; 0 without shares.
        run: The run's name.
        key: From which members' noise follows; see `secagg.RoundContext.key`.
        full: Coordinates of the model.
        coordinates: Those that travel in a round; None for all.
        drops: Who leaves in a round, and when: member → "advert" … "reveal".
        lost: Members whose connection broke while they trained.
        arrived: Vectors in the sum of each round so far.
        bytes_sent: By all members so far.
        faults: Who broke the last round, as far as can be said.
    """

    sums: Sums
    multiplier: float
    run: str
    key: bytes = field(repr=False)
    full: int
    coordinates: Callable[[int], NDArray[np.int64]] | None = None
    drops: Callable[[int], Mapping[int, str]] = lambda _: {}
    lost: set[int] = field(default_factory=set)
    arrived: list[int] = field(default_factory=list)
    bytes_sent: int = 0
    faults: Faults = field(default_factory=Faults)

    @cached_property
    def identities(self) -> dict[int, secagg.Identity]:
        """The members' signing keys, enrolled before the first round."""
        return secagg.enrol(range(self.sums.members))

    def site_clip(self, clip: float) -> float:
        """The bound that keeps `clip` after rounding to the sum's grid."""
        return clip - self.sums.margin(self.sums.round_plan(clip, self.multiplier))

    def open(self, ticket: Ticket, accepted: Sequence[Accepted], weights: Sum) -> Opened:
        """Sum what the members hold, through the protocol.

        Args:
            ticket: Which round.
            accepted: Updates of those who were drawn and whose own checks passed.
            weights: In [0, 1], one for each.

        Raises:
            Unsummable: too many dropped, or somebody lied: nothing was opened.
        """
        plan = self.sums.round_plan(ticket.clip, self.multiplier)
        where = self.context(ticket)
        drops = dict(self.drops(ticket.number)) | dict.fromkeys(self.lost, "masked")
        self.lost.clear()
        try:
            if self.sums.noisy and not self.sums.sites:
                updates = self._updates(ticket, accepted, weights)
                report = secagg.simulate_updates(
                    updates, plan, context=where, drops=drops, identities=self.identities
                )
                total, extras = report.total, np.zeros(2, np.int64)
            else:
                vectors = self.integers(ticket, plan, accepted, weights)
                if self.sums.noisy:
                    self.add_shares(vectors, where)
                report = secagg.simulate_round(
                    vectors, plan, context=where, drops=drops, identities=self.identities
                )
                size = self.sums.size
                total = report.total[:size] * plan.encoding.granularity
                extras = report.total[size:]
        except (VerificationError, LedgerRefusal) as problem:
            self.arrived.append(self.sums.fewest)
            raise Unsummable(str(problem)) from None
        self._note(report)
        return self.opened(ticket, total, extras)

    def context(self, ticket: Ticket) -> RoundContext:
        """Which round it is, as all members and the server compute it."""
        sums = self.sums
        facts = f"{ticket.version}|{ticket.clip!r}|{self.multiplier!r}|{sums.chosen!r}|{sums.size}"
        digest = hashlib.sha256(facts.encode()).digest()
        return RoundContext(self.run, ticket.number, digest, key=self.key)

    def _picked(self, ticket: Ticket, delta: NDArray[Any]) -> Sum:
        wide = delta[: self.full].astype(np.float64)
        return wide if self.coordinates is None else wide[self.coordinates(ticket.number)]

    def _updates(
        self, ticket: Ticket, accepted: Sequence[Accepted], weights: Sum
    ) -> dict[int, NDArray[Any]]:
        """Float updates, which `secagg` clips, rotates, rounds and noises at each member."""
        updates = dict.fromkeys(range(self.sums.members), np.zeros(self.sums.size))
        for update, weight in zip(accepted, weights, strict=True):
            clipped, _ = _clip(self._picked(ticket, update.delta), ticket.clip)
            updates[update.client] = clipped * weight
        return updates

    def integers(
        self,
        ticket: Ticket,
        plan: secagg.RoundPlan,
        accepted: Sequence[Accepted],
        weights: Sum,
    ) -> dict[int, NDArray[np.int64]]:
        """Exact integers: clipped updates of clients, or sites' sums, on the plan's grid."""
        sums, grid = self.sums, plan.encoding.granularity
        empty = np.zeros(sums.size + sums.extras, np.int64)
        vectors = {member: empty for member in range(sums.members)}
        for update, weight in zip(accepted, weights, strict=True):
            vector = empty.copy()
            value = self._picked(ticket, update.delta)
            if sums.sites:
                counts = update.delta[self.full :] if ticket.counted else (0, 0)
            else:
                value, norm = _clip(value, ticket.clip - sums.margin(plan))
                whole = round(weight * WEIGHT_ONE)
                value *= whole / WEIGHT_ONE
                counts = (norm <= ticket.clip, 1) if ticket.counted else (0, 0)
                counts = counts if ticket.private else (whole, 0)
            vector[: sums.size] = np.rint(value / grid)
            if sums.extras:
                vector[sums.size :] = [int(count) for count in counts]
            vectors[update.client] = vector
        return vectors

    def add_shares(self, vectors: dict[int, NDArray[np.int64]], where: RoundContext) -> None:
        """Each site's noise share, under a key of its own."""
        share = self.sums.share(self.multiplier)
        skellam = self.sums.chosen.noise == "skellam"
        table = sampler.skellam(share**2) if skellam else sampler.discrete_gaussian(share)
        for member, vector in vectors.items():
            stream = Keystream(where.secrets(member)[1], run=self.run, purpose="secagg share")
            vectors[member] = vector + table.draw(self.sums.size, stream, where.number)

    def _note(self, report: RoundReport) -> None:
        self.arrived.append(len(report.survivors))
        self.bytes_sent += sum(report.traffic.sent.values())

    def opened(self, ticket: Ticket, total: Sum, extras: NDArray[np.int64]) -> Opened:
        """The sum and its counts, out of what was added up."""
        if self.coordinates is not None:
            spread = np.zeros(self.full)
            spread[self.coordinates(ticket.number)] = total
            total = spread
        first, second = (int(value) for value in extras) if len(extras) else (0, 0)
        if not ticket.private:
            return Opened(total, first / WEIGHT_ONE)
        return Opened(total, below=first, units=second)

    def happened(self, rate: float) -> Any:
        """The event of the rounds so far, from the noise shares that arrived."""
        return happened(self.sums, self.multiplier, rate, self.arrived)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps."""
        return {"masking.arrived": np.array([self.bytes_sent, *self.arrived], np.int64)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take it back."""
        self.bytes_sent, *self.arrived = arrays["masking.arrived"].tolist()

    def says(self, *, listed: bool = True) -> tuple[str, ...]:
        """What a claim says about the server.

        Args:
            listed: Whether every member knows the others' keys without the server; one that may
                name them can play all the others.
        """
        plan = self.sums.round_plan(1.0, self.multiplier)
        corrupt, drops = plan.threats.counts(plan.members)
        lying = plan.threats.active and listed
        server = "even if it lies" if lying else "if it follows the protocol"
        hidden = (
            f"Members mask what they send: the server, {server} and {corrupt} of {plan.members} "
            f"members help it, sees who takes part, who drops out (at most {drops} a round) and "
            f"sums over at least {plan.min_survivors} members, no single update or weight."
        )
        unchecked = (
            "Nobody can check the numbers a member masks: one that lies spoils a sum unseen, and "
            "learns nothing more by it."
        )
        noise = ", and their noise," if self.sums.noisy else ""
        ring = (
            f"Each member checks its {plan.degree} neighbours on a ring, not the whole cohort: "
            f"that a sum holds as many members{noise} assumes that a lying server does not part "
            f"the ring; without that, {plan.threshold} or more.",
        )
        hidden_too = (hidden, unchecked, *(ring if plan.degree and lying else ()))
        if self.sums.noisy:
            return (
                *hidden_too,
                "Members add the noise in shares that nobody else knows, sized for the fewest "
                "honest survivors; the guarantee holds against the server too"
                f"{'' if lying else ', if it follows the protocol'}, for a person's data exchanged "
                "for none (who is enrolled is public).",
                "Noise is drawn as whole numbers, within 2⁻¹¹⁰ of the stated law in variation "
                "distance; the sensitivity includes the rounding to the grid.",
            )
        return (*hidden_too, "The server is trusted with the exact sums and adds the noise itself.")


def _clip(vector: Sum, bound: float) -> tuple[Sum, float]:
    """The vector within `bound`, and the norm it had; nothing of one that is not finite."""
    norm = float(np.sqrt(np.dot(vector, vector)))
    if not np.isfinite(norm):
        return np.zeros_like(vector), norm
    return vector * (min(1.0, bound / norm) if norm > 0 else 0.0), norm


def drill(members: int, share: float, run: str) -> Callable[[int], Mapping[int, str]]:
    """Dropouts on purpose: a share of the members leaves in each round, at any moment."""

    def leaving(number: int) -> Mapping[int, str]:
        seed = hashlib.blake2b(f"{run}|drill|{number}".encode(), digest_size=8).digest()
        draw = public_generator(int.from_bytes(seed, "little"))
        chosen = draw.permutation(members)[: int(share * members + 1e-9)].tolist()
        return {member: PHASES[int(draw.integers(0, len(PHASES)))] for member in chosen}

    return leaving
