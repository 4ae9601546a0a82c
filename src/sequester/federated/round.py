"""One federated round as a pure state machine: events in, effects out.

It reads no clock, opens no file and draws no noise; whoever drives it does, and reports back.
The simulator and the Flower server drive the same machine, so the order below holds for both:

    Begin ▶ Reserve ▶ Send … ▶ (validate ▶ Add) … ▶ Aggregate ▶ Seal ▶ Release ▶ Commit ▶ Save
    ▶ Done

*Reserve before Send*: no private record is touched before the ledger holds the charge.
*Seal before Release*: the sum is on disk before noise is drawn for it, once and for all. After
a crash the driver reads the sealed sum back instead of collecting again, so that there are
never two noise draws on one sum, and never one noise draw on two sums.
*Commit before Save*: a crash in between leaves too much charged, never too little.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from sequester.core.errors import SequesterError, UsageError
from sequester.federated.events import (
    Abandon,
    Add,
    Aggregate,
    Aggregated,
    Arrived,
    Begin,
    Clock,
    Commit,
    Committed,
    Done,
    Effect,
    Event,
    Lost,
    Refused,
    Release,
    Released,
    Reserve,
    Reserved,
    Save,
    Saved,
    Seal,
    Sealed,
    Send,
    Unsummable,
    Unsummed,
)
from sequester.federated.gate import Accepted, Limits, admit
from sequester.federated.messages import Instruction, Layout, Reason, Rejection, Update

__all__ = [
    "Abandon",
    "Add",
    "Aggregate",
    "Aggregated",
    "Arrived",
    "Begin",
    "Clock",
    "Commit",
    "Committed",
    "Done",
    "Effect",
    "Event",
    "Lost",
    "Order",
    "Phase",
    "Refused",
    "Release",
    "Released",
    "Reserve",
    "Reserved",
    "Round",
    "Save",
    "Saved",
    "Seal",
    "Sealed",
    "Send",
    "Unsummable",
    "Unsummed",
]

_NOTHING = np.zeros(0, np.float32)


class Phase(StrEnum):
    """Where a round stands."""

    NEW = "new"
    RESERVING = "reserving"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    SEALING = "sealing"
    RELEASING = "releasing"
    COMMITTING = "committing"
    SAVING = "saving"
    DONE = "done"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class Order:
    """What a round shall do; public, fixed before it starts.

    Attributes:
        run: The run's name.
        round: From 0.
        version: Of the model every client starts from.
        cohort: Clients drawn from the *enrolled* population, not from whoever is online: who
            answers does not change the charge. May be empty (a Poisson draw often is, for a
            small population): the round then releases pure noise, as accounted.
        layout: Of the model and its updates.
        deadline: Server's clock, seconds.
        quorum: Fewest accepted updates for a round without a guarantee. With one
            (`private=True`) there is no quorum: abandoning depends on who answered, and the
            noisy sum of few is as private as the noisy sum of many.
        everybody: The cohort is the same in all rounds, as where sites are asked. A private
            round of it that nobody answered is abandoned. One of a drawn cohort is not: whether
            the draw was empty must not show.
        private: Whether a guarantee is claimed.
        secret: Server's secret, from which nonces are derived.
        limits: What the gate lets through.
    """

    run: str
    round: int
    version: str
    cohort: tuple[int, ...]
    layout: Layout
    deadline: float
    quorum: int = 1
    private: bool = False
    everybody: bool = False
    secret: bytes = field(default=b"", repr=False)
    limits: Limits = field(default_factory=Limits)

    def nonce(self, client: int) -> str:
        """The nonce of this run, round and client, 32 hex digits."""
        text = f"{len(self.run)}:{self.run}|{self.round}|{self.version}|{client}"
        return hashlib.blake2b(text.encode(), key=self.secret, digest_size=16).hexdigest()


class Round:
    """The state machine. `handle` one event at a time; carry out the effects in order."""

    def __init__(self, order: Order) -> None:
        """Check the order.

        Raises:
            UsageError: SQ-602 for a cohort that names a client twice: it would be summed
                twice and contribute 2C.
        """
        if len(set(order.cohort)) != len(order.cohort):
            raise UsageError(602, "a cohort names each client once; it was drawn with repeats")
        self.order = order
        self.phase = Phase.NEW
        self.rejected: Counter[Reason] = Counter()
        self._accepted: dict[int, Accepted] = {}
        self._cohort = frozenset(order.cohort)
        self._waiting = set(order.cohort)
        self._turns = iter(sorted(order.cohort))
        self._turn = next(self._turns, None)
        self._early: dict[int, Accepted] = {}  # passed the gate before their turn

    @classmethod
    def resume_sealed(cls, order: Order) -> Round:
        """A round whose sum was sealed before the crash: only release, commit and save remain."""
        machine = cls(order)
        machine.phase = Phase.SEALING
        return machine

    @property
    def accepted(self) -> tuple[Accepted, ...]:
        """What passed the gate, ordered by client, without deltas: the machine keeps none."""
        return tuple(self._accepted[client] for client in sorted(self._accepted))

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and say what to do.

        Raises:
            SequesterError: SQ-603 for an event that has no place in this phase: the driver is
                wrong, and going on could draw noise twice.
        """
        match event:
            case Arrived():
                return self._arrived(event)
            case Lost():
                return self._lost(event)
            case Clock():
                return self._clock(event)
            case Begin() if self.phase is Phase.NEW:
                self.phase = Phase.RESERVING
                return [Reserve(f"{self.order.run}/round-{self.order.round}")]
            case Reserved() if self.phase is Phase.RESERVING:
                return self._send()
            case Refused() if self.phase is Phase.RESERVING:
                return self._abandon("the ledger refused the charge")
            case Unsummed() if self.phase is Phase.AGGREGATING:
                return self._abandon(event.why)
            case Aggregated() if self.phase is Phase.AGGREGATING:
                self.phase = Phase.SEALING
                return [Seal()]
            case Sealed() if self.phase is Phase.SEALING:
                self.phase = Phase.RELEASING
                return [Release()]
            case Released() if self.phase is Phase.RELEASING:
                self.phase = Phase.COMMITTING
                return [Commit()]
            case Committed() if self.phase is Phase.COMMITTING:
                self.phase = Phase.SAVING
                return [Save()]
            case Saved() if self.phase is Phase.SAVING:
                self.phase = Phase.DONE
                return [Done()]
            case _:
                raise SequesterError(
                    603,
                    f"{type(event).__name__} has no place in a round that is {self.phase}; the "
                    "driver must carry out effects in the order they were given",
                )

    def _send(self) -> list[Effect]:
        self.phase = Phase.COLLECTING
        order = self.order
        sends: list[Effect] = [
            Send(
                Instruction(
                    order.run,
                    order.round,
                    order.version,
                    client,
                    order.nonce(client),
                    order.deadline,
                )
            )
            for client in order.cohort
        ]
        return sends + self._close_if_complete()

    def _arrived(self, event: Arrived) -> list[Effect]:
        try:
            accepted = self._check(event)
        except Rejection as rejection:
            self.rejected[rejection.reason] += 1
            # A bad answer under the right nonce is this client's answer; one with a wrong
            # nonce may be anybody's and must not silence the client.
            if self._is_authentic(event.update) and self.phase is Phase.COLLECTING:
                self._waiting.discard(event.update.client)
                return self._close_if_complete()
            return []
        self._early[accepted.client] = accepted
        self._accepted[accepted.client] = replace(accepted, delta=_NOTHING)
        self._waiting.discard(accepted.client)
        return self._close_if_complete()

    def _check(self, event: Arrived) -> Accepted:
        update, order = event.update, self.order
        if update.run != order.run:
            raise Rejection(Reason.WRONG_RUN)
        if update.round != order.round:
            raise Rejection(Reason.WRONG_ROUND)
        if update.client not in self._cohort:
            raise Rejection(Reason.UNKNOWN_CLIENT)
        if update.version != order.version:
            raise Rejection(Reason.WRONG_VERSION)
        if update.nonce != order.nonce(update.client):
            raise Rejection(Reason.WRONG_NONCE)
        if update.client in self._accepted:
            raise Rejection(Reason.REPLAYED)
        if self.phase is not Phase.COLLECTING or event.now > order.deadline:
            raise Rejection(Reason.LATE)
        if update.client not in self._waiting:
            raise Rejection(Reason.REPLAYED)
        return admit(update, order.layout, order.limits)

    def _is_authentic(self, update: Update) -> bool:
        order = self.order
        return (
            update.run == order.run
            and update.round == order.round
            and update.version == order.version
            and update.client in self._waiting
            and update.nonce == order.nonce(update.client)
        )

    def _lost(self, event: Lost) -> list[Effect]:
        if event.client not in self._waiting or self.phase is not Phase.COLLECTING:
            return []
        self._waiting.discard(event.client)
        self.rejected[event.reason] += 1
        return self._close_if_complete()

    def _clock(self, event: Clock) -> list[Effect]:
        if self.phase is not Phase.COLLECTING or event.now <= self.order.deadline:
            return []
        self.rejected[Reason.LOST] += len(self._waiting)
        self._waiting.clear()
        return self._close_if_complete()

    def _in_turn(self) -> list[Effect]:
        """Updates before which nobody is awaited any more."""
        adds: list[Effect] = []
        while self._turn is not None and self._turn not in self._waiting:
            if self._turn in self._early:
                adds.append(Add(self._early.pop(self._turn)))
            self._turn = next(self._turns, None)
        return adds

    def _close_if_complete(self) -> list[Effect]:
        if self.phase is not Phase.COLLECTING:
            return []
        return self._in_turn() + ([] if self._waiting else self._close())

    def _close(self) -> list[Effect]:
        order = self.order
        quorum = int(order.everybody) if order.private else order.quorum
        if len(self._accepted) < quorum:
            return self._abandon(
                f"{len(self._accepted)} updates were accepted and the quorum is {quorum}"
            )
        self.phase = Phase.AGGREGATING
        return [Aggregate(self.accepted)]

    def _abandon(self, why: str) -> list[Effect]:
        self.phase = Phase.ABANDONED
        return [Abandon(why)]
