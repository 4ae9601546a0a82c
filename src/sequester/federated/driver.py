"""Carries out the effects of a round: the one loop that simulator and Flower server share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sequester.federated import round as machine
from sequester.federated.gate import Accepted
from sequester.federated.messages import Instruction, Reason


class Office(Protocol):
    """Everything a round does to the world, one method for each effect.

    A method that raises (a crash, a full disk) leaves the round where it is; what is durable
    by then decides how it resumes.
    """

    def reserve(self, key: str) -> bool:
        """Whether the ledger holds this round's charge."""
        ...

    def exchange(self, instructions: Sequence[Instruction]) -> Iterable[machine.Event]:
        """Send instructions; give back answers and losses in the order they come in."""
        ...

    def add(self, accepted: Accepted) -> None:
        """Take an update into the round's sum."""
        ...

    def aggregate(self, accepted: Sequence[Accepted]) -> None:
        """Finish the round's sum; `round.Unsummable` if it is masked and does not open."""
        ...

    def seal(self) -> None:
        """Make the sum durable."""
        ...

    def release(self) -> None:
        """Draw noise and move the model."""
        ...

    def commit(self) -> None:
        """Tell the ledger what ran."""
        ...

    def save(self) -> None:
        """Make the new model durable."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a round ended.

    Attributes:
        done: False if it was abandoned.
        why: Reason of abandonment; empty when done.
        cohort: Clients that were asked.
        accepted: Updates in the sum; private where a guarantee is claimed.
        rejected: Updates that were not, by reason; private likewise.
    """

    done: bool
    why: str
    cohort: int
    accepted: int
    rejected: dict[Reason, int]


def drive(round_: machine.Round, office: Office, *, sealed: bool = False) -> Outcome:
    """Run a round to its end.

    Args:
        round_: A new round, or one made by `Round.resume_sealed`.
        office: Does what the round asks for.
        sealed: The sum is durable already: start with releasing it.
    """
    first = machine.Sealed() if sealed else machine.Begin()
    queue: deque[machine.Effect] = deque(round_.handle(first))
    why, asked = "", sealed
    while queue:
        effect = queue.popleft()
        if isinstance(effect, machine.Send):
            instructions = [effect.instruction]
            while queue and isinstance(queue[0], machine.Send):
                following = queue.popleft()
                assert isinstance(following, machine.Send)  # noqa: S101 - for the type checker
                instructions.append(following.instruction)
            asked = True
            for event in office.exchange(instructions):
                queue.extend(_added(round_.handle(event), office))
            # Whoever has not answered by now is past the deadline.
            queue.extend(_added(round_.handle(machine.Clock(float("inf"))), office))
        elif isinstance(effect, machine.Abandon):
            why = effect.why
        elif not isinstance(effect, machine.Done):
            if isinstance(effect, machine.Aggregate) and not asked:
                # Nobody was drawn: a network asks its sites all the same, whether they are there.
                for event in office.exchange(()):
                    round_.handle(event)
            queue.extend(round_.handle(_carry_out(effect, office)))
    return Outcome(
        done=round_.phase is machine.Phase.DONE,
        why=why,
        cohort=len(round_.order.cohort),
        accepted=len(round_.accepted),
        rejected=dict(Counter(round_.rejected)),
    )


def _added(effects: Sequence[machine.Effect], office: Office) -> list[machine.Effect]:
    """Add updates while the next ones are still coming, so that none has to be kept."""
    for effect in effects:
        if isinstance(effect, machine.Add):
            office.add(effect.accepted)
    return [effect for effect in effects if not isinstance(effect, machine.Add)]


def _carry_out(effect: machine.Effect, office: Office) -> machine.Event:
    match effect:
        case machine.Reserve():
            return machine.Reserved() if office.reserve(effect.key) else machine.Refused()
        case machine.Aggregate():
            try:
                office.aggregate(effect.accepted)
            except machine.Unsummable as problem:
                return machine.Unsummed(str(problem))
            return machine.Aggregated()
        case machine.Seal():
            office.seal()
            return machine.Sealed()
        case machine.Release():
            office.release()
            return machine.Released()
        case machine.Commit():
            office.commit()
            return machine.Committed()
        case _:
            office.save()
            return machine.Saved()
