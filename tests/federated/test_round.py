"""The round state machine and the gate."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from sequester.core.errors import SequesterError, UsageError
from sequester.federated import round as machine
from sequester.federated.algorithms import FedNova, LocalWork, Scaffold
from sequester.federated.gate import Limits, admit
from sequester.federated.messages import (
    Instruction,
    Layout,
    Reason,
    Rejection,
    Update,
    answer,
    version_of,
)

LAYOUT = Layout(("cell", "head"), ((2, 3), (2,)))


def order(**changes):
    plain = machine.Order("run", 3, "v0", (2, 5, 9), LAYOUT, deadline=10.0, secret=b"s")
    return replace(plain, **changes)


def delta(value=1.0):
    return LAYOUT.views(np.full(LAYOUT.size, value, dtype=np.float32))


def started(**changes):
    opened = machine.Round(order(**changes))
    (reserve,) = opened.handle(machine.Begin())
    assert reserve == machine.Reserve(f"run/round-{opened.order.round}")
    effects = opened.handle(machine.Reserved())
    return opened, [effect.instruction for effect in effects if isinstance(effect, machine.Send)]


def finish(opened):
    trail = []
    for event in (
        machine.Aggregated(),
        machine.Sealed(),
        machine.Released(),
        machine.Committed(),
        machine.Saved(),
    ):
        trail += opened.handle(event)
    return [type(effect).__name__ for effect in trail]


def test_a_round_reserves_sends_aggregates_seals_releases_commits_and_saves_in_this_order():
    opened, instructions = started()
    assert [item.client for item in instructions] == [2, 5, 9]
    effects = []
    for item in reversed(instructions):
        effects += opened.handle(machine.Arrived(answer(item, delta(item.client)), 1.0))
    *adds, aggregate = effects
    assert [(add.accepted.client, float(add.accepted.delta[0])) for add in adds] == [
        (2, 2.0),
        (5, 5.0),
        (9, 9.0),
    ]
    assert [part.client for part in aggregate.accepted] == [2, 5, 9]
    assert finish(opened) == ["Seal", "Release", "Commit", "Save", "Done"]


def test_nothing_is_sent_when_the_ledger_refuses():
    opened = machine.Round(order())
    opened.handle(machine.Begin())
    (effect,) = opened.handle(machine.Refused())
    assert isinstance(effect, machine.Abandon)
    assert opened.phase is machine.Phase.ABANDONED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "other"}, Reason.WRONG_RUN),
        ({"round": 2}, Reason.WRONG_ROUND),
        ({"round": 4}, Reason.WRONG_ROUND),
        ({"client": 7}, Reason.UNKNOWN_CLIENT),
        ({"version": "v1"}, Reason.WRONG_VERSION),
        ({"nonce": "guess"}, Reason.WRONG_NONCE),
        ({"steps": 0}, Reason.BAD_STEPS),
        ({"steps": 2.0}, Reason.BAD_STEPS),
        ({"weight": 0.0}, Reason.BAD_WEIGHT),
        ({"weight": -1.0}, Reason.BAD_WEIGHT),
        ({"weight": 1e9}, Reason.BAD_WEIGHT),
        ({"weight": float("nan")}, Reason.BAD_WEIGHT),
        ({"weight": "9"}, Reason.BAD_WEIGHT),
        ({"tensors": {"cell": delta()["cell"]}}, Reason.MISSING_TENSOR),
        ({"tensors": {**delta(), "more": delta()["head"]}}, Reason.EXTRA_TENSOR),
        ({"tensors": {**delta(), "head": np.ones((1,), np.float32)}}, Reason.WRONG_SHAPE),
        ({"tensors": {**delta(), "head": np.ones((2, 2), np.float32)}}, Reason.WRONG_SHAPE),
        ({"tensors": {**delta(), "head": np.ones(2)}}, Reason.WRONG_DTYPE),
        ({"tensors": {**delta(), "head": np.ones(2, np.int64)}}, Reason.WRONG_DTYPE),
        ({"tensors": {**delta(), "head": [1.0, 2.0]}}, Reason.MALFORMED),
        ({"tensors": delta(float("nan"))}, Reason.NOT_FINITE),
        ({"tensors": delta(float("-inf"))}, Reason.NOT_FINITE),
        ({"tensors": delta(1e30)}, Reason.TOO_LARGE),
        ({"tensors": delta(0.0)}, Reason.ZERO),
    ],
)
def test_a_bad_update_is_counted_by_reason_and_the_round_goes_on(change, reason):
    opened, (first, second, third) = started()
    bad = replace(answer(first, delta()), **change)
    opened.handle(machine.Arrived(bad, 1.0))
    assert opened.rejected == {reason: 1}
    for item in (second, third):
        opened.handle(machine.Arrived(answer(item, delta()), 1.0))
    opened.handle(machine.Clock(10.5))
    assert opened.phase is machine.Phase.AGGREGATING
    assert [part.client for part in opened.accepted] == [5, 9]


def test_somebody_elses_bad_message_does_not_silence_a_client():
    opened, (first, *_) = started()
    opened.handle(machine.Arrived(replace(answer(first, delta()), nonce="forged"), 1.0))
    opened.handle(machine.Arrived(answer(first, delta()), 2.0))
    assert [part.client for part in opened.accepted] == [2]


def test_a_replay_counts_once():
    opened, (first, *_) = started()
    for now in (1.0, 1.1, 1.2):
        opened.handle(machine.Arrived(answer(first, delta()), now))
    assert len(opened.accepted) == 1
    assert opened.rejected == {Reason.REPLAYED: 2}


def test_a_late_update_never_enters_this_round_nor_a_later_one():
    opened, (first, second, third) = started()
    opened.handle(machine.Arrived(answer(first, delta()), 1.0))
    opened.handle(machine.Clock(10.5))
    opened.handle(machine.Arrived(answer(second, delta()), 10.6))
    assert [part.client for part in opened.accepted] == [2]
    assert opened.rejected == {Reason.LOST: 2, Reason.LATE: 1}
    later, _ = started(round=4, version="v1")
    later.handle(machine.Arrived(answer(third, delta()), 1.0))
    assert not later.accepted
    assert later.rejected == {Reason.WRONG_ROUND: 1}


def test_a_private_round_with_nobody_still_releases_noise_and_a_plain_one_is_abandoned():
    private, _ = started(cohort=(), private=True)
    assert private.phase is machine.Phase.AGGREGATING
    assert finish(private)[-1] == "Done"
    plain, _ = started(quorum=2)
    (*_, effect) = [plain.handle(machine.Lost(client)) for client in (2, 5, 9)][-1]
    assert isinstance(effect, machine.Abandon)


def test_an_update_is_given_away_as_soon_as_nobody_before_it_is_awaited():
    """What a sum of thousands may cost in memory: one update, not all of them."""
    opened, (first, second, third) = started()

    def given(event):
        return [e.accepted.client for e in opened.handle(event) if isinstance(e, machine.Add)]

    assert given(machine.Arrived(answer(second, delta()), 1.0)) == []
    assert given(machine.Arrived(answer(first, delta()), 1.0)) == [2, 5]
    assert given(machine.Arrived(answer(third, delta()), 1.0)) == [9]
    assert all(part.delta.size == 0 for part in opened.accepted)
    opened, (first, second, third) = started()
    assert given(machine.Arrived(answer(third, delta()), 1.0)) == []
    assert given(machine.Lost(first.client)) == []
    assert given(machine.Lost(second.client)) == [9]


def test_a_cohort_with_a_repeated_client_is_refused():
    with pytest.raises(UsageError, match="SQ-602"):
        machine.Round(order(cohort=(1, 2, 1)))


def test_a_driver_out_of_order_cannot_draw_noise_twice():
    opened, _ = started(cohort=(), private=True)
    opened.handle(machine.Aggregated())
    opened.handle(machine.Sealed())
    with pytest.raises(SequesterError, match="SQ-603"):
        opened.handle(machine.Sealed())


def test_thousands_of_random_networks_never_break_an_invariant():
    """Loss, delay, duplication, reordering, corruption and forgery, 2,000 seeds."""
    for seed in range(2000):
        chance = random.Random(seed)
        opened, instructions = started(private=True)
        honest = {item.client: answer(item, delta(item.client)) for item in instructions}
        mail = [update for update in honest.values() for _ in range(chance.randint(0, 3))]
        mail += [replace(chance.choice([*honest.values()]), round=2) for _ in range(2)]
        mail += [replace(honest[5], tensors=delta(float("inf")), nonce="x")]
        mail += [machine.Lost(chance.choice([2, 5, 9, 11]))]
        chance.shuffle(mail)
        now, aggregates, added = 0.0, [], []
        for item in mail:
            now += chance.random() * 2
            event = item if isinstance(item, machine.Lost) else machine.Arrived(item, now)
            effects = opened.handle(event)
            aggregates += [e for e in effects if isinstance(e, machine.Aggregate)]
            added += [e.accepted for e in effects if isinstance(e, machine.Add)]
        effects = opened.handle(machine.Clock(99.0))
        aggregates += [e for e in effects if isinstance(e, machine.Aggregate)]
        added += [e.accepted for e in effects if isinstance(e, machine.Add)]
        assert len(aggregates) == 1, seed
        for part in added:
            assert np.all(part.delta == part.client), seed
        clients = [part.client for part in added]
        assert clients == sorted(set(clients)), seed
        assert clients == [part.client for part in aggregates[0].accepted], seed
        assert finish(opened)[-1] == "Done"


def test_versions_differ_with_weights_and_with_layout():
    model = np.arange(LAYOUT.size, dtype=np.float32)
    moved = model.copy()
    moved[3] = np.nextafter(moved[3], np.float32(9))
    other = Layout(("cell", "head"), ((3, 2), (2,)))
    assert (
        len({version_of(LAYOUT, model), version_of(LAYOUT, moved), version_of(other, model)}) == 3
    )


def test_the_gate_keeps_the_numbers_it_lets_through():
    instruction = Instruction("run", 0, "v", 1, "n", 1.0)
    update: Update = answer(instruction, delta(-2.5), steps=4, weight=32)
    accepted = admit(update, LAYOUT, Limits())
    assert accepted.steps == 4
    np.testing.assert_array_equal(accepted.delta, -2.5)
    with pytest.raises(Rejection):
        admit(update, LAYOUT, Limits(largest=1.0))


@pytest.mark.parametrize("algorithm", [FedNova(), Scaffold(24)])
def test_nobody_has_taken_more_steps_than_its_windows_make(algorithm):
    """Two passes over 7 windows in threes are 6 steps; FedNova and SCAFFOLD divide by them."""
    instruction = Instruction("run", 0, "v", 1, "n", 1.0)
    limits = Limits(weight=100.0, work=algorithm.local(LocalWork(0.1, epochs=2, batch=3)))
    for steps, weight, reason in (
        (6, 7.0, None),
        (7, 7.0, Reason.BAD_STEPS),
        (2, 0.5, None),
        (10**6, 7.0, Reason.BAD_STEPS),
        (10**6, 1e9, Reason.BAD_WEIGHT),
        (1, float("nan"), Reason.BAD_WEIGHT),
        (1, float("inf"), Reason.BAD_WEIGHT),
    ):
        sent = answer(instruction, delta(), steps=steps, weight=weight)
        if reason is None:
            assert admit(sent, LAYOUT, limits).steps == steps
        else:
            with pytest.raises(Rejection) as caught:
                admit(sent, LAYOUT, limits)
            assert caught.value.reason == reason
