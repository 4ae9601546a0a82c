"""The server's part in secure sums over a transport: it sees masked vectors and opens their sum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sequester import secagg
from sequester.core.errors import LedgerRefusal, VerificationError
from sequester.federated.gate import Accepted
from sequester.federated.masking import Masking, Opened, Ticket
from sequester.federated.messages import Rejection, Sum, Vector
from sequester.federated.network import frames
from sequester.federated.network.frames import Refused, Step, Stepped
from sequester.federated.network.server import Network
from sequester.federated.network.transport import Parcel
from sequester.federated.round import Unsummable
from sequester.secagg.encoding import integers_of
from sequester.secagg.faults import Faults

_LOG = logging.getLogger("sequester.server")


@dataclass
class Veil(Masking):
    """`Masking` whose members are nodes.

    Attributes:
        network: Reaches them.
        model: The model of the present round.
    """

    network: Network | None = None
    model: Callable[[], Vector] = field(default=lambda: np.zeros(0, np.float32))

    def open(self, ticket: Ticket, accepted: Sequence[Accepted], weights: Sum) -> Opened:
        """Sum what the nodes hold, through the protocol; each phase has a round's deadline.

        Raises:
            Unsummable: too many dropped, somebody lied, or says that this server was set back:
                nothing was opened.
        """
        where = self.context(ticket)
        plan = self.sums.round_plan(ticket.clip, self.multiplier)
        roster = secagg.Roster(
            {place: bytes.fromhex(site.member) for place, site in enumerate(self._sites())}
        )
        session = plan.session(where.run, where.number, model=where.model, roster=roster.digest)
        server = secagg.Server(session, roster)
        outbox = dict.fromkeys(roster.keys, server.offer())
        first = True
        try:
            while server.phase is not secagg.Phase.DONE:
                for member, answer in self._exchange(ticket, outbox, first=first).items():
                    self._take(server, member, answer)
                if self._net().set_back:
                    raise self._abandoned(self._net().set_back)
                outbox, first = server.close(), False
        except (VerificationError, LedgerRefusal) as problem:
            raise self._abandoned(str(problem)) from None
        finally:
            self.faults = server.faults
        outcome = server.outcome
        if outcome is None:
            raise Unsummable("the round has no outcome")
        survivors, bits = outcome.survivors, plan.encoding.bits
        try:
            total = integers_of(outcome.total, bits, len(survivors), rotation=where.rotation())
        except VerificationError as problem:  # a member masked something else than a vector
            raise self._abandoned(str(problem)) from None
        self.arrived.append(len(survivors))
        self._net().answered = survivors
        whole: NDArray[np.int64] = total.astype(np.int64)
        size = self.sums.size
        summed: Sum = whole[:size] * np.float64(plan.encoding.granularity)
        return self.opened(ticket, summed, whole[size:])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps."""
        blamed = [*self.faults.blamed.items()]
        return super().arrays() | {
            "masking.blamed": np.array(blamed, np.int64).reshape(-1, 2),
            "masking.disputes": np.array([*self.faults.disputes], np.int64).reshape(-1, 2),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take it back."""
        super().restore(arrays)
        blamed = dict(arrays["masking.blamed"].tolist())
        self.faults = Faults(blamed, {(a, b) for a, b in arrays["masking.disputes"].tolist()})

    def _abandoned(self, why: str) -> Unsummable:
        """Nothing is opened; the round is charged at the worst case."""
        self.arrived.append(self.sums.fewest)
        return Unsummable(why)

    def _net(self) -> Network:
        if self.network is None:
            raise Unsummable("no network carries this run's secure sums")
        return self.network

    def _sites(self) -> tuple[Any, ...]:
        return self._net().roster.sites

    def _take(self, server: secagg.Server, member: int, answer: bytes) -> None:
        try:
            server.receive(member, answer)
        except VerificationError as problem:  # the server is where it was; the member drops out
            _LOG.warning("a member's message was refused: %s", problem)

    def _exchange(
        self, ticket: Ticket, outbox: Mapping[int, bytes], *, first: bool
    ) -> dict[int, bytes]:
        """Send each member its message; the answers that came before the deadline."""
        network = self._net()
        members = tuple(site.member for site in self._sites())
        present = network.finder.present(network.roster)
        parcels = []
        for member, message in outbox.items():
            if member not in present:
                continue
            name = f"{ticket.number}-{member}-{message[5]}"
            header = Step(
                run=self.run,
                round=ticket.number,
                version=ticket.version,
                layout=network.updates.digest(),
                clip=ticket.clip,
                member=member,
                members=members,
                ticket=name,
            )
            tensors: dict[str, NDArray[Any]] = {"message": np.frombuffer(message, np.uint8)}
            if first:
                tensors["model"] = self.model()
            badge = network.roster.sites[member].badge
            body = frames.seal(header, tensors, badge=badge, limit=network.limit)
            parcels.append(Parcel(name, present[member], body))
        return self._collect(network, parcels)

    def _collect(self, network: Network, parcels: Sequence[Parcel]) -> dict[int, bytes]:
        wire = network.transport
        waiting = {parcel.ticket for parcel in parcels}
        answers: dict[int, bytes] = {}
        begun = wire.now()
        wire.send(parcels, network.seconds)
        while waiting and wire.now() - begun <= network.seconds:
            for reply in wire.receive():
                if reply.ticket not in waiting:
                    continue
                told = None if reply.body is None else self._read(network, reply.ticket, reply.body)
                if told is not None:
                    answers[int(reply.ticket.split("-")[1])] = told
                if told is not None or reply.final:
                    waiting.discard(reply.ticket)
            if waiting:
                wire.wait()
        wire.forget()
        return answers

    def _read(self, network: Network, ticket: str, body: bytes) -> bytes | None:
        """A member's message; None for a refusal, or for what cannot be trusted."""
        self.bytes_sent += len(body)
        try:
            header, tensors = frames.unseal(
                body, lambda header: network.badge(ticket, header), limit=network.limit
            )
        except Rejection:
            return None
        if isinstance(header, Refused):
            network.refuse(header)
            return None
        message = tensors.get("message")
        good = isinstance(header, Stepped) and header.ticket == ticket and message is not None
        if not good or message is None or message.dtype != np.uint8 or message.ndim != 1:
            return None
        return message.tobytes()
