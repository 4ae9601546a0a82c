"""Rounds in one process: thousands of clients, the same state machine as on a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import SequesterError, UsageError
from sequester.federated import algorithms as alg
from sequester.federated import round as machine
from sequester.federated.driver import Outcome, drive
from sequester.federated.gate import Accepted, Limits, SiteBounds
from sequester.federated.masking import Masking, Ticket
from sequester.federated.messages import Instruction, Layout, Reason, Sum, version_of
from sequester.federated.noise import PersonSum, Sealed, SiteSum, release_sum
from sequester.mechanism import NoiseStream, Plan

NOTHING = Outcome(done=True, why="", cohort=0, accepted=0, rejected={})
HELD_BYTES = 2 << 30
"""Most bytes of updates that a robust rule may hold."""


class Crowd(Protocol):
    """Who answers instructions: `clients.Devices` or `clients.Silos`.

    Attributes:
        bytes_sent: Bytes of updates on the wire so far.
    """

    bytes_sent: int

    @property
    def layout(self) -> Layout:
        """Of what is sent."""
        ...

    def answer(
        self, instructions: Sequence[Instruction], state: alg.ServerState, clip: float
    ) -> Iterable[machine.Event]:
        """One event for each instruction."""
        ...

    def settle(self, number: int, clients: Sequence[int]) -> None:
        """Hear whose updates are in the sum of round `number`.

        Raises:
            Unsummable: if there must be no such sum.
        """
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
        everybody: Whether every round asks the same clients; see `round.Order`.
        clip: The present bound.
        next_round: The round to run next.
        secret: Of nonces.
        limits: Of the gate; what a site's sum can be follows from the plan instead.
        masking: Opens sums only; None shows the server every update.
        shared: Coordinates that clients share, `(size,)`; None for all. The others stay what they
            were, whatever is sent for them and whatever noise is drawn.
        abandoned: Rounds so far of which no model came.
        noted: Hears what became of a round and of its bound, before the state after it is saved:
            a crash in between repeats the round and tells it again.
        tally: Of the round whose sum is sealed.
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
    everybody: bool = False
    clip: float = 0.0
    next_round: int = 0
    secret: bytes = b"simulation"
    limits: Limits = field(default_factory=Limits)
    masking: Masking | None = None
    shared: NDArray[np.bool_] | None = None
    abandoned: int = 0
    noted: Callable[[int, float, Outcome], None] = lambda *_: None
    tally: Outcome = NOTHING
    _bound: float = field(default=0.0, init=False)
    sealed: Sealed | None = None
    _direction: Sum | None = field(default=None, init=False)
    _fold: alg.Fold | PersonSum | SiteSum | None = field(default=None, init=False)
    _held: list[Accepted] = field(default_factory=list, init=False)

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
            everybody=self.everybody,
            secret=self.secret,
            limits=self._limits(),
        )
        self._begin(len(order.cohort))
        self._bound = self.clip
        made = machine.Round.resume_sealed(order) if resumed else machine.Round(order)
        outcome = drive(made, _Office(self, made), sealed=resumed)
        if not outcome.done and self.allowed(self.next_round):
            self.abandoned += 1
            self.noted(self.next_round, self._bound, outcome)
            self.next_round += 1  # abandoned for lack of answers: the next one is another
            self.store.save(self)  # and stays so: sites refuse a round that is behind them
        return self.tally if resumed and outcome.done else outcome

    def _limits(self) -> Limits:
        """What the gate lets through in this round."""
        if self.guarantee is None or not self.guarantee.sites:
            return self.limits
        return Limits(steps=1, weight=1.0, site=SiteBounds.of(self.guarantee.plan, self.clip))

    @property
    def model_layout(self) -> Layout:
        """Of the model: what the version is computed over."""
        return self.crowd.layout

    # ---- what the office does, on this state --------------------------------------------

    def _begin(self, cohort: int) -> None:
        """Make room for a round's sum.

        Raises:
            UsageError: SQ-619 for a robust rule over more updates than may be held at once.
        """
        size = len(self.state.model)
        self._held, self._fold = [], None
        if self.rule is not None or self.masking is not None:
            if self.rule is not None and 4 * size * cohort > HELD_BYTES:
                raise UsageError(
                    619,
                    f"this rule compares the updates of a round with each other, and {cohort} of "
                    f"{size} numbers do not fit into {HELD_BYTES >> 20} MB; lower "
                    "training.sampling_rate, or set rule = 'mean'",
                    where="federated.rule",
                )
        elif self.guarantee is None:
            self._fold = self.algorithm.fold(self.state, self.work)
        else:
            grid = self.guarantee.plan.grid(self.clip)
            sites = self.guarantee.sites
            self._fold = SiteSum(size, grid) if sites else PersonSum(size, self.clip)

    def add(self, update: Accepted) -> None:
        """Take in an update: into the sum, or kept where all of a round are needed at once."""
        if self._fold is None:
            self._held.append(update)
        else:
            self._fold.add(update, float(self.weighting.raw([update])[0]))

    def aggregate(self, accepted: Sequence[Accepted]) -> None:
        """The sum to be sealed, or the direction itself where no noise is added.

        Args:
            accepted: Who is in the sum; their deltas came through `add`.
        """
        self.crowd.settle(self.next_round, [update.client for update in accepted])
        held, self._held = self._held, []
        if self.masking is not None:
            self._unmask(self.masking, held)
        elif isinstance(self._fold, PersonSum | SiteSum):
            self.sealed = self._fold.sealed()
        elif not accepted:
            self._direction = np.zeros(len(self.state.model))
        elif self.rule is not None:
            raw = self.weighting.raw(held)
            self._direction = self.rule(held, raw / (self.expected or float(raw.sum())))
        elif self._fold is not None:
            self._direction = self._fold.direction(self.expected or self._fold.weight)
        self._fold = None

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
        """Draw the round's noise, once for the sealed sum, and move the model.

        Raises:
            SequesterError: SQ-628 for a model that is not finite: nothing of it is kept.
        """
        if self.guarantee is not None and self.sealed is not None:
            self._direction, self.clip = self._noised(self.guarantee, self.sealed)
        if self._direction is not None and self.shared is not None:
            self._direction = np.where(self.shared, self._direction, 0.0)
        if self._direction is not None:
            self.algorithm.apply(self.state, self._direction)
        with np.errstate(over="ignore"):  # what clients receive is the rounding to float32
            finite = np.isfinite(self.state.model.astype(np.float32)).all()
        if not finite:
            raise SequesterError(
                628,
                f"the model is not finite after round {self.next_round}: training diverged. What "
                "ran stays charged; start a new run with a lower server_learning_rate or "
                "local_learning_rate",
                where="federated",
            )
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
        self.noted(self.next_round, self._bound, self.tally)
        self.next_round += 1
        self.store.save(self)


@dataclass
class _Office:
    """`driver.Office` on a simulation."""

    simulation: Simulation
    round: machine.Round

    def reserve(self, key: str) -> bool:
        return self.simulation.allowed(self.simulation.next_round)

    def exchange(self, instructions: Sequence[Instruction]) -> Iterable[machine.Event]:
        simulation = self.simulation
        masking = simulation.masking
        for event in simulation.crowd.answer(instructions, simulation.state, simulation.clip):
            if masking is not None and isinstance(event, machine.Lost):
                masking.lost |= {event.client} if event.reason is Reason.LOST else set()
            yield event

    def add(self, accepted: Accepted) -> None:
        self.simulation.add(accepted)

    def aggregate(self, accepted: Sequence[Accepted]) -> None:
        self.simulation.aggregate(accepted)
        self.simulation.tally = Outcome(
            done=True,
            why="",
            cohort=len(self.round.order.cohort),
            accepted=len(accepted),
            rejected=dict(self.round.rejected),
        )

    def seal(self) -> None:
        self.simulation.seal()

    def release(self) -> None:
        self.simulation.release()

    def commit(self) -> None:
        self.simulation.commit()

    def save(self) -> None:
        self.simulation.save()
