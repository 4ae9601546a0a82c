"""The auditor of the real training step: silent on the real one, loud on every planted fault."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from sequester.audit.mechanism import reference
from sequester.audit.mechanism.canaries import CanaryLot, CanaryTask, Design
from sequester.audit.mechanism.evidence import audit_mechanism, prepare
from sequester.audit.mechanism.observe import observe
from sequester.audit.mechanism.tiers import CURVE, ESTIMATE, GAUSSIAN
from sequester.core.errors import UsageError
from sequester.gradients import clipped_sum
from sequester.mechanism import AdaptiveClipping
from sequester.sampling import Lot
from sequester.training import Privacy
from sequester.training import loop as loop_module
from tests.audit.zoo import FAULTS, canaries_for, lot, subject, without_invariants

CANARIES = 200


@pytest.mark.parametrize(("index", "name"), list(enumerate(FAULTS)))
def test_every_planted_fault_is_caught(index, name):
    """At ε 2 and 8 in turn; ten seeds at both: `python -m benchmarks.audit.zoo`."""
    fault = FAULTS[name]
    canaries = canaries_for(fault)
    with without_invariants(), fault.plant():
        audit = audit_mechanism(fault.subject((2.0, 8.0)[index % 2]), canaries=canaries, seed=1)
    assert audit.alarm, [(check.name, check.p_value) for check in audit.battery.checks]


def test_an_engine_that_loop_and_observer_share_is_caught_by_the_float64_loop(monkeypatch):
    """Wrong by 1 % in both: the residual noise is perfect, the gradients are not."""

    def wrong(model, loss, lot, clip, *, chunk=None):
        found = clipped_sum(model, loss, lot, clip, chunk=chunk)
        return replace(found, sum={name: 1.01 * value for name, value in found.sum.items()})

    monkeypatch.setattr(loop_module, "clipped_sum", wrong)
    monkeypatch.setattr(reference, "clipped_sum", wrong)
    with without_invariants():
        audit = audit_mechanism(subject(2.0, steps=4), canaries=CANARIES, seed=6)
    assert "people's sum" in {check.name for check in audit.battery.failed}


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_the_real_step_raises_no_alarm(epsilon):
    for seed in (11, 12):
        audit = audit_mechanism(subject(epsilon), canaries=CANARIES, seed=seed)
        assert not audit.alarm, audit.battery.failed
        proofs = [tier.epsilon for tier in audit.tiers if tier.name != ESTIMATE]
        assert max(proofs) <= audit.claimed
        assert audit.claimed == pytest.approx(epsilon, rel=0.01)


def test_the_real_step_with_an_adaptive_bound_raises_no_alarm():
    adaptive = AdaptiveClipping(quantile=0.5, learning_rate=0.3, count_noise=4.0)
    audit = audit_mechanism(subject(4.0, adaptive=adaptive), canaries=CANARIES, seed=3)
    assert not audit.alarm, audit.battery.failed
    assert "count behind the bound" in {check.name for check in audit.battery.checks}


@pytest.mark.parametrize("clipping", ["per-layer", "automatic"])
def test_other_clipping_rules_raise_no_alarm(clipping):
    base = subject(4.0)
    study = msgspec.structs.replace(base.study, privacy=Privacy(epsilon=4.0, clipping=clipping))
    audit = audit_mechanism(replace(base, study=study), canaries=CANARIES, seed=4)
    assert not audit.alarm, audit.battery.failed


def test_canaries_gain_what_the_claim_allows_and_no_more():
    """One full-batch step: the Gaussian-DP tier reaches most of ε, as in theory."""
    base = subject(4.0, rate=1.0, steps=1)
    audit = audit_mechanism(base, canaries=1000, seed=5)
    found = next(tier for tier in audit.tiers if tier.name == GAUSSIAN)
    assert 0.5 * audit.claimed < found.epsilon < audit.claimed
    assert found.reach > audit.claimed


@pytest.mark.parametrize("view", ["sum", "final"])
def test_weaker_views_prove_something_and_nothing_false(view):
    """One full-batch step at ε = 8, where in theory f-DP proves 0.6 of ε from the sum."""
    base = subject(8.0, rate=1.0, steps=1)
    sound = audit_mechanism(base, canaries=600, seed=5, view=view)
    assert not sound.alarm, sound.battery.failed
    assert "final weights" in sound.sees or view == "sum"
    assert all(t.epsilon <= sound.claimed for t in sound.tiers if t.name != ESTIMATE)
    proved = {tier.name: tier.epsilon for tier in sound.tiers}
    assert proved[CURVE] > (0.4 if view == "sum" else 0.2) * sound.claimed
    assert (GAUSSIAN in proved) == (view == "sum")


def test_a_canary_is_a_person_with_windows_clipped_as_one():
    base = subject(4.0)
    design = Design.draw(base.model, 40, windows=3, seed=2)
    everybody = CanaryLot.of(base.people, design)
    task = CanaryTask.of(base.task, design, base.model, 64.0)
    only = everybody.pick(np.arange(base.people.people, everybody.people))
    found = clipped_sum(base.model, task.loss, only, 1.0)
    flat = torch.cat([v.reshape(-1) for v in found.sum.values()])
    inside = design.coordinate[design.inside]
    assert flat[torch.from_numpy(inside)].numpy() == pytest.approx(np.ones(len(inside)), abs=1e-5)
    assert float(flat.abs().sum()) == pytest.approx(len(inside), rel=1e-5)
    assert (np.bincount(only.owner.numpy()) == 3).all()


def test_people_are_untouched_by_the_canaries_beside_them():
    base = subject(4.0)
    design = Design.draw(base.model, 40, windows=3, seed=2)
    everybody = CanaryLot.of(base.people, design)
    task = CanaryTask.of(base.task, design, base.model, 64.0)
    people = np.arange(base.people.people)
    alone = clipped_sum(base.model, base.task.loss, base.people, 1.0)
    beside = clipped_sum(base.model, task.loss, everybody.pick(people), 1.0)
    for name, value in alone.sum.items():
        assert torch.allclose(value, beside.sum[name], atol=1e-5), name


def test_canaries_are_spread_over_tensors_without_sharing_a_weight():
    model = subject(4.0).model
    design = Design.draw(model, 300, windows=1, seed=0)
    assert len(set(design.coordinate.tolist())) == 300
    counts = np.bincount(design.tensor, minlength=len(design.names))
    sizes = np.diff(design.offsets)
    assert (counts >= np.minimum(sizes, 300 // len(sizes))).all()
    assert 90 < design.coins.sum() < 210
    with pytest.raises(UsageError, match="SQ-810"):
        Design.draw(model, 10**6, windows=1, seed=0)


def test_an_observation_is_repeatable_and_registered_before_it():
    base = subject(4.0, steps=3)
    first, second = (observe(base, canaries=50, seed=7) for _ in range(2))
    assert (first.signals == second.signals).all()
    assert prepare(base.plan, 50) is prepare(base.plan, 50)


def test_people_without_windows_and_tiny_lots_are_normal():
    base = subject(4.0, rate=0.05, people=6)
    empty = Lot(
        base.people.x[:4],
        base.people.mask[:4],
        base.people.target[:4],
        torch.tensor([0, 0, 3, 5]),
        6,
    )
    audit = audit_mechanism(replace(base, people=empty), canaries=12, seed=8)
    assert not audit.alarm, audit.battery.failed
    assert lot().people == 100
