"""No number that means nothing, no setting without an effect, no run without a model."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sequester.cli.federate import command
from sequester.core.errors import SequesterError, UsageError
from sequester.federated.algorithms import FedAvg, Scaffold
from sequester.federated.effects import RANGES
from sequester.federated.run import federate
from sequester.federated.settings import Federated, SecureSum, settings_of
from sequester.ledger import Ledger
from sequester.training.study_file import to_toml
from tests.federated.test_run import make_study, table
from tests.federated.world import PEOPLE, make_simulation

__all__ = ["table"]  # a fixture

PLAIN = {"privacy": {"mode": "none"}}
SILO = {"placement": "cross-silo"}


def numbers(kind):
    return {f.name for f in msgspec.structs.fields(kind) if f.type in (int, float)}


def test_every_number_has_a_range():
    assert set(RANGES) == numbers(Federated) | {f"secagg.{n}" for n in numbers(SecureSum)}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("what", ["nan", "inf", "-inf", "below", "above"])
def test_a_number_outside_its_range_is_refused(name, what, table):
    opening, least, most, closing = RANGES[name]
    whole = isinstance(least, int)
    if whole and what in ("nan", "inf", "-inf"):
        what = "below"
    step = 1 if whole else 1e-9
    value = {
        "nan": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
        "below": least - (step if opening == "[" else 0),
        "above": most + (step * max(1.0, most) if closing == "]" else 0),
    }[what]
    value = int(value) if whole else value
    part, _, field = name.rpartition(".")
    given = {part: {field: value}} if part else {field: value}
    with pytest.raises(UsageError, match="SQ-620") as caught:
        settings_of(make_study(table, given, **PLAIN))
    assert caught.value.where == f"federated.{name}"


# One value that differs from the neutral one, for every field that something may make useless.
IDLE = [
    ({"mu": 0.5}, {}),
    ({"mu": 0.01}, {}),  # the default, but somebody wrote it down
    ({"momentum": 0.5}, {}),
    ({"beta1": 0.5, "algorithm": "fedavgm"}, {}),
    ({"beta2": 0.5, "algorithm": "fedadagrad"}, {}),
    ({"tau": 0.1}, {}),
    ({"weight_cap": 3.0}, {}),
    ({"hostile_share": 0.1, "rule": "median"}, PLAIN),
    ({"norm_bound": 2.0}, PLAIN),
    ({"weighting": "windows", "rule": "krum"}, PLAIN),
    ({"share": 0.1}, {}),
    ({"bits": 2, "compression": "top-k"}, {}),
    ({"rank": 3}, {}),
    ({"local_names": ["head"]}, {}),
    ({"threads": 2, "engine": "loop"}, {}),
    ({"quorum": 3}, {}),
    ({"sites": {"s0": 20}}, {}),
    (SILO | {"sites": {"s0": 20}}, PLAIN),
    (SILO | {"epochs": 3}, {}),
    (SILO | {"batch": 4}, {}),
    (SILO | {"local_momentum": 0.5}, {}),
    (SILO | {"local_learning_rate": 0.2}, {}),
    (SILO | {"weighting": "capped"}, {}),
    (SILO | {"engine": "loop"}, {}),
    (SILO | {"algorithm": "fedprox", "mu": 0.1}, {}),
    (SILO | {"algorithm": "fedprox", "local_steps": 2}, {}),
    (SILO | {"local_steps": 2, "epochs": 2}, {}),
    ({}, {"training": {"optimizer": "sgd"}}),
    ({}, {"training": {"learning_rate": 0.5}}),
    ({}, {"training": {"momentum": 0.5}}),
    ({}, {"training": {"weight_decay": 0.1}}),
    ({}, {"training": {"schedule": "cosine"}}),
    ({}, {"training": {"warmup": 2}}),
    ({}, {"training": {"average": 0.9}}),
    ({}, {"training": {"checkpoint_every": 3}}),
    ({}, {"training": {"micro_batch": 8}}),
    ({}, {"privacy": {"count_clipped": False}}),
    ({}, {"training": {"lot_size": 5, "sampling_rate": 0.9}}),
]


@pytest.mark.parametrize(("federated", "changes"), IDLE, ids=str)
def test_a_setting_without_an_effect_is_refused_with_what_it_needs(federated, changes, table):
    with pytest.raises(UsageError, match="SQ-627") as caught:
        settings_of(make_study(table, federated, **changes))
    assert caught.value.where


USEFUL = [
    ({"algorithm": "fedprox", "mu": 0.1}, {}),
    ({"personal": "fine-tune", "mu": 0.1}, {}),
    ({"algorithm": "fedavgm", "momentum": 0.5}, {}),
    ({"algorithm": "fedyogi", "beta1": 0.5, "beta2": 0.5, "tau": 0.1}, {}),
    ({"weighting": "capped", "weight_cap": 3.0}, {}),
    ({"rule": "trimmed", "hostile_share": 0.1, "quorum": 3}, PLAIN),
    ({"rule": "norm-bound", "norm_bound": 2.0, "weighting": "windows"}, PLAIN),
    ({"compression": "random-k", "share": 0.1}, {}),
    ({"compression": "quantise", "bits": 2}, {}),
    ({"personal": "adapter", "rank": 1}, {}),
    ({"personal": "head", "local_names": ["head"], "threads": 2}, {}),
    (SILO | {"epochs": 3, "batch": 4, "local_learning_rate": 0.2}, PLAIN),
    (SILO | {"local_steps": 2, "local_learning_rate": 0.2, "sites": {"s0": 50}}, {}),
    (SILO | {"epochs": 1, "weighting": "uniform", "rule": "mean", "engine": "auto"}, {}),
    ({}, {"training": {"lot_size": 5, "sampling_rate": 0.1}}),
]


@pytest.mark.parametrize(("federated", "changes"), USEFUL, ids=str)
def test_what_is_read_may_be_written(federated, changes, table):
    assert settings_of(make_study(table, federated, **changes))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("sites", [{"s0": 4}, {"s0": 49}, {"s0": 25, "s1": 26}], ids=str)
def test_public_sizes_of_sites_are_those_of_the_population(sites, steps, table):
    given = SILO | {"sites": sites, "local_steps": steps}
    with pytest.raises(UsageError, match=r"SQ-620.*50") as caught:
        settings_of(make_study(table, given))
    assert caught.value.where == "federated.sites"


UNTRUSTED = {
    "local": ({"placement": "local"}, {"sampling_rate": 1.0}),
    "site steps": (SILO | {"local_steps": 2}, {}),
    "noisy members": ({"secagg": {"noise": "skellam"}}, {}),
    "noisy sites": (SILO | {"secagg": {"noise": "discrete-gaussian"}}, {}),
}
TRUSTED = {
    "cross-device": ({}, {}),
    "cross-silo": (SILO, {}),
    "bare sums": (SILO | {"secagg": {"bare_sums": True}}, {}),
}
GATHERS = {
    "range": {"features": {"value": {"lower": -4.0, "upper": 4.0, "estimate": True}}},
    "mean": {"features": {"value": {"lower": -4.0, "upper": 4.0, "estimate": "mean"}}},
    "vocabulary": {"categories": {"site": {"estimate": True}}},
    "judging": {"holdout": {"protection": "privatised"}},
}


@pytest.mark.parametrize("what", GATHERS)
@pytest.mark.parametrize("name", [*UNTRUSTED, *TRUSTED])
def test_nothing_is_gathered_where_no_server_is_trusted(name, what, table):
    federated, training = (UNTRUSTED | TRUSTED)[name]
    ledger = {"ledger": {"url": "sqlite:x.db", "budget": "b", "holdout_budget": "h"}}
    study = make_study(
        table,
        federated,
        data=GATHERS[what],
        training=training,
        **(ledger if what == "judging" else {}),
    )
    if name in TRUSTED:
        assert settings_of(study)
        return
    with pytest.raises(UsageError, match=r"SQ-621.*server") as caught:
        settings_of(study)
    assert caught.value.where.startswith("data")


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("noise", ["none", "skellam"])
@pytest.mark.parametrize(("cap", "fits"), [(65_536.0, True), (65_537.0, False), (1e6, False)])
def test_a_masked_weight_of_one_window_is_not_rounded_to_nought(cap, fits, noise, private, table):
    if noise != "none" and not private:
        return
    federated = {"secagg": {"noise": noise}, "weighting": "capped", "weight_cap": cap}
    study = make_study(table, federated, **({} if private else PLAIN))
    if fits or noise != "none":
        assert settings_of(study)
        return
    with pytest.raises(UsageError, match=r"SQ-624.*65,536") as caught:
        settings_of(study)
    assert caught.value.where == "federated.weight_cap"


TOLD = {
    "share": {"compression": "top-k", "share": 0.125},
    "bits": {"compression": "quantise", "bits": 3},
    "rank": {"personal": "adapter", "rank": 5},
    "mu": {"algorithm": "fedprox", "mu": 0.375},
    "momentum": {"algorithm": "fedavgm", "momentum": 0.375},
    "beta1": {"algorithm": "fedadagrad", "beta1": 0.375},
    "beta2": {"algorithm": "fedadam", "beta2": 0.375},
    "tau": {"algorithm": "fedyogi", "tau": 0.375},
    "weight_cap": {"weighting": "capped", "weight_cap": 7.0},
    "hostile_share": {"rule": "trimmed", "hostile_share": 0.375},
    "norm_bound": {"rule": "norm-bound", "norm_bound": 7.0},
    "local_momentum": {"local_momentum": 0.375},
}


@pytest.mark.parametrize("field", TOLD)
def test_a_number_that_has_an_effect_is_among_the_facts(field, table, tmp_path):
    study = make_study(table, TOLD[field], training={"steps": 1}, **PLAIN)
    done = federate(study, out=tmp_path)
    plan = json.loads(done.folder.facts.read_text())["plan"]
    assert plan[field.replace("_", " ")] == TOLD[field][field]


@pytest.mark.parametrize("algorithm", ["scaffold", "fednova"])
@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "multi-krum", "norm-bound"])
def test_no_rule_takes_an_algorithms_place_in_silence(algorithm, rule, table):
    with pytest.raises(UsageError, match="SQ-621"):
        settings_of(make_study(table, {"algorithm": algorithm, "rule": rule}, **PLAIN))


@pytest.mark.parametrize("codec", ["top-k", "random-k", "quantise", "low-rank"])
def test_variates_are_not_computed_from_what_a_codec_left(codec, table):
    with pytest.raises(UsageError, match="SQ-621"):
        settings_of(make_study(table, {"algorithm": "scaffold", "compression": codec}, **PLAIN))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_variates_are_means_of_gradients_whatever_the_momentum(momentum):
    """On a quadratic with one gradient g for each client, eq. 4 must give exactly g."""
    from sequester.federated.algorithms import LocalWork, ServerState
    from sequester.federated.gate import Accepted

    work = LocalWork(learning_rate=0.1, momentum=momentum)
    algorithm, state = Scaffold(population=2), ServerState(np.zeros(3))
    gradients = np.array([[1.0, -2.0, 0.5], [3.0, 1.0, -1.0]])
    for _ in range(3):
        fold = algorithm.fold(state, work)
        for client, gradient in enumerate(gradients):
            correction = algorithm.correction(state, client)
            model = velocity = np.zeros(3)
            for _ in range(7):  # torch.optim.SGD's own rule
                velocity = momentum * velocity + gradient + correction
                model = model - 0.1 * velocity
            fold.add(Accepted(client, model.astype(np.float32), 7, 1.0), 1.0)
        algorithm.apply(state, fold.direction(2.0))
        for client, gradient in enumerate(gradients):
            np.testing.assert_allclose(state.clients[client], gradient, rtol=1e-5)
        np.testing.assert_allclose(state.slots["control"], gradients.mean(0), rtol=1e-5)


@pytest.mark.parametrize("private", [False, True])
def test_a_model_that_is_not_finite_stops_the_run(private):
    options = {"plan": {}} if private else {}
    simulation = make_simulation(rate=1.0, algorithm=FedAvg(1e300), **options)
    before = simulation.next_round
    with pytest.raises(SequesterError, match="SQ-628"):
        simulation.run_round()
    assert simulation.next_round == before


def test_a_diverged_run_ends_without_weights_and_stays_charged(table, tmp_path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    Ledger.create(url).create_budget("clinic", "clinic", 20.0, 1e-5)
    study = make_study(table, ledger={"url": url, "budget": "clinic"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "apply", _explode)
        with pytest.raises(SequesterError, match="SQ-628"):
            federate(study, out=tmp_path)
    (folder,) = (p for p in tmp_path.iterdir() if p.is_dir())
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "claim.json").exists()
    again = make_study(
        table, ledger={"url": url, "budget": "clinic"}, privacy={"noise_multiplier": 0.3}
    )
    with pytest.raises(SequesterError, match="SQ-3"):  # what is held is not given back
        federate(again, out=tmp_path / "again")


def _explode(self, state, direction):
    state.model = state.model + 1e60 * direction


@pytest.mark.parametrize(
    "federated",
    [{"quorum": 1000}, {"local_learning_rate": 1e6, "epochs": 40, "local_momentum": 0.99}],
)
def test_a_run_of_abandoned_rounds_alone_fails_and_says_how_many(federated, table, tmp_path):
    study = make_study(table, federated, **PLAIN)
    path = tmp_path / "study.toml"
    path.write_text(to_toml(study))
    done = CliRunner().invoke(command, [str(path), "--out", str(tmp_path / "runs"), "--quiet"])
    assert isinstance(done.exception, SequesterError), done.output
    assert done.exception.code == 629
    assert "4 rounds" in str(done.exception)
    assert not list(tmp_path.glob("runs/*/model.safetensors"))


def test_some_abandoned_rounds_are_counted(table, tmp_path):
    study = make_study(table, {"quorum": 24}, **PLAIN, training={"steps": 8, "sampling_rate": 0.5})
    run = federate(study, out=tmp_path)
    lines = [
        msgspec.json.decode(line)
        for line in (run.folder.private / "rounds.jsonl").read_text().splitlines()
    ]
    assert 0 < run.abandoned < 8
    assert run.abandoned == sum(not line["done"] for line in lines)


def test_a_sum_is_the_same_whatever_the_chunk(monkeypatch):
    """And no more deltas exist at once than the chunk holds."""
    from sequester.federated import clients

    finals = []
    for some in (5, 11, 1000):
        simulation = make_simulation(rate=1.0)
        monkeypatch.setattr(clients, "CHUNK_BYTES", some * 4 * len(simulation.state.model))
        simulation.crowd.engine = _Counting(simulation.crowd.engine)
        assert simulation.run_round().accepted == PEOPLE
        assert max(simulation.crowd.engine.seen) == min(PEOPLE, some)
        finals.append(simulation.state.model.tobytes())
    assert finals[0] == finals[1] == finals[2]


def test_memory_does_not_grow_with_the_cohort():
    """Deltas of 2,000 clients would take 29 MB and their copies as much; a chunk is 1 MB."""
    import tracemalloc

    from sequester.federated import clients

    peaks = []
    for people in (250, 2000):
        simulation = _many(people)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clients, "CHUNK_BYTES", 1 << 20)
            tracemalloc.start()
            assert simulation.run_round().accepted == people
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    whole = 2000 * 4 * len(simulation.state.model)
    assert peaks[1] - peaks[0] < 0.25 * whole


class _Counting:
    """An engine that notes how many clients it trains at once."""

    def __init__(self, engine):
        self.engine, self.layout, self.seen = engine, engine.layout, []

    def train(self, job):
        self.seen.append(len(job.clients))
        return self.engine.train(job)


class _Engine:
    """Any model of 4,000 numbers; a client's delta is its own."""

    name = "loop"

    def __init__(self):
        from sequester.federated.messages import Layout

        self.layout = Layout(("w",), ((4000,),))

    def train(self, job):
        from sequester.federated.engine.base import Trained

        count = len(job.clients)
        deltas = np.repeat((1.0 + job.clients[:, None]).astype(np.float32), 4000, axis=1)
        return Trained(deltas, np.ones(count, np.int64), np.ones(count, np.int64))


def _many(people):
    from sequester.federated.algorithms import LocalWork, ServerState
    from sequester.federated.clients import Devices
    from sequester.federated.simulate import Simulation

    work, algorithm = LocalWork(), FedAvg()
    return Simulation(
        run="many",
        state=ServerState(np.zeros(4000)),
        crowd=Devices(_Engine(), work, algorithm, 1),
        algorithm=algorithm,
        work=work,
        cohort=lambda _: np.arange(people),
    )


def test_a_rule_that_must_hold_everything_says_how_much_it_may(monkeypatch):
    from sequester.federated import simulate
    from sequester.federated.algorithms import CoordinateMedian

    simulation = make_simulation(rate=1.0, rule=CoordinateMedian())
    need = 4 * PEOPLE * len(simulation.state.model)
    monkeypatch.setattr(simulate, "HELD_BYTES", need)
    assert simulation.run_round().done
    monkeypatch.setattr(simulate, "HELD_BYTES", need - 1)
    with pytest.raises(UsageError, match="SQ-619"):
        simulation.run_round()
