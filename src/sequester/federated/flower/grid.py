"""Our transport on Flower's grid: frames as messages, polled by our own loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from sequester.federated.flower.messages import packed, unpacked
from sequester.federated.network.transport import Parcel, Reply

_LOG = logging.getLogger("sequester.server")
POLL_SECONDS = 0.2
_TRAIN = "train"


@dataclass
class GridTransport:
    """`network.Transport` on a grid.

    Attributes:
        grid: Flower's.
        waiting: Parcels that are out, by Flower's number of the message.
        lost: Replies to parcels that Flower did not take: nothing will come to them.
    """

    grid: Grid
    waiting: dict[str, Parcel] = field(default_factory=dict)
    lost: list[Reply] = field(default_factory=list)

    def nodes(self) -> Sequence[int]:
        """Nodes that Flower believes to be online; a dead one lingers for up to a minute."""
        return sorted(self.grid.get_node_ids())

    def send(self, parcels: Sequence[Parcel], seconds: float) -> None:
        """Push one message for each; one that Flower does not take is lost at once."""
        for parcel in parcels:
            message = Message(
                packed(parcel.body), parcel.node, _TRAIN, ttl=seconds, group_id=parcel.ticket
            )
            number = next(iter(self.grid.push_messages([message])), None)
            if number:
                self.waiting[number] = parcel
            else:
                _LOG.warning("node %d: Flower did not take a question", parcel.node)
                self.lost.append(Reply(parcel.ticket, None))

    def receive(self) -> Iterable[Reply]:
        """Pull what came in. Flower gives at most one reply to a message."""
        replies, self.lost = self.lost, []
        for message in self.grid.pull_messages(list(self.waiting)) if self.waiting else ():
            parcel = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if parcel is None:
                continue
            body = None
            if message.has_content():
                body = unpacked(message.content)
            else:
                # The reason may quote the node's exception; only its number is kept.
                _LOG.warning("node %d: Flower's error %s", parcel.node, message.error.code)
            replies.append(Reply(parcel.ticket, body))
        return replies

    def forget(self) -> None:
        """Stop asking for what is still out: what comes later enters no round."""
        self.waiting.clear()
        self.lost.clear()

    def wait(self) -> None:
        """Sleep between two polls."""
        time.sleep(POLL_SECONDS)

    def now(self) -> float:
        """The machine's clock that never goes back."""
        return time.monotonic()
