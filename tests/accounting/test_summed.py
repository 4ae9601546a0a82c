"""Sums of discrete Gaussian shares against their exact laws, in long arithmetic.

The oracle adds the shares up itself (mpmath, 40 digits) and knows nothing of any bound.
"""

import itertools
import math
from functools import lru_cache

import mpmath as mp
import numpy as np
import pytest

from sequester import accounting as acc
from sequester.accounting import accountant, gaussian, parts, summed

WORK = mp.workdps(40)
REAL = summed.near
EPSILONS = [0.0, 0.05, 0.3, 1.0, 2.0, 4.0, 7.0]


@lru_cache(maxsize=64)
def law(sigma: float, shares: int) -> tuple[list[mp.mpf], int]:
    """(masses, reach): the sum's law on −reach … reach, exactly but for mass below 1e-40."""
    with WORK:
        reach = math.ceil(14.0 * sigma) + 2
        one = [
            mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(sigma) ** 2)) for k in range(-reach, reach + 1)
        ]
        one = [x / mp.fsum(one) for x in one]
        total = one
        for _ in range(shares - 1):
            grown = [mp.mpf(0)] * (len(total) + len(one) - 1)
            for i, a in enumerate(total):
                for j, b in enumerate(one):
                    grown[i + j] += a * b
            total = grown
        return total, (len(total) - 1) // 2


@lru_cache(maxsize=64)
def losses(sigma: float, shares: int, shift: int) -> list[tuple[mp.mpf, mp.mpf]]:
    """(P, Q) of every outcome where Q is not 0; P is Q moved by `shift`."""
    with WORK:
        mass, reach = law(sigma, shares)
        width = 2 * reach + 1
        return [(mass[k - shift] if k >= shift else mp.mpf(0), mass[k]) for k in range(width)]


def true_delta(sigma: float, shares: int, shifts: tuple[int, ...], epsilon: float) -> float:
    """δ(ε) between the sum and the sum moved by an integer vector, less mass in far tails."""
    growth = float(mp.exp(epsilon))
    pairs = [np.array(losses(sigma, shares, s), dtype=float) for s in shifts]
    p, q = pairs[0].T
    for other in pairs[1:]:
        p = np.multiply.outer(p, other[:, 0]).ravel()
        q = np.multiply.outer(q, other[:, 1]).ravel()
    return math.fsum(np.maximum(p - growth * q, 0.0))


def bound(sigma: float, slack: float, shifts: tuple[int, ...], epsilon: float) -> float:
    """δ(ε) of the continuous Gaussian with the slack of one release."""
    mu = math.hypot(*shifts) / sigma
    # Below ε = 0 the hockey-stick divergence has no closed form in `gaussian`; this bounds it.
    left = epsilon - 2.0 * slack
    base = gaussian.delta(max(left, 0.0), mu) + max(0.0, -math.expm1(min(left, 0.0)))
    return math.exp(slack) * base


GRID = list(itertools.product((0.35, 0.5, 0.7, 1.0, 1.6, 3.0), (2, 3, 5), ((1,), (3,), (1, 2))))


def violated(rule) -> list[tuple[object, ...]]:
    """Where the true δ exceeds what `rule(sigma, shares, dimension, given_up)` promises."""
    found: list[tuple[object, ...]] = []
    for sigma, shares, shifts in GRID:
        if len(shifts) > 1 and sigma > 1.0:  # too many outcomes
            continue
        for share_given_up in (0.05, 0.3, 0.7):
            given_up = share_given_up * shares * sigma**2
            near, slack = rule(sigma, shares, len(shifts), given_up)
            if not slack < 300.0:
                continue
            for epsilon in EPSILONS:
                true = true_delta(sigma, shares, shifts, epsilon)
                if true > bound(near, slack, shifts, epsilon) * (1 + 1e-9) + 1e-15:
                    found.append((sigma, shares, shifts, given_up, epsilon))
    return found


def test_no_true_delta_exceeds_the_near_gaussians() -> None:
    assert violated(summed.near) == []


def no_slack(*args):
    return summed.near(*args)[0], 0.0


def wrong_sign(sigma, shares, dimension, given_up):
    slack = REAL(sigma, shares, dimension, given_up)[1]
    return math.sqrt(shares * sigma**2 + given_up), slack


def one_coordinate(sigma, shares, dimension, given_up):
    found, slack = summed.near(sigma, shares, 1, given_up)
    return found * math.sqrt(dimension), slack


@pytest.mark.parametrize("planted", [no_slack, wrong_sign, one_coordinate])
def test_planted_faults_are_seen(planted) -> None:
    assert violated(planted) != []


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2, 0.3, 0.45, 0.5, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("shares", [2, 3, 5])
def test_gap_bounds_the_exact_log_ratio(sigma: float, shares: int) -> None:
    with WORK:
        mass, reach = law(sigma, shares)
        variance = shares * mp.mpf(sigma) ** 2
        single = [mp.exp(-(mp.mpf(k) ** 2) / (2 * variance)) for k in range(-reach, reach + 1)]
        norm = mp.fsum(single)
        inner = range(reach // 2, reach + reach // 2 + 1)  # the law itself is cut further out
        worst = max(abs(mp.log(mass[k] * norm / single[k])) for k in inner)
    assert worst <= summed.gap(sigma, shares)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 1.0])
@pytest.mark.parametrize("shares", [2, 3, 5])
@pytest.mark.parametrize("shift", [1, 2])
def test_renyi_divergence_of_sums_is_not_understated(sigma, shares, shift) -> None:
    """Theorem 1 of Kairouz et al. holds from σ = ½; far below it its constant is too small."""
    orders = [1.01, 1.1, 1.3, 1.5, 2.0, 4.0]
    with WORK:
        both = [(p, q) for p, q in losses(sigma, shares, shift) if p > 0 and q > 0]
        exact = [
            float(mp.log(mp.fsum(p**a * q ** (1 - a) for p, q in both)) / (mp.mpf(a) - 1))
            for a in map(mp.mpf, orders)
        ]
    event = acc.DiscreteGaussian(sigma, float(shift), 1, clients=shares)
    ours = acc.rdp(event, orders, adjacency="zero-out")
    assert np.all(ours >= np.array(exact) * (1 - 1e-12)), (exact, list(ours))


def event(sigma: float, shares: int, shifts: tuple[int, ...]) -> acc.Event:
    return acc.DiscreteGaussian(sigma, math.hypot(*shifts), len(shifts), clients=shares)


CASES = [(3.0, 5, (4,)), (4.0, 2, (9,)), (6.0, 3, (20,)), (2.5, 5, (1, 3)), (3.0, 4, (5, 5))]


@pytest.fixture(autouse=True)
def _no_memory():
    accountant._epsilon.cache_clear()
    yield
    accountant._epsilon.cache_clear()


def understated(sigma: float, shares: int, shifts: tuple[int, ...]) -> bool:
    for delta in (1e-9, 1e-6, 1e-3):
        ours = acc.epsilon(event(sigma, shares, shifts), delta, adjacency="zero-out")
        if true_delta(sigma, shares, shifts, ours) > delta * (1 + 1e-9):
            return True
    return False


@pytest.mark.parametrize(("sigma", "shares", "shifts"), CASES)
def test_the_accountants_epsilon_holds(sigma, shares, shifts) -> None:
    assert acc.statement(event(sigma, shares, shifts), 1e-6).accountant == "pld"
    assert not understated(sigma, shares, shifts)


@pytest.mark.parametrize(("sigma", "shares", "shifts"), CASES)
def test_the_wrong_sign_understates(sigma, shares, shifts, monkeypatch) -> None:
    monkeypatch.setattr(summed, "near", wrong_sign)
    assert understated(sigma, shares, shifts)


def test_slack_reaches_epsilon_and_delta(monkeypatch) -> None:
    """A slack of a round is paid twice in ε and once in δ, for each round."""
    monkeypatch.setattr(summed, "useful", lambda *_: (5.0, 0.0))
    run = acc.SelfComposed(acc.PoissonSampled(0.3, event(3.0, 4, (5, 5))), 10)
    without = acc.delta(run, 1.0, adjacency="zero-out", accountant="pld")
    accountant._epsilon.cache_clear()
    monkeypatch.setattr(summed, "useful", lambda *_: (5.0, 0.01))
    with_slack = acc.delta(run, 1.2, adjacency="zero-out", accountant="pld")
    assert with_slack == pytest.approx(without * math.exp(0.1), rel=2e-3)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("removing", [True, False])
def test_sampled_sums_hold_in_both_directions(rate: float, removing: bool) -> None:
    sigma, shares, shift, delta = 3.0, 5, 5, 1e-6
    p, q = np.array(losses(sigma, shares, shift), dtype=float).T
    mixed = (1 - rate) * q + rate * p
    one, other = (mixed, q) if removing else (q, mixed)
    run = acc.PoissonSampled(rate, event(sigma, shares, (shift,)))
    ours = acc.epsilon(run, delta, adjacency="zero-out")
    assert math.fsum(np.maximum(one - math.exp(ours) * other, 0.0)) <= delta
    pair = parts.SampledPart(rate, parts.DiscreteGaussianPart(sigma, 5.0, 1, shares)).pairs()
    assert pair is not None


PLANS = [
    (10, 10_000, 1.0, 20),
    (10, 100_000, 1.0, 20),
    (100, 1_000_000, 1.0, 1),
    (50, 10_000, 4.0, 9),
]


@pytest.mark.parametrize(("members", "length", "z", "rounds"), PLANS)
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_a_plans_epsilon_is_within_one_percent_of_the_central_gaussians(
    members, length, z, rounds, rate
) -> None:
    from sequester import secagg

    plan = secagg.plan(members, length, noise_multiplier=z)

    def epsilon(single: acc.Event) -> float:
        run = acc.SelfComposed(acc.PoissonSampled(rate, single), rounds)
        return acc.epsilon(run, 1e-6, adjacency="zero-out")

    central, ratio = epsilon(acc.Gaussian(z)), plan.encoding.sensitivity * plan.encoding.granularity
    assert central <= epsilon(plan.event()) <= 1.01 * central + 0.001 * central * (rate < 1.0)
    # What is left is the rounding's norm, not the noise: the Gaussian of that clip costs the same.
    same = epsilon(acc.Gaussian(z / ratio))
    assert epsilon(plan.event()) == pytest.approx(same, rel=3e-4)


@pytest.mark.parametrize(
    ("sigma", "shares", "dimension"), [(1.0, 500, 10**6), (0.4, 10**5, 1), (2.5, 2, 100)]
)
def test_where_the_gaussian_is_not_near_the_renyi_bound_stands(sigma, shares, dimension) -> None:
    said = acc.statement(acc.DiscreteGaussian(sigma, 3.0, dimension, clients=shares), 1e-6)
    assert said.accountant == "rdp"
    assert said.epsilon == said.epsilon_rdp


def test_many_shares_are_extrapolated_upward() -> None:
    sigma, shares = 0.8, 250_000
    k = np.arange(1, shares, dtype=float)
    exact = float((5.0 * np.exp(-2.0 * math.pi**2 * sigma**2 * k / (k + 1.0))).sum())
    assert exact <= summed.gap(sigma, shares) <= 1.01 * exact


def test_the_curve_agrees_with_the_epsilon() -> None:
    said = acc.statement(acc.SelfComposed(event(3.0, 5, (4,)), 6), 1e-6)
    assert said.accountant == "pld"
    assert said.curve.delta(said.epsilon * 1.001) <= 1e-6 * 1.05
    assert said.epsilon < said.epsilon_rdp
