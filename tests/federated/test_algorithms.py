"""Every algorithm against a computation by hand on two clients, and its reduction to FedAvg."""

from __future__ import annotations

import numpy as np
import pytest

from sequester.core.errors import UsageError
from sequester.federated.algorithms import (
    ByWindows,
    Capped,
    CoordinateMedian,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedNova,
    FedProx,
    FedYogi,
    Krum,
    LocalWork,
    NormBound,
    Scaffold,
    ServerState,
    TrimmedMean,
    Uniform,
)
from sequester.federated.algorithms.personal import Adapter, FineTune, LocalHead
from sequester.federated.gate import Accepted
from sequester.federated.messages import Layout

WORK = LocalWork(learning_rate=0.5, epochs=1, batch=4)


def update(client, *numbers, steps=1, weight=1.0):
    return Accepted(client, np.array(numbers, dtype=np.float32), steps, weight)


TWO = (update(0, 1.0, -2.0, steps=2, weight=1.0), update(1, 3.0, 4.0, steps=6, weight=3.0))
QUARTERS = np.array([0.25, 0.75])


def one_round(algorithm, updates=TWO, weights=QUARTERS, state=None, work=WORK):
    state = state or ServerState(np.array([10.0, 20.0]))
    fold = algorithm.fold(state, algorithm.local(work))
    for part, weight in zip(updates, np.asarray(weights).tolist(), strict=True):
        fold.add(part, weight)
    algorithm.apply(state, fold.direction(1.0))
    return state


def test_fedavg_by_hand():
    # ¼·(1, −2) + ¾·(3, 4) = (2.5, 2.5)
    np.testing.assert_array_equal(one_round(FedAvg()).model, [12.5, 22.5])


def test_fednova_by_hand():
    # d = (½, −1) and (½, ⅔);  τ_eff = ¼·2 + ¾·6 = 5;  5·(¼·d₀ + ¾·d₁) = (2.5, 1.25)
    np.testing.assert_allclose(one_round(FedNova()).model, [12.5, 21.25], rtol=1e-14)


def test_fednova_counts_proximal_steps_as_in_section_4_2():
    # η·μ = ½·0.4 = 0.2:  ‖a‖₁ = 1 + 0.8 = 1.8 and Σ_{j<6} 0.8^j = 3.68928
    from sequester.federated.algorithms.fednova import accumulation

    work = LocalWork(learning_rate=0.5, proximal=0.4)
    assert accumulation(2, work) == pytest.approx(1.8)
    assert accumulation(6, work) == pytest.approx(3.68928)


def test_fednova_counts_momentum_as_in_section_4_2():
    from sequester.federated.algorithms.fednova import accumulation

    # ρ = ½, τ = 3:  a = (1.75, 1.5, 1),  [3 − ½(1 − ⅛)/½]/½ = 4.25
    assert accumulation(3, LocalWork(momentum=0.5)) == pytest.approx(4.25)
    # and with ημ = 0.2:  v₁ = 1, x₁ = 1;  v₂ = ½ + 1 − 0.2 = 1.3, x₂ = 2.3
    work = LocalWork(learning_rate=0.5, proximal=0.4, momentum=0.5)
    assert accumulation(2, work) == pytest.approx(2.3)


@pytest.mark.parametrize("steps", [1, 10, 10**6])
@pytest.mark.parametrize("place", [0, 8])
def test_no_client_stretches_everybodys_step_by_the_steps_it_reports(steps, place):
    """FedAvg of these moves by 1; a liar about its steps takes its own part and ten times that."""
    cohort = [update(k, 1.0, 1.0, steps=3) for k in range(9)]
    cohort[place] = update(place, 1.0, 1.0, steps=steps)
    moved = one_round(FedNova(), cohort, np.full(9, 1 / 9)).model - [10.0, 20.0]
    assert 0.0 < moved[0] <= 10.0
    assert moved[0] == pytest.approx(moved[1])


def test_scaffold_by_hand_over_two_rounds_with_partial_participation():
    algorithm = Scaffold(population=4)
    state = one_round(algorithm)
    # Round 1, c = c_i = 0:  c_i⁺ = −Δ/(K·η) = (−1, 2) and (−1, −4/3)
    np.testing.assert_allclose(state.clients[0], [-1.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(state.clients[1], [-1.0, -4.0 / 3.0], rtol=1e-6)
    # c = ¼·Σ(c_i⁺ − c_i) = ¼·(−2, ⅔)
    np.testing.assert_allclose(state.slots["control"], [-0.5, 1.0 / 6.0], rtol=1e-6)
    np.testing.assert_allclose(state.model, [12.5, 22.5])
    # eq. 3 adds c − c_i; a client never drawn has c_i = 0
    np.testing.assert_allclose(algorithm.correction(state, 0), [0.5, 1.0 / 6.0 - 2.0], rtol=1e-6)
    np.testing.assert_allclose(algorithm.correction(state, 3), [-0.5, 1.0 / 6.0], rtol=1e-6)
    # Round 2, client 0 alone, K = 1, Δ = (1, 1):  c_0⁺ = c_0 − c − Δ/η
    #   = (−1, 2) − (−½, 1/6) − (2, 2) = (−2.5, −1/6);  client 1 keeps its own
    one_round(algorithm, (update(0, 1.0, 1.0),), np.array([1.0]), state)
    np.testing.assert_allclose(state.clients[0], [-2.5, -1.0 / 6.0], rtol=1e-5)
    np.testing.assert_allclose(state.clients[1], [-1.0, -4.0 / 3.0], rtol=1e-6)
    # c += ¼·(c_0⁺ − c_0) = ¼·(−1.5, −13/6)
    np.testing.assert_allclose(state.slots["control"], [-0.875, 1.0 / 6.0 - 13.0 / 24.0], rtol=1e-5)


def test_scaffold_is_held_back_when_it_collapses():
    algorithm = Scaffold(population=2, guard=10.0)
    state = ServerState(np.zeros(2))
    for _ in range(4):
        one_round(algorithm, (update(0, 1.0, 0.0),), np.array([1.0]), state)
    one_round(algorithm, (update(0, 1e5, 0.0),), np.array([1.0]), state)
    np.testing.assert_allclose(state.model, [5.0, 0.0])
    assert not state.clients
    assert not state.slots["control"].any()


def test_server_optimisers_by_hand():
    delta = np.array([2.5, 2.5])  # from FedAvg above
    state = one_round(FedAvgM(learning_rate=0.5, momentum=0.9))
    np.testing.assert_allclose(state.model, [11.25, 21.25])
    one_round(FedAvgM(learning_rate=0.5, momentum=0.9), state=state)
    # velocity = 0.9·2.5 + 2.5 = 4.75
    np.testing.assert_allclose(state.model, [11.25 + 2.375, 21.25 + 2.375])
    expected = {
        # v = τ² + Δ²,  m = Δ
        FedAdagrad(learning_rate=1.0, tau=0.5): delta / (np.sqrt(0.25 + 6.25) + 0.5),
        # v = 0.99·τ² + 0.01·Δ²,  m = 0.1·Δ
        FedAdam(learning_rate=1.0, tau=0.5): 0.25 / (np.sqrt(0.2475 + 0.0625) + 0.5),
        # v = τ² − 0.01·Δ²·sign(τ² − Δ²) = 0.25 + 0.0625
        FedYogi(learning_rate=1.0, tau=0.5): 0.25 / (np.sqrt(0.3125) + 0.5),
    }
    for algorithm, step in expected.items():
        np.testing.assert_allclose(
            one_round(algorithm).model - [10.0, 20.0], step * np.ones(2), rtol=1e-12
        )


def test_yogi_and_adam_differ_when_the_square_is_small():
    # v₀ = τ² = 1, Δ² = 0.25:  Yogi v = 1 − 0.01·0.25;  Adam v = 0.99 + 0.0025
    small = (update(0, 0.5, 0.5),)
    for algorithm, second in (
        (FedYogi(learning_rate=1.0, tau=1.0), 0.9975),
        (FedAdam(learning_rate=1.0, tau=1.0), 0.9925),
    ):
        model = one_round(algorithm, small, np.array([1.0])).model
        assert model[0] - 10.0 == pytest.approx(0.05 / (second**0.5 + 1.0), rel=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [FedProx(mu=0.0), FedAvgM(momentum=0.0), FedNova(), Scaffold(population=9)],
    ids=["fedprox mu=0", "fedavgm beta=0", "fednova equal steps", "scaffold c=0"],
)
def test_reductions_to_fedavg_are_bit_for_bit(algorithm):
    generator = np.random.default_rng(7)
    updates = [Accepted(k, generator.normal(size=50).astype(np.float32), 4, 1.0) for k in range(9)]
    weights = generator.dirichlet(np.ones(9))
    start = generator.normal(size=50)
    ours = one_round(algorithm, updates, weights, ServerState(start.copy())).model
    plain = one_round(FedAvg(), updates, weights, ServerState(start.copy())).model
    assert ours.tobytes() == plain.tobytes()
    assert algorithm.local(WORK) == WORK


def test_weightings():
    np.testing.assert_array_equal(ByWindows().raw(TWO), [1.0, 3.0])
    np.testing.assert_array_equal(Uniform().raw(TWO), [1.0, 1.0])
    np.testing.assert_array_equal(Capped(2.0).raw(TWO), [0.5, 1.0])
    with pytest.raises(UsageError, match="SQ-604"):
        Capped(0)


def crowd(*rows):
    return [update(k, *row) for k, row in enumerate(rows)]


def test_robust_rules_by_hand():
    five = crowd((1.0, 0.0), (2.0, 1.0), (3.0, 2.0), (4.0, 3.0), (1000.0, -1000.0))
    even = np.full(5, 0.2)
    np.testing.assert_array_equal(CoordinateMedian()(five, even), [3.0, 1.0])
    np.testing.assert_array_equal(TrimmedMean(0.2)(five, even), [3.0, 1.0])
    # n = 5, f = 1: two nearest each; squared distances 2, 8, 18 → scores 10, 4, 4, 10
    np.testing.assert_array_equal(Krum(0.2)(five, even), [2.0, 1.0])
    np.testing.assert_array_equal(Krum(0.2, keep=4)(five, even), [2.5, 1.5])
    # (1000, −1000) shrinks to norm 5; (4, 3) has norm 5 and stays
    bounded = NormBound(5.0)(five, even)
    tip = 5.0 / 2**0.5
    np.testing.assert_allclose(bounded, [(10 + tip) / 5, (6 - tip) / 5])


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(0.3), Krum(0.3), Krum(0.3, 7)])
def test_thirty_per_cent_hostile_clients_cannot_leave_the_honest_range(rule):
    generator = np.random.default_rng(0)
    honest = generator.normal(1.0, 0.1, size=(7, 20))
    hostile = np.full((3, 20), -500.0)
    updates = crowd(*np.concatenate([honest, hostile]))
    result = rule(updates, np.full(10, 0.1))
    assert np.all(result >= honest.min(axis=0) - 1e-6)
    assert np.all(result <= honest.max(axis=0) + 1e-6)
    mean = one_round(FedAvg(), updates, np.full(10, 0.1), ServerState(np.zeros(20))).model
    assert mean.max() < -100  # which an average does not withstand


def test_robust_rules_refuse_numbers_that_mean_nothing():
    for make in (lambda: TrimmedMean(0.5), lambda: Krum(-0.1), lambda: Krum(0.1, keep=0)):
        with pytest.raises(UsageError, match="SQ-605"):
            make()
    with pytest.raises(UsageError, match="SQ-606"):
        NormBound(0.0)


LAYOUT = Layout(("cell", "head"), ((3, 4), (2,)))


def test_a_local_head_never_leaves_and_follows_its_owner():
    personal = LocalHead(LAYOUT, ("head",))
    shared = np.zeros(14, dtype=np.float32)
    step = np.arange(14, dtype=np.float32)
    assert not personal.share(step)[12:].any()
    np.testing.assert_array_equal(personal.share(step)[:12], step[:12])
    kept = personal.keep(shared, None, step)
    kept = personal.keep(shared, kept, step)
    moved = shared + 1
    start = personal.start(moved, kept)
    np.testing.assert_array_equal(start[:12], 1.0)
    np.testing.assert_array_equal(start[12:], 1.0 + 2 * step[12:])
    with pytest.raises(UsageError, match="SQ-607"):
        LocalHead(LAYOUT, ("tail",))


def test_an_adapter_keeps_the_nearest_matrix_of_its_rank():
    generator = np.random.default_rng(1)
    personal = Adapter(LAYOUT, rank=1)
    step = generator.normal(size=14).astype(np.float32)
    kept = personal.keep(step * 0, None, step)
    matrix = step[:12].reshape(3, 4)
    singular = np.linalg.svd(matrix, compute_uv=False)
    assert np.linalg.matrix_rank(kept[:12].reshape(3, 4), tol=1e-5) == 1
    # Eckart and Young: the distance is what the other singular values hold
    distance = np.linalg.norm(matrix - kept[:12].reshape(3, 4))
    assert distance == pytest.approx(np.sqrt((singular[1:] ** 2).sum()), rel=1e-5)
    assert not kept[12:].any()
    part = personal.part(step * 0, kept)
    left, right = part["cell.left"], part["cell.right"]
    assert left.shape == (3, 1)
    assert right.shape == (1, 4)
    np.testing.assert_allclose(left @ right, kept[:12].reshape(3, 4), atol=1e-6)


def test_fine_tuning_keeps_its_own_model_when_the_shared_one_moves():
    personal = FineTune(LAYOUT)
    shared = np.ones(14, dtype=np.float32)
    kept = personal.keep(shared, None, np.full(14, 2, dtype=np.float32))
    np.testing.assert_array_equal(kept, 3.0)
    np.testing.assert_array_equal(personal.start(shared * 7, kept), 3.0)
