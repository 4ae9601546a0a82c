"""A hypothesis machine drives a round through any order of messages, repeats and dropouts."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sequester.core.errors import SequesterError
from sequester.secagg import messages as m
from sequester.secagg.server import Phase
from sequester.secagg.simulator import enrol, open_round
from tests.secagg.rounds import LAX, expected_sum, session_for, vectors_for

MEMBERS = 5
FINISHED: list[int] = []
members = st.integers(0, MEMBERS - 1)


class Orders(RuleBasedStateMachine):
    @initialize(active=st.booleans())
    def begin(self, active: bool) -> None:
        identities = enrol(range(MEMBERS), 1)
        self.session = session_for(identities, length=4, active=active)
        self.server, self.clients = open_round(self.session, identities, LAX)
        self.vectors = vectors_for(self.session, identities)
        self.inbox = {i: [self.server.offer()] for i in self.clients}
        self.answers = {i: [] for i in self.clients}
        self.revealed: dict[int, bytes] = {}
        self.closed = False

    @rule(member=members, which=st.integers(0, 8))
    def deliver(self, member: int, which: int) -> None:
        """Any message the member was ever sent, in any order, as often as you like."""
        messages = self.inbox[member]
        message = messages[which % len(messages)]
        try:
            answer = self.clients[member].answer(message, self.vectors[member])
        except SequesterError:
            return
        self.answers[member].append(answer)
        if answer[5] == m.Reveal.type:
            assert self.revealed.setdefault(member, answer) == answer

    @rule(member=members, other=members, which=st.integers(0, 8))
    def misdeliver(self, member: int, other: int, which: int) -> None:
        """Another member's message."""
        messages = self.inbox[other]
        message = messages[which % len(messages)]
        if other == member or message[5] in {m.Offer.type, m.Survivors.type}:
            return  # Those are the same for everybody.
        stage = self.clients[member].stage
        try:
            self.clients[member].answer(message, self.vectors[member])
        except SequesterError:
            return
        # What was accepted must have been meant for everybody alike.
        assert stage == self.clients[member].stage or message in self.inbox[member]

    @rule(member=members, which=st.integers(0, 8))
    def receive(self, member: int, which: int) -> None:
        answers = self.answers[member]
        if answers and self.server.phase not in {Phase.DONE, Phase.ABORTED}:
            try:
                self.server.receive(member, answers[which % len(answers)])
            except SequesterError as refusal:
                # A second advert cannot exist: clients answer each message once.
                if refusal.code not in {703, 709}:
                    raise

    @precondition(lambda self: self.server.phase not in {Phase.DONE, Phase.ABORTED})
    @rule(absent=st.sets(members, max_size=1))
    def honest_phase(self, absent: set[int]) -> None:
        """Most members answer the latest message in order, then the phase is closed."""
        for member in set(self.clients) - absent:
            self.deliver(member, len(self.inbox[member]) - 1)
            self.receive(member, len(self.answers[member]) - 1)
        self.close()

    @precondition(lambda self: self.server.phase not in {Phase.DONE, Phase.ABORTED})
    @rule()
    def close(self) -> None:
        try:
            outbox = self.server.close()
        except SequesterError as refusal:
            assert refusal.code in {714, 716}  # noqa: PT017
            assert self.server.outcome is None
            return
        for member, message in outbox.items():
            self.inbox[member].append(message)

    @invariant()
    def the_sum_is_exact_or_absent(self) -> None:
        outcome = self.server.outcome
        if outcome is None:
            return
        FINISHED.append(len(outcome.survivors))
        narrow, wide = expected_sum(self.session, self.vectors, outcome.survivors)
        np.testing.assert_array_equal(outcome.total.narrow, np.array(narrow, np.uint32))
        np.testing.assert_array_equal(outcome.total.wide, np.array(wide, np.uint32))
        assert len(outcome.survivors) >= self.session.min_survivors

    @invariant()
    def nobody_reveals_both_secrets_of_a_peer(self) -> None:
        for answer in self.revealed.values():
            reveal = m.Reveal.decode(answer, self.session)
            assert not {s.peer for s in reveal.seeds} & {s.peer for s in reveal.keys}


Orders.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class TestOrders(Orders.TestCase):
    """Runs the machine, and sees to it that rounds really finish under it."""

    def runTest(self) -> None:
        super().runTest()
        assert len(FINISHED) > 20
