"""Secure aggregation in a study: sums equal those in clear, claims say what the server saw."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from sequester.accounting import DiscreteGaussian, SelfComposed, epsilon, from_json
from sequester.core.errors import LedgerRefusal, UsageError
from sequester.federated.gate import Accepted
from sequester.federated.masking import Masking, Ticket, drill
from sequester.federated.round import Unsummable
from sequester.federated.run import federate, resume
from sequester.federated.settings import SecureSum, settings_of
from sequester.federated.shares import Sums
from sequester.ledger import Ledger
from sequester.mechanism import Claim
from sequester.sampling import poisson_event
from sequester.training.study_file import decode, to_toml
from tests.federated.killed import POINTS, killed
from tests.federated.test_run import CANARY, make_study

SILO = {"placement": "cross-silo", "algorithm": "fedadam"}
SITES = {"dropout": 0.34, "corrupt": 0.0}
SHARES = SITES | {"noise": "discrete-gaussian"}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """14 people at three sites."""
    generator = np.random.default_rng(0)
    lines = ["person,time,site,value,label"]
    for person in range(14):
        name = CANARY if person == 7 else f"p{person}"
        for time in range(8):
            value = generator.normal()
            label = int(value + generator.normal() > 0)
            lines.append(f"{name},{time},s{person % 3},{value:.3f},{label}")
    path = tmp_path_factory.mktemp("data") / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def make(table, federated, secagg, **changes):
    changes = {"training": {"steps": 3, "sampling_rate": 0.5}} | changes
    return make_study(table, {**federated, "secagg": secagg}, **changes)


def weights(run):
    return np.concatenate([v.ravel() for v in load_file(run.folder.weights).values()])


def words(run):
    fields = Claim.read(run.folder.claim).fields
    return " ".join([*fields["assumptions"], *fields["not_evidenced"]])


ADAPTIVE = {"privacy": {"adaptive": {"count_noise": 5.0}}}


@pytest.mark.parametrize(
    ("federated", "changes"),
    [
        ({}, {}),
        ({"compression": "random-k", "share": 0.2}, {}),
        ({"weighting": "capped", "weight_cap": 4.0}, {}),
        (SILO, {}),
        ({}, ADAPTIVE),
        (SILO, ADAPTIVE),
    ],
    ids=["device", "random-k", "capped", "silo", "adaptive device", "adaptive silo"],
)
def test_the_masked_sum_is_the_sum(federated, changes, table, tmp_path):
    """The server's noise is the same block in both runs: they differ by the sum's grid alone."""
    training = {"steps": 3, "sampling_rate": 0.5}
    plain = federate(make_study(table, federated, training=training, **changes), out=tmp_path)
    secagg = SITES if federated == SILO else {"corrupt": 0.0}
    masked = federate(make(table, federated, secagg, **changes), out=tmp_path)
    np.testing.assert_allclose(weights(masked), weights(plain), atol=2e-5)
    assert masked.epsilon == plain.epsilon
    # Who is a member is public where single persons mask; sites' people are not members.
    adjacency = "add-or-remove" if federated == SILO else "zero-out"
    assert Claim.read(masked.folder.claim).fields["adjacency"] == adjacency
    assert "trusted with the exact sums" in words(masked)
    assert "trusted with the updates" not in words(masked)


def test_without_a_guarantee_the_weighted_mean_comes_from_masked_weights(table, tmp_path):
    federated = {"weighting": "capped", "weight_cap": 4.0, "algorithm": "fedavgm"}
    free = {"privacy": {"mode": "none", "clip": 50.0}}
    training = {"steps": 3, "sampling_rate": 0.5}
    plain = federate(make_study(table, federated, training=training, **free), out=tmp_path)
    masked = federate(make(table, federated, {}, **free), out=tmp_path)
    np.testing.assert_allclose(weights(masked), weights(plain), atol=1e-5)
    assert "Secure aggregation alone hides little" in words(masked)


@pytest.mark.parametrize("noise", ["discrete-gaussian", "skellam"])
@pytest.mark.parametrize("federated", [SILO, {}], ids=["silo", "device"])
def test_members_noise_protects_against_the_server_and_is_charged_as_it_arrived(
    noise, federated, table, tmp_path
):
    study = make(table, federated, SHARES | {"noise": noise, "drill": 0.34})
    done = federate(study, out=tmp_path)
    claim = Claim.read(done.folder.claim)
    assert claim.fields["adjacency"] == "zero-out"
    assert "holds against the server too" in words(done)
    assert "whole numbers" in words(done)
    assert "double precision" not in words(done)
    event = from_json(json.dumps(claim.fields["events"]))
    assert claim.epsilon >= epsilon(event, 1e-5, adjacency="zero-out")
    assert CANARY not in done.folder.claim.read_text()
    # The drill let a third go: exactly the planned worst case.
    stays = federate(make(table, federated, SHARES | {"noise": noise}), out=tmp_path)
    assert stays.epsilon < done.epsilon


def test_a_target_is_met_under_the_event_that_runs(table, tmp_path, monkeypatch):
    study = make(table, SILO, SHARES, privacy={"noise_multiplier": None, "epsilon": 3.0})
    done = federate(study, out=tmp_path)
    # Two thirds of the sites' shares are counted on; all three arrived.
    assert 0.5 * 3.0 < done.epsilon <= 3.0
    monkeypatch.setattr("sequester.federated.assemble.drill", lambda *_: lambda _: {2: "masked"})
    worst = federate(study, out=tmp_path)
    assert worst.epsilon == pytest.approx(3.0, rel=1e-3)


def test_the_noise_in_the_sum_is_what_the_event_says():
    """Variance over many coordinates, and only as many shares as arrived."""
    size, multiplier = 20_000, 0.7
    sums = Sums(SecureSum(noise="discrete-gaussian", dropout=0.34, corrupt=0.0), 3, size, True, 90)
    masks = Masking(sums, multiplier, "noise", bytes(32), size, drops=lambda _: {2: "masked"})
    sites = [Accepted(i, np.zeros(size + 2), 1, 1.0) for i in range(3)]
    opened = masks.open(Ticket(0, "0" * 32, 0.5, private=True), sites, np.ones(3))
    event = sums.event(multiplier)
    assert isinstance(event, DiscreteGaussian)
    grid = sums.round_plan(0.5, multiplier).encoding.granularity
    expected = event.standard_deviation * event.clients**0.5 * grid
    assert event.clients == 2
    assert opened.total.std() == pytest.approx(expected, rel=3 / (2 * size) ** 0.5)
    assert expected == pytest.approx(0.5 * multiplier, rel=0.021)  # noise of one Gaussian, + 2 %


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_masked_run_resumes_to_the_same_weights(point, table, tmp_path):
    study = make(table, SILO, SHARES | {"drill": 0.34}, training={"steps": 4, "sampling_rate": 0.5})
    whole = federate(study, out=tmp_path / "whole")
    folder = killed(study, tmp_path / "killed", point)
    done = resume(folder)
    # Masks are fresh after the crash; words, noise shares and survivors are not.
    assert weights(done).tobytes() == weights(whole).tobytes()
    assert done.epsilon == whole.epsilon


def test_too_many_dropouts_abandon_the_round_and_the_charge_stays(table, tmp_path, monkeypatch):
    drop_two = {0: "masked", 1: "reveal"}
    leaving = lambda number: drop_two if number == 1 else {}  # noqa: E731
    monkeypatch.setattr("sequester.federated.assemble.drill", lambda *_: leaving)
    done = federate(make(table, SILO, SHARES), out=tmp_path)
    rounds = (done.folder.private / "rounds.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in rounds]
    assert [line["done"] for line in told] == [True, False, True]
    assert "SQ-7" in told[1]["why"]
    assert done.rounds == 3
    sums = Sums(SecureSum(**SHARES), 3, 101, True, 50)
    assert (
        done.epsilon
        > epsilon(
            SelfComposed(poisson_event(0.5, sums.event(1.0, 3)), 3), 1e-5, adjacency="zero-out"
        )
        * 0.999
    )


def test_the_ledger_holds_the_worst_case_and_gets_back_what_did_not_run(table, tmp_path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    ledger = Ledger.create(url)
    ledger.create_budget("sites", "clinic", 40.0, 1e-5, adjacency="zero-out")
    booked = {"url": url, "budget": "sites"}
    done = federate(make(table, SILO, SHARES, ledger=booked), out=tmp_path)
    assert done.claim.fields["ledger"]["budget"] == "sites"
    ledger.create_budget("other", "clinic2", 40.0, 1e-5)
    elsewhere = {"url": url, "budget": "other"}
    seed = {"insecure_test_seed": 6}
    study = make(table, SILO, SHARES, ledger=elsewhere, privacy=seed)
    # Members' shares say nothing about whether somebody is enrolled.
    with pytest.raises(LedgerRefusal, match="adjacency"):
        federate(study, out=tmp_path)


def test_members_who_were_sent_different_models_cannot_be_summed():
    sums = Sums(SecureSum(corrupt=0.0), 4, 5, False, 10)
    accepted = [Accepted(i, np.full(5, 0.1, np.float32), 1, 1.0) for i in range(4)]
    one = Masking(sums, 0.0, "run", bytes(32), 5)
    total = one.open(Ticket(0, "a" * 32, 1.0, private=True), accepted, np.ones(4)).total
    np.testing.assert_allclose(total, 0.4, atol=1e-6)
    assert (
        one.context(Ticket(0, "a" * 32, 1.0, private=True)).model
        != one.context(Ticket(0, "b" * 32, 1.0, private=True)).model
    )
    lost = Masking(sums, 0.0, "run", bytes(32), 5, lost={0, 1, 2})
    with pytest.raises(Unsummable, match="SQ-714"):
        lost.open(Ticket(0, "a" * 32, 1.0, private=True), accepted, np.ones(4))
    assert lost.arrived == [4]


def test_an_update_that_is_not_finite_or_too_long_adds_at_most_the_clip():
    sums = Sums(SecureSum(corrupt=0.0), 3, 4, False, 10)
    values = [np.full(4, np.nan), np.full(4, 1e30), np.zeros(4)]
    accepted = [Accepted(i, v.astype(np.float32), 1, 1.0) for i, v in enumerate(values)]
    opened = Masking(sums, 0.0, "run", bytes(32), 4).open(
        Ticket(0, "a" * 32, 0.5, private=True), accepted, np.ones(3)
    )
    assert 0.4999 < np.linalg.norm(opened.total) <= 0.5


@pytest.mark.parametrize(
    ("federated", "secagg", "changes"),
    [
        ({"placement": "local"}, {}, {"training": {"sampling_rate": 1.0, "steps": 2}}),
        ({"rule": "median"}, {}, {"privacy": {"mode": "none"}}),
        ({"algorithm": "scaffold"}, {}, {"privacy": {"mode": "none"}}),
        ({"compression": "top-k"}, {}, {}),
        ({"weighting": "windows"}, {}, {"privacy": {"mode": "none"}}),
        ({}, {"noise": "skellam"}, {"privacy": {"mode": "none"}}),
        ({}, {"noise": "skellam"}, {"privacy": {"adaptive": {}}}),
        ({}, {"drill": 0.2}, {}),
        ({}, {}, {"data": {"categories": {"site": {"values": ("s0", "s1", "s2")}}}}),
    ],
)
def test_what_cannot_be_summed_or_hides_little_is_refused(federated, secagg, changes, table):
    with pytest.raises(UsageError, match="SQ-624") as caught:
        settings_of(make(table, federated, secagg, **changes))
    assert caught.value.where


def test_bare_sums_of_embeddings_can_be_accepted_knowingly(table):
    data = {"categories": {"site": {"values": ("s0", "s1", "s2")}}}
    assert settings_of(make(table, {}, {"bare_sums": True}, data=data)).secagg.bare_sums
    assert settings_of(make(table, {}, {"noise": "skellam"}, data=data)).secagg.noise == "skellam"


@pytest.mark.parametrize(
    ("federated", "secagg", "privacy", "named"),
    [
        (SILO, SITES | {"bare_sums": True}, {}, True),
        ({}, {"bare_sums": True}, {"mode": "none", "clip": 50.0}, True),
        (SILO, SITES | {"noise": "discrete-gaussian"}, {}, False),
    ],
    ids=["the server adds noise", "nobody does", "members do"],
)
def test_a_claim_names_the_rows_that_a_bare_sum_shows(
    federated, secagg, privacy, named, table, tmp_path
):
    data = {"categories": {"site": {"values": ("s0", "s1", "s2")}}}
    study = make(table, federated, secagg, data=data, privacy=privacy, training={"steps": 1})
    assert ("embedding rows change only" in words(federate(study, out=tmp_path))) == named
    # Without tables there are no such rows.
    plain = words(federate(make(table, federated, secagg, privacy=privacy), out=tmp_path))
    assert "embedding rows" not in plain


def test_too_few_members_and_an_understated_population_are_refused(table, tmp_path):
    with pytest.raises(UsageError, match=r"SQ-624.*min_cohort"):
        federate(make(table, SILO, SITES | {"min_cohort": 4}), out=tmp_path)
    with pytest.raises(UsageError, match=r"SQ-624.*data\.population"):
        federate(make(table, {}, {}, data={"population": 5}), out=tmp_path)
    with pytest.raises(UsageError, match="SQ-717"):
        federate(make(table, SILO, {"dropout": 0.34, "corrupt": 0.34}), out=tmp_path)


def test_an_empty_section_survives_the_study_file(table):
    study = make(table, SILO, {})
    assert settings_of(decode(tomllib.loads(to_toml(study)))).secagg == SecureSum()


def test_a_drill_names_as_many_members_as_it_says_and_others_each_round():
    leaving = drill(40, 0.25, "run")
    assert all(len(leaving(number)) == 10 for number in range(5))
    assert len({tuple(sorted(leaving(number))) for number in range(5)}) == 5


@pytest.mark.parametrize("noise", ["none", "discrete-gaussian"])
@pytest.mark.parametrize("members", [10, 200])
@pytest.mark.parametrize("honest", ["listed", "taken", "trusted"])
def test_a_claim_promises_no_more_of_the_server_than_holds(noise, members, honest):
    """What a ring, keys from the server or a trusted server take away is said with either noise."""
    chosen = SecureSum(noise=noise, corrupt=0.05, semi_honest=honest == "trusted")
    sums = Sums(chosen, members=members, size=10, sites=False, most=members)
    multiplier = 0.0 if noise == "none" else 1.0
    masking = Masking(sums, multiplier=multiplier, run="r", key=bytes(32), full=10)
    plan = sums.round_plan(1.0, multiplier)
    said = " ".join(masking.says(listed=honest != "taken"))
    assert ("even if it lies" in said) == (honest == "listed")
    assert ("part the ring" in said) == (honest == "listed" and plan.degree > 0)
    assert (f"without that, {plan.threshold} or more" in said) == ("part the ring" in said)
    assert f"at least {plan.min_survivors} members" in said
    assert "Nobody can check the numbers" in said
    assert ("trusted with the exact sums" in said) == (noise == "none")
