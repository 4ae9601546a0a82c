"""A hypothesis machine plays a lying server with a helper against honest members.

It shows members two models, different cohorts, keys of its helper, parcels, survivor sets and
confirmations, in any order and again. Whatever it does, what the members gave away is added up as
a linear system over masks: nothing smaller than the policy's fewest honest members ever opens.
"""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sequester.core.errors import SequesterError
from sequester.secagg import crypto, parcels
from sequester.secagg import messages as m
from sequester.secagg.client import Client, Stage
from sequester.secagg.context import Context, id_bytes, signed_bytes
from sequester.secagg.policy import Policy
from sequester.secagg.simulator import enrol, roster_of
from sequester.secagg.wire import from_bitmap, to_bitmap
from tests.secagg.rounds import CONFIG, MODEL, session_for, vectors_for

MEMBERS, HELPER, THRESHOLD, DROPS = 6, 5, 4, 2
HONEST = range(HELPER)
FEWEST_HONEST = MEMBERS - DROPS - 1
POLICY = Policy(MEMBERS - 1, 0.34, 0.0, corrupt_members=1, min_survivors=MEMBERS - DROPS)
OPENED: Counter[int] = Counter()
honest = st.integers(0, HELPER - 1)
some = st.sets(st.integers(0, MEMBERS - 1), max_size=3)
gone = st.sets(honest, min_size=DROPS, max_size=DROPS) | some


class LyingServer(RuleBasedStateMachine):
    @initialize(second=st.sets(honest, max_size=1), phases=st.integers(0, 4), dropped=gone)
    def begin(self, second: set[int], phases: int, dropped: set[int]) -> None:
        """Some members are sent another model; the round may be some way along."""
        identities = enrol(range(MEMBERS), 1)
        self.helper, roster = identities[HELPER], roster_of(identities)
        models = (MODEL, b"M" * 32)
        self.sessions = [
            session_for(
                identities, length=4, model=model, threshold=THRESHOLD, min_cohort=MEMBERS - 1,
                min_survivors=MEMBERS - DROPS,
            )
            for model in models
        ]  # fmt: skip
        self.view = {i: int(i in second) for i in HONEST}
        self.clients = {
            i: Client(identities[i], roster, POLICY, model=models[self.view[i]], config=CONFIG)
            for i in HONEST
        }
        self.vectors = vectors_for(self.sessions[0], HONEST)
        self.private = [crypto.X25519PrivateKey.generate() for _ in range(4)]
        self.adverts: dict[int, m.Advert] = {}
        self.contexts: dict[int, Context] = {}
        self.keys: dict[int, m.Keys] = {}  # What a member was shown of the helper.
        self.dealt: dict[int, m.Shares] = {}
        self.dealers: dict[int, set[int]] = {}
        self.told: dict[int, bytes] = {}
        self.confirms: dict[int, m.Confirm] = {}
        self.reveals: dict[int, m.Reveal] = {}
        self.sent: list[bytes] = []
        everybody = set(HONEST)
        for step in (
            lambda: self.offer(everybody, False),
            lambda: self.peers(everybody - second, 0, second),
            lambda: self.sealed(everybody, set()),
            lambda: self.survivors(everybody - dropped, dropped),
        )[:phases]:
            step()

    def say(self, member: int, message: bytes) -> bytes | None:
        """Whatever a member answers is kept: a second, different reveal would be a find."""
        self.sent.append(message)
        try:
            answer = self.clients[member].answer(message, self.vectors[member])
        except SequesterError:
            return None
        if answer[5] == m.Reveal.type:
            reveal = m.Reveal.decode(answer, self.sessions[self.view[member]])
            assert self.reveals.setdefault(member, reveal) == reveal
        return answer

    @rule(members=st.sets(honest, min_size=1), other=st.booleans())
    def offer(self, members: set[int], other: bool) -> None:
        for member in members:
            session = self.sessions[self.view[member] ^ other]
            answer = self.say(member, m.Offer(session).encode())
            if answer and answer[5] == m.Advert.type:
                assert not other
                self.adverts[member] = m.Advert.decode(answer, session)

    def _helpers_advert(self, view: int, which: int) -> m.Advert:
        """The helper signs as many keys as it likes."""
        channel, mask = (
            key.public_key().public_bytes_raw() for key in self.private[2 * which : 2 * which + 2]
        )
        session, nonce = self.sessions[view], bytes([which] * m.NONCE_BYTES)
        keys = m.Keys(HELPER, channel, mask, b"")
        signature = self.helper.sign(signed_bytes(session, keys, nonce))
        return m.Advert(session.digest, keys._replace(signature=signature), nonce)

    @rule(members=st.sets(honest, min_size=1), which=st.integers(0, 1), without=some)
    def peers(self, members: set[int], which: int, without: set[int]) -> None:
        for member in members & self.adverts.keys():
            session = self.sessions[self.view[member]]
            adverts = self.adverts | {HELPER: self._helpers_advert(self.view[member], which)}
            shown = sorted(adverts.keys() - without)
            cohort = tuple(m.Entry(i, adverts[i].nonce) for i in shown)
            keys = tuple(adverts[i].keys for i in shown if i != member)
            answer = self.say(member, m.Peers(session.digest, cohort, keys).encode())
            if answer and answer[5] == m.Shares.type:
                self.contexts[member] = Context(session, cohort)
                self.keys[member] = adverts[HELPER].keys
                self.dealt[member] = m.Shares.decode(answer, session)

    def _with_helper(self, member: int) -> tuple[bytes, bytes]:
        keys = self.keys[member]
        which = 2 * int(keys.channel != self._helpers_advert(0, 0).keys.channel)
        secret = crypto.agree(self.private[which], self.adverts[member].keys.channel)
        return self.contexts[member].channel_keys(secret, keys, self.adverts[member].keys)

    @rule(members=st.sets(honest, min_size=1), without=some)
    def sealed(self, members: set[int], without: set[int]) -> None:
        for member in members & self.contexts.keys():
            context, box = self.contexts[member], []
            for dealer in context.graph.neighbours(member):
                if dealer in without:
                    continue
                if dealer == HELPER:
                    key = self._with_helper(member)[0]
                    parcel = parcels.pack(context, key, HELPER, member, bytes(2 * m.SHARE_BYTES))
                    box.append(parcels.deliver(context, HELPER, parcel))
                elif dealer in self.dealt:
                    mine = [p for p in self.dealt[dealer].parcels if p.peer == member]
                    box += [parcels.deliver(self.contexts[dealer], dealer, p) for p in mine]
            answer = self.say(member, m.Sealed(context.session.digest, tuple(box)).encode())
            if answer and answer[5] == m.Masked.type:
                self.dealers[member] = {parcel.peer for parcel in box}

    @rule(members=st.sets(honest, min_size=1), dropped=gone)
    def survivors(self, members: set[int], dropped: set[int]) -> None:
        for member in members & self.dealers.keys():
            context = self.contexts[member]
            bitmap = to_bitmap(i not in dropped for i in context.graph.members)
            answer = self.say(member, m.Survivors(context.session.digest, bitmap).encode())
            if answer and answer[5] == m.Confirm.type:
                self.told[member] = bitmap
                self.confirms[member] = m.Confirm.decode(answer, context.session)

    @rule(members=st.sets(honest, min_size=1), without=some)
    def confirmed(self, members: set[int], without: set[int]) -> None:
        for member in members & self.told.keys():
            context, tags = self.contexts[member], []
            for peer in context.graph.neighbours(member):
                if peer in without:
                    continue
                if peer == HELPER:
                    text = context.survivor_digest(self.told[member]), id_bytes(HELPER, member)
                    tags.append(
                        m.Tag(peer, crypto.tag(self._with_helper(member)[1], b"confirm\x00", *text))
                    )
                elif peer in self.confirms:
                    tags += [
                        m.Tag(peer, t.tag) for t in self.confirms[peer].tags if t.peer == member
                    ]
            arrived = from_bitmap(self.told[member], len(context.graph.members))
            alive = {i for i, here in zip(context.graph.members, arrived, strict=True) if here}
            tags = [tag for tag in tags if tag.peer in alive]
            self.say(member, m.Confirmed(context.session.digest, tuple(tags)).encode())

    @rule(two=st.sets(honest, max_size=2), dropped=gone, other=gone)
    def two_stories(self, two: set[int], dropped: set[int], other: set[int]) -> None:
        """Everybody is carried on, and some members are told of other survivors than the rest."""
        everybody = set(HONEST)
        self.offer(everybody, False)
        self.peers(everybody, 0, {i for i in HONEST if self.view[i]})
        self.sealed(everybody, set())
        self.survivors(everybody - two - dropped, dropped)
        self.survivors(two - other, other)
        self.confirmed(everybody, set())

    @rule(member=honest, which=st.integers(0, 200))
    def replay(self, member: int, which: int) -> None:
        """Anything that anybody was ever sent."""
        if self.sent:
            stage = self.clients[member].stage
            answer = self.say(member, self.sent[which % len(self.sent)])
            # What moved the member on must be kept, or the sums below would miss it.
            if answer and stage != self.clients[member].stage and stage < Stage.CONFIRMED:
                self.clients[member].stage = Stage.REFUSED

    def _is_open(self, dealer: int, kind: str) -> bool:
        """Whether t shares of one kind of a dealer's secrets are out; the helper holds one."""
        context = self.contexts[dealer]
        helped = int(HELPER in context.graph.neighbours(dealer))
        given = sum(
            dealer in {share.peer for share in getattr(reveal, kind)}
            for holder, reveal in self.reveals.items()
            if self.contexts[holder].digest == context.digest
        )
        return given + helped >= THRESHOLD

    @invariant()
    def never_both_secrets(self) -> None:
        for reveal in self.reveals.values():
            assert not {s.peer for s in reveal.seeds} & {s.peer for s in reveal.keys}
        for member in self.contexts:
            assert not (self._is_open(member, "seeds") and self._is_open(member, "keys"))

    def _unknown(self, member: int) -> set[int]:
        """Honest peers whose common mask with this member nobody gave away."""
        peers = self.dealers[member] - {HELPER}
        opened = {i for i in (*peers, member) if self._is_open(i, "keys")}
        return set() if member in opened else peers - opened

    @invariant()
    def what_opens_is_a_sum_of_enough_honest_members(self) -> None:
        left = set(self.dealers)
        while left:
            group, front = set(), {left.pop()}
            while front:
                one = front.pop()
                group.add(one)
                digest = self.contexts[one].digest
                joined = {
                    j for j in self._unknown(one) & self.dealers.keys()
                    if self.contexts[j].digest == digest and one in self.dealers[j]
                }  # fmt: skip
                front |= joined - group
            left -= group
            cancels = all(self._unknown(i) <= group for i in group)
            if cancels and all(self._is_open(i, "seeds") for i in group):
                OPENED[len(group)] += 1
                assert len(group) >= FEWEST_HONEST


LyingServer.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class TestLyingServer(LyingServer.TestCase):
    """Runs the machine, and sees to it that sums really open under it."""

    def runTest(self) -> None:
        super().runTest()
        assert sum(OPENED.values()) > 20
        assert FEWEST_HONEST in OPENED
