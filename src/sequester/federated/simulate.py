"""Rounds in one process: thousands of clients, the same state machine as on a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.federated import algorithms as alg
from sequester.federated import round as machine
from sequester.federated.driver import Outcome, drive
from sequester.federated.gate import Accepted, Limits
from sequester.federated.masking import Masking, Ticket
from sequester.federated.messages import Instruction, Layout, Reason, Sum, version_of
from sequester.federated.noise import Sealed, release_sum, seal_sites, seal_updates
from sequester.mechanism import NoiseStream, Plan


class Crowd(Protocol):
    """Who answers instructions: `clients.Devices` or `clients.Silos`."""

    @property
    def layout(self) -> Layout:
        """Of what is sent."""
        ...

    @property
    def bytes_sent(self) -> int:
        """Bytes of updates on the wire so far."""
        ...

    def answer(
        self, instructions: Sequence[Instruction], state: alg.ServerState, clip: float
    ) -> Iterable[machine.Event]:
        """One event for each instruction."""
        ...

    def settle(self, number: int, clients: Sequence[int]) -> None:
        """Hear whose updates are in the sum of round `number`."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps of the crowd, by a name that says whose it is."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `arrays` gave; other names are not the crowd's."""
        ...


class Store(Protocol):
    """What survives a crash."""

    def seal(self, simulation: Simulation, sealed: Sealed) -> None:
        """Keep the sum of the present round; written once, before its noise exists."""
        ...

    def save(self, simulation: Simulation) -> None:
        """Keep the state after a round."""
        ...


class Forgetful:
    """Keeps nothing: experiments that need not resume."""

    def seal(self, simulation: Simulation, sealed: Sealed) -> None:
        """Nothing."""

    def save(self, simulation: Simulation) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Guarantee:
    """How rounds are made private by the server.

    Attributes:
        plan: Clip, noise, public denominator.
        stream: Noise; one draw a round.
        sites: The crowd sends sums of sites instead of single persons' updates.
    """

    plan: Plan
    stream: NoiseStream
    sites: bool = False


@dataclass
class Simulation:
    """A server, its crowd and its store.

    Attributes:
        run: The run's name.
        state: Model and what the server carries.
        crowd: Who answers.
        algorithm: How updates become a model.
        work: Local work, which some algorithms need to know.
        cohort: Draws the clients of a round.
        guarantee: None without privacy at the server.
        weighting: How much a client counts.
        rule: Robust rule instead of the algorithm's mean; None for the mean.
        expected: Public expected number of clients; the denominator where each update is
            private on its own. 0 divides by the accepted weights.
        store: What survives.
        allowed: Whether the ledger's reservation covers a round.
        committed: Tells the ledger that a round ran.
        quorum: Of rounds without a guarantee.
        clip: The present bound.
        next_round: The round to run next.
        secret: Of nonces.
        limits: Of the gate.
        masking: Opens sums only; None shows the server every update.
    """

    run: str
    state: alg.ServerState
    crowd: Crowd
    algorithm: alg.Algorithm
    work: alg.LocalWork
    cohort: Callable[[int], NDArray[np.int64]]
    guarantee: Guarantee | None = None
    weighting: alg.Weighting = field(default_factory=alg.Uniform)
    rule: alg.Rule | None = None
    expected: float = 0.0
    store: Store = field(default_factory=Forgetful)
    allowed: Callable[[int], bool] = lambda _: True
    committed: Callable[[int], None] = lambda _: None
    quorum: int = 1
    clip: float = 0.0
    next_round: int = 0
    secret: bytes = b"simulation"
    limits: Limits = field(default_factory=Limits)
    masking: Masking | None = None
    sealed: Sealed | None = None
    _direction: Sum | None = field(default=None, init=False)

    def run_round(self) -> Outcome:
        """One round; after a crash, the rest of the round that was sealed."""
        private = self.guarantee is not None or self.expected > 0
        resumed = self.sealed is not None
        order = machine.Order(
            run=self.run,
            round=self.next_round,
            version=version_of(self.model_layout, self.state.model.astype(np.float32)),
            cohort=() if resumed else tuple(self.cohort(self.next_round).tolist()),
            layout=self.crowd.layout,
            deadline=1.0,
            quorum=self.quorum,
            private=private,
            secret=self.secret,
            limits=self.limits,
        )
        made = machine.Round.resume_sealed(order) if resumed else machine.Round(order)
        outcome = drive(made, _Office(self), sealed=resumed)
        if not outcome.done and self.allowed(self.next_round):
            self.next_round += 1  # abandoned for lack of answers: the next one is another
        return outcome

    @property
    def model_layout(self) -> Layout:
        """Of the model: what the version is computed over."""
        return self.crowd.layout

    # ---- what the office does, on this state --------------------------------------------

    def aggregate(self, accepted: Sequence[Accepted]) -> None:
        """The sum to be sealed, or the direction itself where no noise is added."""
        self.crowd.settle(self.next_round, [update.client for update in accepted])
        size = len(self.state.model)
        if self.masking is not None:
            self._unmask(self.masking, accepted)
            return
        if self.guarantee is not None:
            if self.guarantee.sites:
                self.sealed = seal_sites(accepted, size)
            else:
                weights = self.weighting.raw(accepted)
                self.sealed = seal_updates(accepted, weights, self.clip, size)
            return
        raw = self.weighting.raw(accepted)
        scale = self.expected or float(raw.sum())
        weights = raw / scale if len(raw) else raw
        if not accepted:
            self._direction = np.zeros(size)
        elif self.rule is not None:
            self._direction = self.rule(accepted, weights)
        else:
            self._direction = self.algorithm.combine(self.state, accepted, weights, self.work)

    def _unmask(self, masking: Masking, accepted: Sequence[Accepted]) -> None:
        """As `aggregate`, from the masked sum alone."""
        plan = None if self.guarantee is None else self.guarantee.plan
        ticket = Ticket(
            self.next_round,
            version_of(self.model_layout, self.state.model.astype(np.float32)),
            self.clip,
            private=plan is not None,
            counted=plan is not None and plan.adaptive is not None,
        )
        opened = masking.open(ticket, accepted, self.weighting.raw(accepted))
        if plan is None:
            self._direction = opened.total / opened.weight if opened.weight else opened.total * 0
        else:
            self.sealed = Sealed(opened.total, opened.below, opened.units)

    @property
    def bytes_sent(self) -> int:
        """Bytes that clients sent: updates in clear, or everything the protocol sends."""
        return self.crowd.bytes_sent if self.masking is None else self.masking.bytes_sent

    def seal(self) -> None:
        """Keep the sum; nothing to keep without a guarantee, since repeating costs nothing."""
        if self.sealed is not None:
            self.store.seal(self, self.sealed)

    def release(self) -> None:
        """Draw the round's noise, once for the sealed sum, and move the model."""
        if self.guarantee is not None and self.sealed is not None:
            self._direction, self.clip = self._noised(self.guarantee, self.sealed)
        if self._direction is not None:
            self.algorithm.apply(self.state, self._direction)
        self._direction = self.sealed = None

    def _noised(self, guarantee: Guarantee, sealed: Sealed) -> tuple[Sum, float]:
        """The noisy mean, and the next bound."""
        if guarantee.plan.mechanism is not None:  # the members' noise shares are in the sum
            return sealed.total / guarantee.plan.expected_lot, self.clip
        return release_sum(
            sealed,
            plan=guarantee.plan,
            stream=guarantee.stream,
            step=self.next_round,
            clip=self.clip,
        )

    def commit(self) -> None:
        """Tell the ledger."""
        self.committed(self.next_round)

    def save(self) -> None:
        """Keep the new state."""
        self.next_round += 1
        self.store.save(self)


@dataclass
class _Office:
    """`driver.Office` on a simulation."""

    simulation: Simulation

    def reserve(self, key: str) -> bool:
        return self.simulation.allowed(self.simulation.next_round)

    def exchange(self, instructions: Sequence[Instruction]) -> Iterable[machine.Event]:
        simulation = self.simulation
        masking = simulation.masking
        for event in simulation.crowd.answer(instructions, simulation.state, simulation.clip):
            if masking is not None and isinstance(event, machine.Lost):
                masking.lost |= {event.client} if event.reason is Reason.LOST else set()
            yield event

    def aggregate(self, accepted: Sequence[Accepted]) -> None:
        self.simulation.aggregate(accepted)

    def seal(self) -> None:
        self.simulation.seal()

    def release(self) -> None:
        self.simulation.release()

    def commit(self) -> None:
        self.simulation.commit()

    def save(self) -> None:
        self.simulation.save()
