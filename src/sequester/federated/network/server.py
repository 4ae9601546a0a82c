"""The server's side of a round: questions to the sites that are there, answers to the gate.

`Network` is a crowd like the simulator's, so rounds, noise, checkpoints and the order of effects
are the very same code; only who answers differs. A round's clock runs from 0 to 1, its deadline.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.federated import algorithms as alg
from sequester.federated import round as machine
from sequester.federated.compression.codecs import Address, Codec
from sequester.federated.messages import Instruction, Layout, Reason, Rejection, Update, version_of
from sequester.federated.network import frames
from sequester.federated.network.enrol import Finder
from sequester.federated.network.frames import Answers, Ask, Finish, Finished, Header, Refused
from sequester.federated.network.roster import Roster
from sequester.federated.network.transport import Parcel, Reply, Transport

_LOG = logging.getLogger("sequester.server")
SET_BACK = frozenset((636, 641))
"""Refusals by which an enrolled site says that this server asks what it must not know to ask:
a round that is over or was asked otherwise, or other terms than agreed. Another site may be at its
end of the same story and answer; so the round is abandoned. SQ-640, the node's own loss of memory,
is not among them: it says nothing about the server, and carries no badge."""


@dataclass(frozen=True)
class Question:
    """One parcel that is out: a site's place in the list, and what it was asked."""

    place: int
    instructions: tuple[Instruction, ...]


@dataclass
class Network:
    """Enrolled sites behind a transport, as a crowd.

    Attributes:
        transport: Carries frames.
        finder: Knows which node is which site.
        roster: Enrolled sites.
        updates: Layout of what comes back.
        algorithm: Some send a correction along.
        codec: Of compressed updates; None for plain ones.
        seconds: A round's deadline.
        limit: Bytes of a frame.
        roll: Whether every site is asked in every round, also one of whose people nobody was drawn.
            Whether a round is abandoned because no site answered then tells nothing of the draw.
        round: The present round.
        last: The last round whose update of each client entered a sum, −1 for none.
        bytes_sent: Bytes of answers so far, frames included.
        refusals: SQ numbers that came back in the present round.
        answered: Sites in the present round's sum, by place; private.
        set_back: What a site said in the present round of a server that was set back; empty if
            none did.
        heard: Whether a site answered in the present round.
    """

    transport: Transport
    finder: Finder
    roster: Roster
    updates: Layout
    algorithm: alg.Algorithm
    codec: Codec | None
    seconds: float
    limit: int = frames.LIMIT
    roll: bool = False
    round: int = 0
    last: NDArray[np.int64] = field(init=False)
    bytes_sent: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    answered: tuple[int, ...] = ()
    set_back: str = ""
    heard: bool = False

    def __post_init__(self) -> None:
        """Check that one client's update fits into a frame.

        Raises:
            UsageError: SQ-630 with both sizes.
        """
        check_size(self.updates, self.limit)
        self.last = np.full(self.roster.clients, -1)

    @property
    def layout(self) -> Layout:
        """Of the updates."""
        return self.updates

    # ---- crowd --------------------------------------------------------------------------

    def answer(
        self, instructions: Sequence[Instruction], state: alg.ServerState, clip: float
    ) -> Iterable[machine.Event]:
        """Ask every site that is there; give back events until the deadline."""
        self.refusals.clear()
        self.answered, self.set_back, self.heard = (), "", False
        present = self.finder.present(self.roster)
        out: dict[str, Question] = {}
        parcels = []
        for place, asked in self._by_site(instructions):
            node = present.get(place)
            if node is None:
                yield from (machine.Lost(item.client) for item in asked)
                continue
            for part, some in enumerate(self._parts(asked)):
                ticket = f"{self.round}-{place}-{part}"
                out[ticket] = question = Question(place, some)
                parcels.append(Parcel(ticket, node, self._frame(ticket, question, state, clip)))
        begun = self.transport.now()
        self.transport.send(parcels, self.seconds)
        while out and (elapsed := (self.transport.now() - begun) / self.seconds) <= 1.0:
            for reply in self.transport.receive():
                yield from self._events(reply, out, elapsed)
            if out:
                self.transport.wait()
        self.transport.forget()

    def settle(self, number: int, clients: Sequence[int]) -> None:
        """Remember whose updates entered the sum: their nodes hear of it with the next question.

        Raises:
            Unsummable: where a site says that this server was set back. The round may have been
                released once: its people's charge covers no second release. And where no site
                answered.
        """
        if self.set_back:
            raise machine.Unsummable(self.set_back)
        if self.roll and not self.heard:
            raise machine.Unsummable("no site answered")
        self.last[np.asarray(clients, dtype=np.int64)] = number
        self.answered = tuple(sorted({self.roster.at(client) for client in clients}))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The last round of each client; and of the round itself, what is noted of it."""
        refusals = np.frombuffer(msgspec.json.encode(dict(self.refusals)), np.uint8)
        answered = np.array(self.answered, np.int64)
        return {"last": self.last, "answered": answered, "refusals": refusals}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take it back."""
        self.last = arrays["last"].copy()
        self.answered = tuple(arrays["answered"].tolist())
        self.refusals = Counter(msgspec.json.decode(arrays["refusals"].tobytes()))

    def finish(self, rounds: int, seconds: float) -> int:
        """Tell the sites that the run is over; how many confirmed. Silence costs them budget."""
        run = self.finder.question.run
        parcels = []
        for place, node in self.finder.present(self.roster).items():
            ticket = f"finish-{place}-0"
            header = Finish(run, rounds, ticket)
            body = frames.seal(header, badge=self.roster.sites[place].badge, limit=self.limit)
            parcels.append(Parcel(ticket, node, body))
        waiting = {parcel.ticket for parcel in parcels}
        settled, begun = set[str](), self.transport.now()
        self.transport.send(parcels, seconds)
        while waiting and self.transport.now() - begun <= seconds:
            for reply in self.transport.receive():
                if reply.ticket in waiting and self._finished(reply):
                    settled.add(reply.ticket)
                if reply.final or reply.ticket in settled:
                    waiting.discard(reply.ticket)
            if waiting:
                self.transport.wait()
        self.transport.forget()
        return len(settled)

    def _finished(self, reply: Reply) -> bool:
        """Whether a site says that it settled; a refusal or silence says that it did not."""
        try:
            header, _ = frames.unseal(
                reply.body or b"", lambda header: self.badge(reply.ticket, header), limit=self.limit
            )
        except Rejection:
            return False
        return isinstance(header, Finished) and header.ticket == reply.ticket

    # ---- questions ----------------------------------------------------------------------

    def _by_site(
        self, instructions: Sequence[Instruction]
    ) -> Iterator[tuple[int, list[Instruction]]]:
        sites: dict[int, list[Instruction]] = {}
        if self.roll:
            sites = {place: [] for place in range(len(self.roster.sites))}
        for item in instructions:
            sites.setdefault(self.roster.at(item.client), []).append(item)
        yield from sorted(sites.items())

    def _parts(self, asked: list[Instruction]) -> Iterator[tuple[Instruction, ...]]:
        """Instructions in groups whose answers fit into a frame."""
        most = most_clients(self.updates, self.limit)
        for start in range(0, max(len(asked), 1), most):
            yield tuple(asked[start : start + most])

    def _frame(self, ticket: str, question: Question, state: alg.ServerState, clip: float) -> bytes:
        model, asked = state.model.astype(np.float32), question.instructions
        site = self.roster.sites[question.place]
        tensors: dict[str, NDArray[Any]] = {"model": model}
        corrections = [self.algorithm.correction(state, item.client) for item in asked]
        rows = [row for row in corrections if row is not None]
        if rows:
            tensors["correction"] = np.stack(rows)
        header = Ask(
            run=self.finder.question.run,
            round=self.round,
            version=version_of(self.updates, model),
            layout=self.updates.digest(),
            clip=clip,
            first=site.first,
            clients=tuple(item.client for item in asked),
            nonces=tuple(item.nonce for item in asked),
            last=tuple(self.last[[item.client for item in asked]].tolist()),
            ticket=ticket,
        )
        return frames.seal(header, tensors, badge=site.badge, limit=self.limit)

    # ---- answers ------------------------------------------------------------------------

    def refuse(self, header: Refused) -> None:
        """Count a site's refusal of a question that is out, and remember what it says of us."""
        self.refusals[f"SQ-{header.code}"] += 1
        _LOG.warning("a site refused: SQ-%d %s", header.code, header.message)
        if header.enrolled and header.code in SET_BACK:
            self.set_back = (
                "a site says that this run's server was set back to an old state "
                f"(SQ-{header.code} {header.message})"
            )

    def badge(self, ticket: str, header: Header) -> str:
        """The badge that must have made an answer to `ticket`."""
        if isinstance(header, Refused) and not header.enrolled:
            return ""
        place = ticket.split("-")[1] if ticket.count("-") == 2 else ""
        known = place.isdecimal() and int(place) < len(self.roster.sites)
        return self.roster.sites[int(place)].badge if known else ""

    def _events(
        self, reply: Reply, out: dict[str, Question], elapsed: float
    ) -> Iterator[machine.Event]:
        """Events of one reply; what it says nothing about is lost once nothing more can come."""
        question = out.get(reply.ticket)
        asked = {item.client for item in question.instructions} if question else set()
        reason = Reason.LOST
        told: set[int] = set()
        if reply.body is not None:
            self.bytes_sent += len(reply.body)
            try:
                header, tensors = frames.unseal(
                    reply.body, lambda header: self.badge(reply.ticket, header), limit=self.limit
                )
                if header.ticket != reply.ticket:
                    raise Rejection(Reason.MALFORMED)
                if question is None:
                    return  # late: what it says, also a refusal, is about a round that is over
                if isinstance(header, Answers):
                    self.heard = True
                    for event in self._updates(header, tensors, elapsed):
                        # A node speaks for its own clients: it cannot silence another's, and a
                        # late answer silences nobody.
                        if isinstance(event, machine.Arrived) or _client_of(event) in asked:
                            yield event
                            told.add(_client_of(event))
                elif isinstance(header, Refused):
                    reason = Reason.REFUSED
                    self.refuse(header)
                else:
                    raise Rejection(Reason.MALFORMED)
            except Rejection as rejection:
                reason = rejection.reason
        if question is None:
            return
        whole = asked <= told or reason is Reason.REFUSED
        if whole or reply.final:
            del out[reply.ticket]
            yield from (machine.Lost(client, reason) for client in sorted(asked - told))

    def _updates(
        self, header: Answers, tensors: Mapping[str, NDArray[Any]], elapsed: float
    ) -> Iterator[machine.Event]:
        """One event for each client of an answer.

        Raises:
            Rejection: for an answer whose parts do not fit each other.
        """
        present = [not reason for reason in header.reasons]
        count = sum(present)
        lengths = {len(header.clients), len(header.nonces), len(header.reasons)}
        counts = {len(header.steps), len(header.weights), count}
        if len(lengths) != 1 or len(counts) != 1:
            raise Rejection(Reason.MALFORMED)
        rows = self._rows(header, tensors, count)
        taken = 0
        for client, nonce, reason in zip(
            header.clients, header.nonces, header.reasons, strict=True
        ):
            if reason:
                yield machine.Lost(client, _reason_of(reason))
                continue
            row = rows[taken]
            steps, weight = header.steps[taken], header.weights[taken]
            taken += 1
            if isinstance(row, Reason):
                yield machine.Lost(client, row)
                continue
            update = Update(
                header.run,
                header.round,
                header.version,
                client,
                nonce,
                self.updates.views(row),
                steps,
                weight,
            )
            yield machine.Arrived(update, elapsed)

    def _rows(
        self, header: Answers, tensors: Mapping[str, NDArray[Any]], count: int
    ) -> list[NDArray[Any] | Reason]:
        name = "deltas" if self.codec is None else "codes"
        if set(tensors) - {name}:
            raise Rejection(Reason.EXTRA_TENSOR)
        if name not in tensors:
            raise Rejection(Reason.MISSING_TENSOR)
        block = tensors[name]
        if self.codec is None:
            if block.dtype != np.dtype(self.updates.dtype):
                raise Rejection(Reason.WRONG_DTYPE)
            if block.shape != (count, self.updates.size):
                raise Rejection(Reason.WRONG_SHAPE)
            return list(block)
        if block.dtype != np.uint8 or block.ndim != 1:
            raise Rejection(Reason.WRONG_DTYPE)
        if len(header.sizes) != count or min(header.sizes, default=0) < 0:
            raise Rejection(Reason.MALFORMED)
        if sum(header.sizes) != len(block):
            raise Rejection(Reason.WRONG_SHAPE)
        raw, at = block.tobytes(), 0
        rows: list[NDArray[Any] | Reason] = []
        who = [c for c, reason in zip(header.clients, header.reasons, strict=True) if not reason]
        for client, size in zip(who, header.sizes, strict=True):
            address = Address(header.run, header.round, client)
            try:
                rows.append(self.codec.decode(raw[at : at + size], self.updates, address))
            except Rejection as rejection:
                rows.append(rejection.reason)
            at += size
        return rows


def row_bytes(updates: Layout) -> int:
    """Bytes of one client's part of a frame, either way, with a generous share of header."""
    return updates.size * (8 if updates.dtype == "float64" else 4) + 256


def most_clients(updates: Layout, limit: int) -> int:
    """Clients whose updates fit into a frame; the question holds the model too."""
    return (limit - row_bytes(updates) - 4096) // row_bytes(updates)


def check_size(updates: Layout, limit: int) -> None:
    """Refuse updates of which not one fits into a frame.

    Raises:
        UsageError: SQ-630 with both sizes.
    """
    if most_clients(updates, limit) < 1:
        raise UsageError(
            630,
            f"one update has {row_bytes(updates)} bytes, and a message at most {limit}; use a "
            "smaller model, or raise the limit on both sides",
        )


def _client_of(event: machine.Event) -> int:
    if isinstance(event, machine.Arrived):
        return event.update.client
    return event.client if isinstance(event, machine.Lost) else -1


def _reason_of(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        return Reason.MALFORMED
