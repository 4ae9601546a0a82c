"""The server: collects what arrives, closes a phase when told to, opens nothing but the sum.

A pure state machine: the caller carries bytes, decides how long to wait and calls `close`.
Whoever has not answered by then has dropped out; what comes later is counted and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from sequester.core.errors import SequesterError, UsageError, VerificationError
from sequester.secagg import crypto, masks, parcels
from sequester.secagg.context import Context, signed_bytes
from sequester.secagg.faults import Faults
from sequester.secagg.masks import Words
from sequester.secagg.messages import (
    Advert,
    Confirm,
    Confirmed,
    Delivery,
    Entry,
    Masked,
    Offer,
    Peers,
    Reveal,
    Sealed,
    Shares,
    Survivors,
    Tag,
)
from sequester.secagg.opening import Opening
from sequester.secagg.session import Roster, Session
from sequester.secagg.wire import to_bitmap


class Phase(IntEnum):
    """What the server collects: the type of the messages that are due."""

    ADVERT = 2
    SHARES = 4
    MASKED = 6
    CONFIRM = 8
    REVEAL = 10
    DONE = 100
    ABORTED = 101


# Refusals that no honest member's message meets, however late or lost others are.
_FAULTS = (701, 709, 722)


@dataclass(frozen=True)
class Outcome:
    """What a finished round leaves.

    Attributes:
        total: The sum of the survivors' vectors.
        survivors: Whose vectors are in it.
        dropped: Members of the cohort whose vectors are not.
        blamed: Members who broke the protocol for certain; what they sent was left out and the
            sum is right without it.
        disputes: Pairs (accused, accuser) of whom one did, unless `blamed` says which.
        late: Messages that came after their phase was closed.
        streams: Masks the server took off: its work.
    """

    total: Words
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]
    blamed: tuple[int, ...]
    disputes: tuple[tuple[int, int], ...]
    late: int
    streams: int


@dataclass
class Arrived:
    """What the server has been sent, by member."""

    adverts: dict[int, Advert] = field(default_factory=dict)
    shares: dict[int, Shares] = field(default_factory=dict)
    masked: set[int] = field(default_factory=set)
    confirms: dict[int, Confirm] = field(default_factory=dict)
    reveals: dict[int, Reveal] = field(default_factory=dict)


class Server:
    """One round's server.

    Attributes:
        session: The round's parameters.
        phase: What it collects.
        late: Messages that came after their phase was closed.
        outcome: Once the round is done.
        faults: Who broke the protocol so far, whether the round ends well or not.
    """

    def __init__(self, session: Session, roster: Roster) -> None:
        """Open a round.

        Raises:
            UsageError: SQ-723 when the session names another roster.
        """
        if session.roster != roster.digest:
            raise UsageError(723, "the session was made for another roster of members")
        self.session = session
        self.phase = Phase.ADVERT
        self.late = 0
        self.outcome: Outcome | None = None
        self.faults = Faults()
        self._roster = roster
        self._arrived = Arrived()
        self._shown: dict[bytes, int] = {}
        self._sum = Words.zeros(session.length, session.wide, session.bits)

    def offer(self) -> bytes:
        """What every member is sent first."""
        return Offer(self.session).encode()

    def receive(self, member: int, message: bytes) -> bool:
        """Take one answer.

        Args:
            member: Who the transport says it comes from.
            message: The bytes.

        Returns:
            Whether it counts; False for one that came after its phase was closed, or twice.

        Raises:
            VerificationError: SQ-701, 702, 703, 709, 710 or 722; the message does not count and
                its sender is named in `faults`, unless the message was made for another place.
        """
        try:
            return self._receive(member, message)
        except VerificationError as refusal:
            if refusal.code in _FAULTS and member in self._roster.keys:
                self.faults.blame(member, refusal.code)
            raise

    def _receive(self, member: int, message: bytes) -> bool:
        kind = message[5] if len(message) > 5 else 0
        if kind < self.phase and kind in set(Phase):
            self.late += 1
            return False
        if self.phase is Phase.ADVERT:
            return self._take_advert(member, message)
        if self.phase is Phase.SHARES:
            return self._take_shares(member, message)
        if self.phase is Phase.MASKED:
            return self._take_masked(member, message)
        if self.phase is Phase.CONFIRM:
            return self._take_confirm(member, message)
        return self._take_reveal(member, message)

    def close(self) -> dict[int, bytes]:
        """End the phase: what to send to whom next, or nothing when the round is over.

        Raises:
            VerificationError: SQ-714 when too few members are left, SQ-716 when a member's
                secret cannot be opened. The round is over and nothing was opened.
        """
        step = {
            Phase.ADVERT: self._send_peers,
            Phase.SHARES: self._send_parcels,
            Phase.MASKED: self._send_survivors,
            Phase.CONFIRM: self._send_tags,
            Phase.REVEAL: self._finish,
        }.get(self.phase)
        if step is None:
            raise VerificationError(703, f"the round is {self.phase.name.lower()} already")
        try:
            return step()
        except SequesterError as refusal:
            self.phase = Phase.ABORTED
            self._sum = Words.zeros(1, 0, self.session.bits)
            told = self.faults.told()
            if not told:
                raise
            raise VerificationError(refusal.code, f"{refusal.message} ({told})") from None

    def _known(self, member: int, claimed: int, taken: bool, expected: bool) -> bool:
        """Whether a message counts; refuse one under another member's name."""
        if claimed != member or not expected:
            raise VerificationError(709, f"member {member} may not send this message")
        return not taken

    def _take_advert(self, member: int, message: bytes) -> bool:
        advert = Advert.decode(message, self.session)
        adverts, keys = self._arrived.adverts, advert.keys
        enrolled = self._roster.keys.get(member)
        if not self._known(member, keys.member, member in adverts, enrolled is not None):
            return False
        signed = signed_bytes(self.session, keys, advert.nonce)
        if self.session.active and not crypto.is_signed(enrolled or b"", keys.signature, signed):
            raise VerificationError(709, f"member {member} did not sign these keys for this round")
        self._check_keys(member, {keys.channel, keys.mask})
        adverts[member] = advert
        return True

    def _check_keys(self, member: int, shown: set[bytes]) -> None:
        """Keep out keys for which every neighbour would have to leave."""
        if any(map(crypto.has_low_order, shown)):
            raise VerificationError(
                722, f"member {member} shows a public key of low order and is left out"
            )
        others = {self._shown[key] for key in shown if key in self._shown}
        self.faults.disputes |= {(member, other) for other in others}
        if len(shown) < 2:
            self.faults.blame(member, 710)
        if others or len(shown) < 2:
            raise VerificationError(
                710, f"member {member} shows a public key that was shown before and is left out"
            )
        self._shown |= dict.fromkeys(shown, member)

    def _take_shares(self, member: int, message: bytes) -> bool:
        shares = Shares.decode(message, self.session)
        taken = self._arrived.shares
        if not self._known(member, shares.member, member in taken, member in self._arrived.adverts):
            return False
        receivers = tuple(parcel.peer for parcel in shares.parcels)
        if receivers != self._context.graph.neighbours(member):
            raise VerificationError(709, f"member {member} did not deal to its neighbours")
        taken[member] = shares
        return True

    def _take_masked(self, member: int, message: bytes) -> bool:
        masked = Masked.decode(message, self.session)
        taken = self._arrived.masked
        if not self._known(member, masked.member, member in taken, member in self._arrived.shares):
            return False
        session = self.session
        shape = session.length, session.wide, session.bits
        if len(masked.words) != masks.packed_bytes(*shape):
            raise VerificationError(701, f"member {member} sent a vector of the wrong length")
        self._sum.add(masks.unpack(masked.words, *shape))
        taken.add(member)
        return True

    def _take_confirm(self, member: int, message: bytes) -> bool:
        confirm = Confirm.decode(message, self.session)
        taken = self._arrived.confirms
        expected = member in self._arrived.masked
        if not self._known(member, confirm.member, member in taken, expected):
            return False
        if tuple(peer for peer, _ in confirm.tags) != self._surviving_peers(member):
            raise VerificationError(709, f"member {member} did not confirm to its neighbours")
        taken[member] = confirm
        return True

    def _take_reveal(self, member: int, message: bytes) -> bool:
        reveal = Reveal.decode(message, self.session)
        taken = self._arrived.reveals
        expected = member in self._arrived.masked
        if not self._known(member, reveal.member, member in taken, expected):
            return False
        if not self._is_due(member, reveal):
            raise VerificationError(
                709, f"member {member} revealed other shares than it was asked for"
            )
        for peer in reveal.doubts:
            self.faults.doubt(peer, member, self._context.most_corrupt)
        taken[member] = reveal
        return True

    def _surviving_peers(self, member: int) -> tuple[int, ...]:
        arrived = self._arrived.masked
        return tuple(n for n in self._context.graph.neighbours(member) if n in arrived)

    def _is_due(self, member: int, reveal: Reveal) -> bool:
        """Whether an honest member could answer so: all due shares but those it doubts.

        Instead of them one that too few confirm reveals nothing.
        """
        arrived, graph, doubts = self._arrived, self._context.graph, set(reveal.doubts)
        peers = set(self._surviving_peers(member))
        seeds = peers | ({member} if graph.is_full else set())
        keys = (set(graph.neighbours(member)) & arrived.shares.keys()) - arrived.masked
        gives = {share.peer for share in reveal.seeds}, {share.peer for share in reveal.keys}
        if not doubts <= peers | keys:
            return False
        if self.session.active and gives == (set(), set()):
            confirming = (peers & arrived.confirms.keys()) - doubts
            if len(confirming) + graph.is_full < self.session.threshold:
                return True
        # A share may come from one who is doubted: for its tag, not for its parcel.
        pairs = zip((seeds, keys), gives, strict=True)
        return all(due - doubts <= given <= due for due, given in pairs)

    def _enough(self, present: int, needed: int, what: str) -> None:
        if present < needed:
            raise VerificationError(
                714, f"{present} members {what}, {needed} must; the round ends and opens nothing"
            )

    def _send_peers(self) -> dict[int, bytes]:
        adverts = self._arrived.adverts
        self._enough(len(adverts), self.session.min_cohort, "joined")
        cohort = tuple(Entry(member, adverts[member].nonce) for member in sorted(adverts))
        self._context = Context(self.session, cohort)
        self.phase = Phase.SHARES
        graph, session = self._context.graph, self.session.digest
        return {
            member: Peers(
                session, cohort, tuple(adverts[n].keys for n in graph.neighbours(member))
            ).encode()
            for member in graph.members
        }

    def _send_parcels(self) -> dict[int, bytes]:
        dealt = self._arrived.shares
        self._enough(len(dealt), self.session.min_survivors, "dealt shares")
        inbox: dict[int, list[Delivery]] = {member: [] for member in dealt}
        for dealer in sorted(dealt):
            for parcel in dealt[dealer].parcels:
                if parcel.peer in inbox:
                    inbox[parcel.peer].append(parcels.deliver(self._context, dealer, parcel))
        self.phase = Phase.MASKED
        session = self.session.digest
        return {member: Sealed(session, tuple(box)).encode() for member, box in inbox.items()}

    def _send_survivors(self) -> dict[int, bytes]:
        arrived = self._arrived.masked
        self._enough(len(arrived), self.session.min_survivors, "sent a vector")
        bitmap = to_bitmap(member in arrived for member in self._context.graph.members)
        self.phase = Phase.CONFIRM if self.session.active else Phase.REVEAL
        message = Survivors(self.session.digest, bitmap).encode()
        return dict.fromkeys(sorted(arrived), message)

    def _send_tags(self) -> dict[int, bytes]:
        confirms = self._arrived.confirms
        self._enough(len(confirms), self.session.threshold, "confirmed the survivors")
        inbox: dict[int, list[Tag]] = {member: [] for member in confirms}
        for sender in sorted(confirms):
            for peer, tag in confirms[sender].tags:
                if peer in inbox:
                    inbox[peer].append(Tag(sender, tag))
        self.phase = Phase.REVEAL
        session = self.session.digest
        return {member: Confirmed(session, tuple(box)).encode() for member, box in inbox.items()}

    def _finish(self) -> dict[int, bytes]:
        arrived = self._arrived
        self._enough(len(arrived.reveals), self.session.threshold, "revealed shares")
        opening = Opening(
            self._context, arrived.adverts, arrived.shares, arrived.reveals, self.faults
        )
        survivors = tuple(sorted(arrived.masked))
        streams = opening.unmask(self._sum, survivors)
        members = self._context.graph.members
        self.outcome = Outcome(
            total=self._sum,
            survivors=survivors,
            dropped=tuple(m for m in members if m not in arrived.masked),
            blamed=tuple(sorted(self.faults.blamed)),
            disputes=tuple(sorted(self.faults.disputes)),
            late=self.late,
            streams=streams,
        )
        self.phase = Phase.DONE
        return {}
