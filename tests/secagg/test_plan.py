"""What a plan promises is what a round costs; what it says is true."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from sequester import secagg
from sequester.cli.plan import command
from sequester.core.errors import SequesterError, UsageError


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize(("members", "bits"), [(5, 16), (12, 32)])
def test_planned_bytes_are_the_bytes_of_a_round(active: bool, members: int, bits: int) -> None:
    plan = secagg.plan(members, 500, corrupt=0.0, dropout=0.0, active=active, bits=bits)
    done = secagg.simulate_updates({m: np.ones(500) / 30 for m in range(members)}, plan)
    sent, received = done.traffic.sent.values(), done.traffic.received.values()
    assert plan.upload_bytes == max(sent)
    assert plan.download_bytes == max(received) + 64 - len("simulation")
    more = secagg.plan(members + 1, 500, corrupt=0.0, dropout=0.0, active=active, bits=bits)
    assert more.upload_bytes - plan.upload_bytes <= 300
    assert more.download_bytes - plan.download_bytes <= 300


@pytest.mark.parametrize(
    ("members", "full"), [(10, True), (50, True), (100, True), (100, False), (1000, False)]
)
def test_beside_the_vector_a_neighbour_costs_at_most_300_bytes(members: int, full: bool) -> None:
    plan = secagg.plan(members, 1000, corrupt=0.05, dropout=0.3, full_graph=full, bits=32)
    named = plan.download_bytes - 64 + len("simulation")
    assert plan.upload_bytes - 4 * 1000 <= 300 * plan.neighbours
    assert named <= 300 * plan.neighbours


def test_the_smallest_width_that_fits_is_taken() -> None:
    for members, multiplier, bits in ((10, 1.0, 16), (1000, 1.0, 20), (20_000, 4.0, 24)):
        plan = secagg.plan(members, 100_000, noise_multiplier=multiplier, full_graph=True)
        assert plan.encoding.bits == bits
        with pytest.raises(UsageError, match="SQ-718"):
            secagg.plan(
                members, 100_000, noise_multiplier=multiplier * 300, full_graph=True, bits=bits
            )


def test_noise_is_sized_for_the_fewest_honest_survivors() -> None:
    plan = secagg.plan(20, 100, noise_multiplier=2.0, clip=3.0, dropout=0.2, corrupt=0.1)
    assert plan.honest_survivors == 20 - 4 - 2
    grid = plan.encoding.noise_share * plan.encoding.granularity
    assert grid * np.sqrt(plan.honest_survivors) == pytest.approx(2.0 * 3.0)
    # More survivors, more noise: ε falls; and the charge never counts the corrupt.
    charges = [plan.event_for(n).clients for n in (16, 18, 20)]
    assert charges == [14, 16, 18]


def test_a_sum_without_noise_has_no_epsilon_and_says_so() -> None:
    plan = secagg.plan(10, 100)
    with pytest.raises(UsageError, match="SQ-727"):
        plan.epsilon(1e-6)
    assert "no noise" in secagg.PairwiseMasks(plan).explain()
    assert "embedding" in (secagg.hides_little(plan, sparse_rows=True) or "")
    assert "many rounds" in (secagg.hides_little(plan, sparse_rows=False) or "")
    noisy = secagg.plan(10, 100, noise_multiplier=1.0)
    assert secagg.hides_little(noisy, sparse_rows=True) is None
    assert "differentially private" in secagg.PairwiseMasks(noisy).explain()


def test_an_aggregator_sums() -> None:
    plan = secagg.plan(4, 8, corrupt=0.0, dropout=0.25, clip=10.0)
    aggregator: secagg.Aggregator = secagg.PairwiseMasks(plan)
    updates = {m: np.full(8, m / 10) for m in range(4)}
    done = aggregator.sum(updates, secagg.RoundContext("test", 3), drops={1: "reveal"})
    np.testing.assert_allclose(done.total, 0.6, atol=1e-6)
    assert done.survivors == (0, 1, 2, 3)  # It left after its vector had arrived.
    assert not done.seeded


def test_a_seeded_round_repeats_and_is_stamped() -> None:
    plan = secagg.plan(4, 50, corrupt=0.0, dropout=0.0, noise_multiplier=1.0)
    updates = {m: np.ones(50) for m in range(4)}
    one, two = (
        secagg.simulate_updates(updates, plan, context=secagg.RoundContext(seed=7))
        for _ in range(2)
    )
    np.testing.assert_array_equal(one.total, two.total)
    assert one.seeded
    other = secagg.simulate_updates(updates, plan, context=secagg.RoundContext(number=1, seed=7))
    assert not np.array_equal(one.total, other.total)


def test_the_command_prints_the_plan_as_json() -> None:
    done = CliRunner().invoke(
        command, ["--members", "20", "--length", "1000", "--noise-multiplier", "1", "--json"]
    )
    fields = json.loads(done.stdout)
    assert fields["neighbours"] == 19
    assert fields["encoding"]["bits"] == 16
    assert 0 < fields["epsilon"] < 10
    assert {"threshold", "upload_bytes", "download_bytes", "client_seconds", "unit"} <= set(fields)


def test_the_command_explains_in_words() -> None:
    done = CliRunner().invoke(command, ["--members", "60", "--length", "10", "--dropout", "0.05"])
    assert done.exit_code == 0
    assert "on a ring" in done.stdout
    assert "It sees no single update" in done.stdout
    refused = CliRunner().invoke(command, ["--members", "10", "--length", "9", "--dropout", "0.5"])
    assert isinstance(refused.exception, SequesterError)
    assert refused.exception.exit_code == 2


@pytest.mark.parametrize("semi_honest", [False, True])
@pytest.mark.parametrize("members", [10, 1000])
def test_what_the_server_sees_of_a_ring_is_not_told_better_than_it_is(members, semi_honest):
    planned = secagg.plan(members, 1000, dropout=0.1, corrupt=0.05, active=not semi_honest)
    told = "parts the ring" in secagg.PairwiseMasks(planned).explain()
    assert told == (members == 1000 and not semi_honest)
