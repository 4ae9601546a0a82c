"""What a round hears and what it says: events in, effects out. The machine is `round.py`."""

from __future__ import annotations

from dataclasses import dataclass

from sequester.federated.gate import Accepted
from sequester.federated.messages import Instruction, Reason, Update

# ---- events: what the driver reports -------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Start the round."""


@dataclass(frozen=True)
class Reserved:
    """The ledger holds the charge of this round."""


@dataclass(frozen=True)
class Refused:
    """The ledger said no."""


@dataclass(frozen=True)
class Arrived:
    """An update came in at `now` (server's clock, seconds)."""

    update: Update
    now: float


@dataclass(frozen=True)
class Lost:
    """The client is gone, refused, or its answer could not be decoded."""

    client: int
    reason: Reason = Reason.LOST


@dataclass(frozen=True)
class Clock:
    """The server's clock reads `now`, seconds."""

    now: float


class Unsummable(Exception):
    """A masked sum could not be opened; nothing of it was."""


@dataclass(frozen=True)
class Unsummed:
    """The sum cannot be had: too many members dropped, or one lied."""

    why: str


@dataclass(frozen=True)
class Aggregated:
    """The sum was computed."""


@dataclass(frozen=True)
class Sealed:
    """The sum is durable."""


@dataclass(frozen=True)
class Released:
    """Noise was added and the new model computed."""


@dataclass(frozen=True)
class Committed:
    """The ledger holds what ran."""


@dataclass(frozen=True)
class Saved:
    """The checkpoint with the new model is durable."""


Event = (
    Begin
    | Reserved
    | Refused
    | Arrived
    | Lost
    | Clock
    | Unsummed
    | Aggregated
    | Sealed
    | Released
    | Committed
    | Saved
)


# ---- effects: what the driver must do ------------------------------------------------------


@dataclass(frozen=True)
class Reserve:
    """Ask the ledger for this round's charge; answer `Reserved` or `Refused`."""

    key: str


@dataclass(frozen=True)
class Send:
    """Send an instruction (with the model beside it)."""

    instruction: Instruction


@dataclass(frozen=True)
class Add:
    """Take this update into the sum, now; nothing is answered.

    They come by ascending client, so that arrival order cannot matter to a sum that is made as
    they come: an update waits in the machine until everybody before it has answered or is lost.
    """

    accepted: Accepted


@dataclass(frozen=True)
class Aggregate:
    """The sum is complete: of these, without their deltas, which `Add` gave before."""

    accepted: tuple[Accepted, ...]


@dataclass(frozen=True)
class Seal:
    """Make the sum durable."""


@dataclass(frozen=True)
class Release:
    """Draw the noise of this round and compute the new model."""


@dataclass(frozen=True)
class Commit:
    """Tell the ledger what ran."""


@dataclass(frozen=True)
class Save:
    """Make the new model durable."""


@dataclass(frozen=True)
class Done:
    """The new model may be published."""


@dataclass(frozen=True)
class Abandon:
    """No model comes out of this round; its charge stays."""

    why: str


Effect = Reserve | Send | Add | Aggregate | Seal | Release | Commit | Save | Done | Abandon
