"""A server that lists fewer members than were invited gains nothing by it."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from sequester import secagg
from sequester.core.errors import LedgerRefusal
from sequester.secagg import graph

SECURITY = graph.SECURITY_BITS + graph.GRINDING_BITS


@pytest.mark.parametrize(("members", "dropout"), [(10, 0.3), (20, 0.1), (40, 0.25), (200, 0.2)])
def test_a_smaller_cohort_lowers_neither_threshold_nor_the_corrupt(members, dropout):
    plan = secagg.plan(members, 33, noise_multiplier=1.0, dropout=dropout, corrupt=0.1)
    corrupt, _ = plan.threats.counts(members)
    policy = plan.policy()
    told = plan.session("run", 0, model=bytes(32), roster=bytes(32))
    refused = 0
    for listed in range(plan.min_survivors, members + 1):
        for threshold in range(2, plan.neighbours + 1):
            lie = dataclasses.replace(told, threshold=threshold, min_survivors=2, min_cohort=2)
            try:
                policy.check_cohort(lie, listed)
            except LedgerRefusal:
                refused += 1
                continue
            assert threshold >= plan.threshold
            if plan.degree == 0:  # no two faces for one member: c of them answer both
                assert 2 * threshold > listed + corrupt
    assert refused


@pytest.mark.parametrize(("members", "dropout"), [(10, 0.3), (20, 0.1), (100, 0.4), (200, 0.2)])
def test_dropping_before_and_after_the_cohort_opens_no_smaller_sum(members, dropout):
    plan = secagg.plan(members, 33, noise_multiplier=1.0, dropout=dropout, corrupt=0.1)
    told = plan.session("run", 0, model=bytes(32), roster=bytes(32))
    lie = dataclasses.replace(told, min_survivors=2, min_cohort=2)
    for listed in range(plan.min_survivors, members + 1):
        with pytest.raises(LedgerRefusal, match="SQ-706"):
            plan.policy().check_survivors(lie, listed, plan.min_survivors - 1)
        plan.policy().check_survivors(lie, members, plan.min_survivors)


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize(("members", "full"), [(30, None), (40, True), (100, None), (200, True)])
def test_a_server_cannot_thin_the_neighbourhoods(members, full, active):
    """Neither below the plan's degree, nor from everybody to a ring."""
    plan = secagg.plan(members, 33, dropout=0.1, corrupt=0.05, active=active, full_graph=full)
    told = plan.session("run", 0, model=bytes(32), roster=bytes(32))
    tried = 0
    for listed in range(plan.min_cohort, members + 1):
        plan.policy().check_cohort(told, listed)
        for degree in range(plan.threshold + plan.threshold % 2, min(plan.neighbours, listed), 2):
            lie = dataclasses.replace(told, degree=degree)
            if degree < min(plan.neighbours, listed - 1):
                tried += 1
                with pytest.raises(LedgerRefusal, match="SQ-705"):
                    plan.policy().check_cohort(lie, listed)
    assert tried


def test_without_a_degree_a_policy_takes_the_full_graph_only():
    plan = secagg.plan(200, 33, dropout=0.1, corrupt=0.05)
    told = plan.session("run", 0, model=bytes(32), roster=bytes(32))
    assert plan.degree
    with pytest.raises(LedgerRefusal, match="SQ-705"):
        secagg.Policy(3, 0.1, 0.05).check_cohort(told, 200)
    secagg.Policy(3, 0.1, 0.05, degree=plan.degree).check_cohort(told, 200)


@pytest.mark.parametrize("members", [10, 20, 45, 100, 300])
def test_every_cohort_that_the_plan_allows_is_accepted(members):
    plan = secagg.plan(members, 33, noise_multiplier=1.0, dropout=0.1, corrupt=0.1)
    told = plan.session("run", 0, model=bytes(32), roster=bytes(32))
    assert plan.min_survivors <= plan.min_cohort <= members
    for listed in range(plan.min_cohort, members + 1):
        plan.policy().check_cohort(told, listed)


def test_the_corrupt_stay_as_many_however_few_are_listed():
    policy = secagg.Policy(min_cohort=2, corrupt=0.1, corrupt_members=4)
    told = secagg.plan(40, 33).session("run", 0, model=bytes(32), roster=bytes(32))
    for listed in range(5, 41):
        accepted = []
        for threshold in range(2, listed + 1):
            lie = dataclasses.replace(told, threshold=threshold, min_survivors=2, min_cohort=2)
            with contextlib.suppress(LedgerRefusal):
                policy.check_cohort(lie, listed)
                accepted.append(threshold)
        # t > 4 keeps a secret from the corrupt, 2t > n + 4 from a server that shows two faces.
        assert accepted == list(range(max(5, (listed + 4) // 2 + 1), listed + 1))
