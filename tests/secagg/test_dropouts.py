"""Whoever leaves, whenever: the sum of those who stayed is exact, or nothing is opened."""

import itertools

import pytest

from sequester.core.errors import SequesterError
from sequester.core.rng import public_generator
from sequester.secagg.client import Client
from sequester.secagg.graph import Threats, full_threshold, sparse_parameters
from sequester.secagg.policy import Policy
from sequester.secagg.simulator import PHASES, enrol, open_round, roster_of
from tests.secagg.rounds import (
    CONFIG,
    LAX,
    MODEL,
    expected_sum,
    is_exact,
    play,
    session_for,
    vectors_for,
)

STAYS = None


@pytest.mark.parametrize("members", [3, 4])
def test_every_pattern_of_dropouts_in_every_phase(members: int) -> None:
    outcomes = {"exact": 0, "refused": 0}
    for pattern in itertools.product([STAYS, *PHASES], repeat=members):
        drops = {m: phase for m, phase in enumerate(pattern) if phase}
        outcomes[_check(members, drops)] += 1
    assert outcomes["exact"] > 0
    assert outcomes["refused"] > 0


@pytest.mark.parametrize(("members", "patterns"), [(5, 300), (6, 300)])
def test_patterns_up_to_symmetry_in_cohorts_of_five_and_six(members: int, patterns: int) -> None:
    # Every multiset of phases, its members in a drawn order: the protocol knows members only
    # by the order of their numbers. `benchmarks/secagg/dropouts.py` runs all 6ⁿ patterns.
    draw = public_generator(members)
    multisets = list(itertools.combinations_with_replacement([STAYS, *PHASES], members))
    for choice in draw.permutation(len(multisets))[:patterns]:
        order = draw.permutation(members)
        drops = {int(m): p for m, p in zip(order, multisets[choice], strict=True) if p}
        _check(members, drops)


def _check(members: int, drops: dict[int, str]) -> str:
    """Play one pattern; an exact sum is due exactly if enough members stay in each phase."""
    threshold = full_threshold(members, Threats(0.0, 0.0))
    gone = {phase: 0 for phase in PHASES}
    for at, phase in enumerate(PHASES):
        gone[phase] = sum(1 for p in drops.values() if PHASES.index(p) <= at)
    joined = members - gone["advert"]
    enough = all(members - gone[phase] >= threshold for phase in PHASES) and joined >= threshold
    if not enough:
        with pytest.raises(SequesterError) as refusal:
            play(range(members), drops, threshold=threshold, length=5)
        assert refusal.value.code in {705, 714, 715}, refusal
        return "refused"
    session, vectors, done = play(range(members), drops, threshold=threshold, length=5)
    assert is_exact(session, vectors, done), drops
    left = {m for m, p in drops.items() if p in {"advert", "shares", "masked"}}
    assert done.outcome.survivors == tuple(m for m in range(members) if m not in left)
    return "exact"


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("length", [1, 2, 17, 70001])
def test_words_of_every_width_sum_exactly(bits: int, active: bool, length: int) -> None:
    session, vectors, done = play(
        range(5), {1: "masked"}, bits=bits, active=active, length=length, wide=8
    )
    assert is_exact(session, vectors, done)


@pytest.mark.parametrize("members", range(2, 13))
def test_rounds_of_every_small_size_stay_exact(members: int) -> None:
    for number in range(19):  # 209 rounds over all sizes
        session, vectors, done = play(
            [7 * m + 3 for m in range(members)], round_number=number, seed=number, length=9
        )
        assert is_exact(session, vectors, done)


def test_a_ring_survives_random_dropouts() -> None:
    members = 120
    degree, threshold = sparse_parameters(members, Threats(0.05, 0.1))
    assert degree < members - 1
    draw = public_generator(3)
    for _ in range(2):
        leaving = draw.permutation(members)[:12]
        drops = {int(m): PHASES[int(draw.integers(0, 5))] for m in leaving}
        session, vectors, done = play(
            range(members), drops, degree=degree, threshold=threshold, length=64,
            policy=Policy(2, 0.1, 0.05, 1, degree=2),
        )  # fmt: skip
        assert is_exact(session, vectors, done)


def test_late_answers_change_nothing() -> None:
    from sequester.secagg.simulator import enrol, open_round
    from tests.secagg.rounds import expected_sum, session_for, vectors_for

    identities = enrol(range(5), 1)
    session = session_for(identities)
    server, clients = open_round(session, identities, LAX)
    vectors = vectors_for(session, identities)
    outbox, held_back = dict.fromkeys(clients, server.offer()), []
    for _ in range(5):
        for member, message in outbox.items():
            answer = clients[member].answer(message, vectors[member])
            if member == 4 and server.phase.name == "MASKED":
                held_back.append(answer)
            else:
                assert server.receive(member, answer)
        outbox = server.close()
        if held_back:
            assert server.receive(4, held_back[0]) is False if server.phase < 100 else True
    assert server.outcome is not None
    assert server.outcome.late >= 1
    assert server.outcome.survivors == (0, 1, 2, 3)
    narrow, _ = expected_sum(session, vectors, range(4))
    assert [int(v) for v in server.outcome.total.narrow] == narrow


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_client_that_restarts_within_a_round_has_dropped_out(phase: str) -> None:
    """Its secrets were in memory only; a fresh one joins no round that is under way."""
    identities = enrol(range(5), 1)
    session = session_for(identities)
    server, clients = open_round(session, identities, LAX)
    vectors = vectors_for(session, identities)
    outbox = dict.fromkeys(clients, server.offer())
    while server.outcome is None:
        for member, message in outbox.items():
            if member == 2 and server.phase.name.lower() == phase:
                fresh = Client(
                    identities[2], roster_of(identities), LAX, model=MODEL, config=CONFIG
                )
                with pytest.raises(SequesterError, match="SQ-703"):
                    fresh.answer(message, vectors[2])
                # Even if it is offered the round again, its new keys come too late.
                assert not server.receive(2, fresh.answer(server.offer()))
                clients.pop(2)
            if member in clients:
                server.receive(member, clients[member].answer(message, vectors[member]))
        outbox = server.close()
    survives = phase in ("confirm", "reveal")
    assert (2 in server.outcome.survivors) == survives
    narrow, _ = expected_sum(session, vectors, server.outcome.survivors)
    assert server.outcome.total.narrow.tolist() == narrow
