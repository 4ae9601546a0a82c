"""What carries frames: the one thing a network must give us."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Parcel:
    """A frame on its way to a node.

    Attributes:
        ticket: Names the question; the reply carries it back.
        node: The transport's number of the node.
        body: The frame.
    """

    ticket: str
    node: int
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        ticket: Of the parcel it answers.
        body: The frame; None if the transport gave the parcel up (the node is gone).
        final: No other reply to this parcel will come.
    """

    ticket: str
    body: bytes | None
    final: bool = True


class Transport(Protocol):
    """Sends and receives frames; loses, repeats, delays and reorders them as networks do."""

    def nodes(self) -> Sequence[int]:
        """Nodes that seem to be there."""
        ...

    def send(self, parcels: Sequence[Parcel], seconds: float) -> None:
        """Put parcels on their way; those not delivered within `seconds` may be dropped."""
        ...

    def receive(self) -> Iterable[Reply]:
        """What has come in since the last call; may be nothing."""
        ...

    def forget(self) -> None:
        """Stop waiting for replies to what was sent."""
        ...

    def wait(self) -> None:
        """Let a moment pass."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...
