"""The filter's arithmetic against an accountant that we did not write, and against itself."""

import math
from fractions import Fraction

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from sequester import accounting
from sequester.accounting import ApproximateDP, Composed, Gaussian, PoissonSampled, SelfComposed
from sequester.ledger.charges import (
    ATTO,
    NANO,
    NEVER,
    NOTHING,
    ORDERS,
    SLACK_SHARE,
    Charge,
    allowance,
    charge_of,
    epsilon_of,
    largest,
)

ADJACENCY = "add-or-remove"
charges = st.lists(st.integers(0, 2**50), min_size=len(ORDERS), max_size=len(ORDERS)).map(
    lambda values: Charge(tuple(values))
)


def test_ladder_is_what_ledgers_on_disk_were_written_with() -> None:
    assert ORDERS == (1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64, 128, 256, 512)


@pytest.mark.parametrize("noise", [0.7, 1.1, 3.0])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.2])
@pytest.mark.parametrize("steps", [1, 100, 5000])
def test_a_charge_is_never_below_another_accountants_value(
    noise: float, rate: float, steps: int
) -> None:
    event = SelfComposed(PoissonSampled(rate, Gaussian(noise)), steps)
    theirs = RdpAccountant(list(ORDERS))
    theirs.compose(
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps
        )
    )
    ours = charge_of(event, ADJACENCY)
    others = [steps * divergence(1.5, rate, noise), *theirs._rdp[1:]]
    for order, nano, other in zip(ORDERS, ours.rdp, others, strict=True):
        assert nano / NANO == pytest.approx(other, rel=1e-6, abs=2e-9), order
        assert nano >= math.floor(other * NANO * (1 - 1e-9))


def divergence(order: float, rate: float, noise: float) -> float:
    """Between the sampled Gaussian and plain noise, by plain quadrature."""

    def integrand(x: float) -> float:
        density = math.exp(-x * x / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return density * (ratio**order - 1 - order * (ratio - 1))

    excess, _ = quad(integrand, -12 * noise, 12 * noise + order, limit=500, epsabs=1e-15)
    return math.log1p(excess) / (order - 1)


@given(st.floats(0.01, 50.0), st.floats(1e-12, 1e-3), charges)
@settings(max_examples=60, deadline=None)
def test_what_is_within_an_allowance_keeps_the_ceiling(
    epsilon: float, delta: float, spent: Charge
) -> None:
    allowed = allowance(epsilon, delta)
    # The largest charges that fit at exactly one order each, as another library converts them.
    for at, order in enumerate(ORDERS):
        if allowed.rdp[at] < 0:
            continue
        rdp = [math.inf] * len(ORDERS)
        rdp[at] = allowed.rdp[at] / NANO
        share = delta * (1 - SLACK_SHARE) / len(ORDERS)
        theirs, _ = compute_epsilon([order], [rdp[at]], share)
        assert theirs <= epsilon * (1 + 1e-12)
        assert theirs >= epsilon - 1e-6 or rdp[at] == 0.0
    # What is shown as spent agrees with what is admitted.
    shown = epsilon_of(spent, delta)
    assert spent == NOTHING or spent.within(allowance(shown + 1e-6, delta))
    if shown > 1e-6:
        assert not spent.within(allowance(shown - 1e-6, delta))


def test_the_shares_of_delta_add_up_to_no_more_than_delta() -> None:
    for delta in (1e-12, 1e-6, 1e-3):
        share = Fraction(delta * (1 - SLACK_SHARE) / len(ORDERS)) * len(ORDERS)
        slack = Fraction(allowance(1.0, delta).slack, ATTO)
        assert share + slack <= Fraction(delta) * (1 + Fraction(1, 10**12))


@given(st.floats(0.5, 20.0), st.integers(1, 500), st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_parts_never_cost_less_than_the_whole(noise: float, first: int, second: int) -> None:
    step = PoissonSampled(0.01, Gaussian(noise))
    parts = charge_of(SelfComposed(step, first), ADJACENCY) + charge_of(
        SelfComposed(step, second), ADJACENCY
    )
    whole = charge_of(SelfComposed(step, first + second), ADJACENCY)
    for part, total in zip(parts.rdp, whole.rdp, strict=True):
        assert part >= total * (1 - 1e-12) - 1


@given(charges, charges)
@settings(deadline=None)
def test_adding_and_taking_back(one: Charge, other: Charge) -> None:
    assert (one + other) - other == one
    assert one + NOTHING == one
    assert (one + other).covers(one)
    assert largest([one, other]).covers(other)
    assert Charge.from_json((one + other).to_json()) == one + other


def test_what_has_reached_the_limit_stays_there() -> None:
    endless = charge_of(Gaussian(0.0), ADJACENCY)
    assert set(endless.rdp) == {NEVER}
    few = charge_of(Gaussian(5.0), ADJACENCY)
    assert ((few + endless) - endless).rdp == endless.rdp
    assert epsilon_of(endless, 1e-6) == math.inf
    assert not endless.within(allowance(1e6, 1e-6))
    assert max((endless + endless).to_json()) < 2**63


def test_slack_is_the_sum_of_what_may_fail() -> None:
    event = Composed((ApproximateDP(0.0, 1e-8), SelfComposed(ApproximateDP(0.5, 2e-8), 3)))
    assert charge_of(event, ADJACENCY).slack == pytest.approx(7e-8 * ATTO, rel=1e-9)
    assert charge_of(event, ADJACENCY).slack >= 7e-8 * ATTO * (1 - 1e-12)


def test_a_charge_covers_the_certified_epsilon() -> None:
    for event in (
        Gaussian(2.0),
        SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000),
        accounting.Laplace(1.0),
        accounting.ZCDP(0.2),
    ):
        bound = epsilon_of(charge_of(event, ADJACENCY), 1e-6)
        assert accounting.epsilon(event, 1e-6) <= bound < math.inf


@pytest.mark.parametrize(
    "bad", [[], [1] * 5, [1.0] * 17, [-1] * 17, ["1"] * 17, "x", None, [True] * 17]
)
def test_a_stored_charge_is_integers_and_nothing_else(bad: object) -> None:
    with pytest.raises(ValueError, match="list of integers"):
        Charge.from_json(bad)


def test_sharing_delta_among_orders_costs_a_logarithm() -> None:
    delta, epsilon = 1e-5, 3.0
    for nano, order in zip(allowance(epsilon, delta).rdp, ORDERS, strict=True):
        alone = epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)
        price = math.log(len(ORDERS) / (1 - SLACK_SHARE)) / (order - 1)
        if nano >= 0:
            assert nano / NANO == pytest.approx(alone - price, abs=2e-9)
        else:
            assert alone - price < 1e-9
