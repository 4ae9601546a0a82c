"""`sequester audit`: fields, exit codes, what may leave and what may not."""

import contextlib
import dataclasses
import itertools
import json
import shutil

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from sequester import accounting, training
from sequester.audit import run as run_module
from sequester.audit.mechanism import planning
from sequester.audit.mechanism.battery import run_battery
from sequester.audit.mechanism.evidence import audit_mechanism
from sequester.audit.mechanism.observe import Subject
from sequester.audit.mechanism.planning import Question, plan
from sequester.audit.mechanism.rounds import Rounds
from sequester.audit.mechanism.scores import Confidence, Scores, register
from sequester.audit.mechanism.tiers import ESTIMATE, GAUSSIAN, all_tiers
from sequester.audit.mechanism.trace import Trace
from sequester.cli.audit import command
from sequester.core.errors import UsageError, VerificationError
from sequester.core.rng import key_from_test_seed
from sequester.federated.run import federate
from sequester.ledger import Ledger
from sequester.mechanism.claim import Claim, Conditions
from sequester.report import write_card
from sequester.sequences import datasets
from sequester.training.resumption import Begun
from tests.audit.zoo import FAULTS, on_noise, subject, without_invariants

QUICK = ["--canaries", "100", "--steps", "4", "--references", "0", "--people", "50", "--json"]


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    """Keys that differ as in use, and are the same in each run: one correct audit in 100 alarms."""
    numbers = itertools.count()
    monkeypatch.setattr(run_module, "fresh_key", lambda: key_from_test_seed(next(numbers)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short real run on the embedded data."""
    study = training.Study(
        name="short",
        data=training.Data(
            source="builtin:randhie",
            population=4700,
            features={
                name: training.Feature(r.lower, r.upper, r.log)
                for name, r in datasets.RANDHIE_RANGES.items()
            },
            label="label",
            window=5,
            stride=5,
        ),
        model=training.Model(kind="gru", options={"hidden": 8}),
        privacy=training.Privacy(epsilon=2.0, delta=1e-5),
        training=training.Training(steps=4, sampling_rate=0.02),
    )
    return training.train(study, out=tmp_path_factory.mktemp("runs")).folder.path


def test_a_sound_run_is_consistent_and_its_card_says_what_was_tried(finished):
    result = CliRunner().invoke(command, [str(finished), *QUICK, "--quiet"])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert fields["consistent"] is True
    assert fields["epsilon_lower"] <= fields["epsilon_claimed"]
    assert {"name", "auc", "advantage", "tpr_at_fpr"} <= fields["attacks"][0].keys()
    assert len({tier["name"] for tier in fields["tiers"]}) == 5
    for tier in fields["tiers"]:
        most = [tier[name] for name in ("reach", "ceiling") if tier[name] is not None]
        blind = min(most, default=np.inf) <= fields["epsilon_of_these_steps"]
        verdict = "no verdict" if tier["name"] == ESTIMATE else "consistent"
        assert tier["verdict"] == ("cannot tell" if blind else verdict)
        assert tier["reach"] is None or tier["reach"] <= tier["ceiling"]
    card = (finished / "card.html").read_text()
    assert "with canary persons" in card
    assert "could not have found more than" in card


def test_figures_computed_on_people_stay_private(finished):
    assert CliRunner().invoke(command, [str(finished), *QUICK, "--quiet"]).exit_code == 0
    public = json.loads((finished / "audit.json").read_text())
    private = json.loads((finished / "private" / "audit.json").read_text())
    assert [attack["name"] for attack in public["attacks"]] == ["canaries"]
    assert "loss" in {attack["name"] for attack in private["attacks"]}
    assert (finished / "private" / "audit.json").stat().st_mode & 0o077 == 0
    assert "caps" not in public


def test_no_seed_gives_the_noise_away_and_nothing_people_moved_is_told(finished):
    """A known seed would make p-values functions of people's sum and number alone."""
    told = []
    for view in ("iterates", "iterates", "final"):
        arguments = [str(finished), *QUICK, "--quiet", "--view", view]
        assert CliRunner().invoke(command, arguments).exit_code == 0
        told.append(
            [
                json.loads((finished / folder / "audit.json").read_text())
                for folder in ("", "private")
            ]
        )
    exact = [{c["name"]: c["p_value"] for c in fields["battery"]["checks"]} for _, fields in told]
    for name in ("normality", "sum over coordinates"):
        assert exact[0][name] != exact[1][name]
    for (public, _), private in zip(told, exact, strict=True):
        for check in public["battery"]["checks"]:
            assert check["p_value"] == float(f"{private[check['name']]:.1g}")
    assert told[0][0]["attacks"]
    assert told[0][0]["tiers"]
    public, private = told[2]
    assert public["attacks"] == public["tiers"] == []
    assert public["epsilon_lower"] == 0.0
    assert {attack["name"] for attack in private["attacks"]} == {"canaries", "loss"}
    assert private["tiers"]
    assert "people moved them" in " ".join(public["sentences"])


def test_a_broken_step_ends_with_exit_code_four(finished, monkeypatch):
    fault = FAULTS["noise halved"]
    with without_invariants(), fault.plant():
        result = CliRunner().invoke(command, [str(finished), *QUICK, "--quiet"])
    assert isinstance(result.exception, VerificationError)
    assert result.exception.exit_code == 4
    assert json.loads(result.stdout)["consistent"] is False


def told_in_public(run):
    """What everybody can read of an audit: its JSON, and its part of the card."""
    card = (run / "card.html").read_text()
    return json.loads((run / "audit.json").read_text()), card.partition("<h2>Attacked</h2>")[2]


def test_what_only_the_holder_found_is_not_called_sound_in_public(finished, monkeypatch):
    """A model that gives its members away, as a memorising one does; canaries see nothing."""
    monkeypatch.setattr(
        run_module.attacks,
        "signals",
        lambda model, task, both: (np.arange(both.people) < both.people // 2).astype(float),
    )
    result = CliRunner().invoke(command, [str(finished), *QUICK, "--quiet"])
    assert result.exception.exit_code == 4
    assert json.loads(result.stdout)["above_caps"]
    public, card = told_in_public(finished)
    assert public["consistent"] is False
    assert public["mechanism_consistent"] is True
    assert "An audit contradicts the claim" in card
    assert "found nothing" not in card
    assert [attack["name"] for attack in public["attacks"]] == ["canaries"]
    assert "above_caps" not in public


@pytest.mark.parametrize(
    "privacy", [{"mode": "none"}, {"epsilon": 2.0, "delta": 1e-5, "insecure_test_seed": 3}]
)
def test_a_run_that_protects_nobody_is_never_called_sound(privacy, finished, tmp_path):
    study = msgspec.structs.replace(
        training.read_study(finished / "study.toml"), privacy=training.Privacy(**privacy)
    )
    run = training.train(study, out=tmp_path).folder.path
    result = CliRunner().invoke(command, [str(run), *QUICK[:-1], "--quiet"])
    assert result.exit_code == 0, result.output
    public, card = told_in_public(run)
    for told in (result.stdout, card, " ".join(public["sentences"])):
        assert "NOT PRIVATE" in told
        assert "found nothing" not in told
        assert "othing found contradicts" not in told
    assert public["status"] == "NOT PRIVATE"
    assert public["consistent"] is public["mechanism_consistent"] is None
    claim = json.loads((run / "claim.json").read_text()) | {"status": "private"}
    (run / "claim.json").write_text(json.dumps(claim))
    result = CliRunner().invoke(command, [str(run), *QUICK, "--quiet"])
    assert result.exception.exit_code == 4


def alter(path, value):
    """Set one field of a claim, named by its path."""

    def change(claim):
        *outer, last = path.split(".")
        for name in outer:
            claim = claim[name]
        claim[last] = value(claim[last]) if callable(value) else value

    return change


def fewer_steps(claim):
    """An honest claim about half of the steps that ran."""
    event = accounting.from_json(json.dumps(claim["events"]))
    half = dataclasses.replace(event, count=event.count // 2)
    claim["events"] = json.loads(accounting.to_json(half))


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (alter("epsilon", lambda e: 0.5 * e), "SQ-242"),
        (alter("epsilon", float("nan")), "SQ-242"),
        (alter("epsilon", "little"), "SQ-242"),
        (alter("epsilon", True), "SQ-242"),
        (alter("delta", 1e-9), "SQ-242"),
        (alter("mu", 0.01), "SQ-242"),
        (alter("epsilon_rdp", 0.01), "SQ-242"),
        (alter("attacker.advantage", 0.01), "SQ-242"),
        (alter("attacker.posterior_from_half", 0.5), "SQ-242"),
        (alter("tradeoff.tpr", lambda tpr: [0.9 * t for t in tpr]), "SQ-242"),
        (alter("person.epsilon", 0.1), "SQ-242"),
        (alter("events", {}), "SQ-242"),
        (alter("events", None), "SQ-242"),
        (alter("events", []), "SQ-242"),
        (alter("events", {"type": "nothing-known"}), "SQ-242"),
        (alter("delta", 1e-3), "SQ-814"),
        (alter("population", 10**6), "SQ-814"),
        (alter("status", "NOT PRIVATE"), "SQ-814"),
        (alter("schema", "sequester/claim/2"), "SQ-814"),
        (fewer_steps, "SQ-814"),
    ],
)
def test_a_claim_that_is_not_its_events_or_not_the_runs_is_refused_at_once(
    finished, monkeypatch, change, number
):
    file = finished / "claim.json"
    honest = file.read_text()
    claim = json.loads(honest)
    change(claim)
    file.write_text(json.dumps(claim))
    monkeypatch.setattr(run_module, "read_people", None)  # nothing is read before
    try:
        result = CliRunner().invoke(command, [str(finished), *QUICK, "--quiet"])
    finally:
        file.write_text(honest)
    assert isinstance(result.exception, VerificationError), result.exception
    assert result.exception.exit_code == 4
    assert number in str(result.exception)


def forge(run, **decided):
    """Other decisions, with a claim whose every figure follows from them."""
    file, study = run / "checkpoints" / "begun.json", training.read_study(run / "study.toml")
    begun = msgspec.structs.replace(msgspec.json.decode(file.read_bytes(), type=Begun), **decided)
    file.write_bytes(msgspec.json.encode(begun))
    plan = begun.plan(study)
    Claim.of(plan, plan.event(), Conditions(data="forged", fingerprint=begun.data)).write(
        run / "claim.json"
    )


def facts_of(run, name, value):
    """Set one field of the plan in `facts.json`."""
    told = json.loads((run / "facts.json").read_text())
    told["plan"][name] = value
    (run / "facts.json").write_text(json.dumps(told))


def forge_everything(run):
    """A claim of ten times the noise, in the decisions, the claim and the facts alike."""
    facts_of(run, "noise multiplier", 200.0)
    forge(run, noise_multiplier=200.0)


def edit_study(run):
    text = (run / "study.toml").read_text()
    assert "learning_rate = " in text
    (run / "study.toml").write_text(text.replace("learning_rate = ", "learning_rate = 3", 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda run: forge(run, noise_multiplier=200.0),
        forge_everything,
        lambda run: forge(run, steps=2, cut=True),
        lambda run: forge(run, steps=2),
        lambda run: facts_of(run, "noise multiplier", 1.0),
        lambda run: facts_of(run, "first clip", "one"),
        edit_study,
    ],
)
def test_a_claim_that_follows_from_what_never_ran_is_refused(
    change, finished, tmp_path, monkeypatch
):
    run = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr(run_module, "read_people", None)  # nothing is read before
    change(run)
    result = CliRunner().invoke(command, [str(run), *QUICK, "--quiet"])
    assert isinstance(result.exception, VerificationError), result.exception
    assert "SQ-814" in str(result.exception)


def test_a_claim_is_what_its_ledger_booked_and_what_cannot_be_checked_is_said(finished, tmp_path):
    url = f"sqlite:///{tmp_path}/books.db"
    with Ledger.create(url) as ledger:
        ledger.create_budget("people", "people", 4.0, 1e-5)
    study = msgspec.structs.replace(
        training.read_study(finished / "study.toml"), ledger=training.LedgerSection(url, "people")
    )
    run = training.train(study, out=tmp_path).folder.path
    arguments = [str(run), *QUICK[:-1], "--quiet"]
    assert "NOT CHECKED" not in CliRunner().invoke(command, arguments).output
    file = run / "claim.json"
    honest = json.loads(file.read_text())
    other = {"hash": "0" * 64}, {"row": 1}, {"row": 10**6}, {"id": "0" * 64}, {"budget": "else"}
    for quoted in (None, *(honest["ledger"] | wrong for wrong in other)):
        file.write_text(json.dumps(honest | {"ledger": quoted}))
        result = CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, VerificationError), quoted
        assert "SQ-817" in str(result.exception)
    file.write_text(json.dumps(honest))
    for name in tmp_path.glob("books.db*"):
        name.unlink()
    shutil.rmtree(run / "private")
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    public, card = told_in_public(run)
    assert len(public["unchecked"]) == 2
    for told in (result.stdout, card, " ".join(public["sentences"])):
        assert told.count("NOT CHECKED") == 2


def test_a_card_shows_no_audit_of_another_claim_or_of_other_weights(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    assert CliRunner().invoke(command, [str(run), *QUICK, "--quiet"]).exit_code == 0
    assert "with canary persons" in told_in_public(run)[1]
    for name in ("claim.json", "model.safetensors"):
        honest = (run / name).read_bytes()
        (run / name).write_bytes(honest + b"\n")
        write_card(run)
        assert "of another claim" in told_in_public(run)[1]
        assert "with canary persons" not in told_in_public(run)[1]
        (run / name).write_bytes(honest)
    (run / "model.safetensors").unlink()  # a card may be written where weights did not travel
    write_card(run)
    assert "with canary persons" in told_in_public(run)[1]


def test_a_refused_claim_leaves_no_earlier_verdict(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    assert CliRunner().invoke(command, [str(run), *QUICK, "--quiet"]).exit_code == 0
    claim = json.loads((run / "claim.json").read_text())
    (run / "claim.json").write_text(json.dumps(claim | {"epsilon": 0.5}))
    assert CliRunner().invoke(command, [str(run), *QUICK, "--quiet"]).exception.exit_code == 4
    public, card = told_in_public(run)
    assert public["consistent"] is False
    assert "SQ-242" in card
    assert "An audit contradicts the claim" in card
    assert not (run / "private" / "audit.json").exists()


@pytest.mark.parametrize(("fault", "code"), [("noise halved", 4), (None, 2)])
def test_a_card_that_cannot_be_written_hides_no_verdict(fault, code, finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "facts.json").unlink()
    planted = FAULTS[fault].plant() if fault else contextlib.nullcontext()
    with without_invariants(), planted:
        result = CliRunner().invoke(command, [str(run), *QUICK, "--quiet"])
    assert result.exception.exit_code == code
    fields = json.loads(result.stdout)
    assert fields["consistent"] is (fault is None)
    assert fields["card"] is None
    assert not (run / "card.html").exists()


def federated_run(finished, out, federated, *, population=4000, **training_fields):
    """A short federated run on the data of `finished`."""
    central = training.read_study(finished / "study.toml")
    fields = {"steps": 3, "sampling_rate": 0.05} | training_fields
    study = msgspec.structs.replace(
        central,
        data=msgspec.structs.replace(central.data, group="site", population=population),
        training=training.Training(**fields),
        federated=federated,
    )
    return federate(study, out=out).folder.path


@pytest.mark.parametrize(
    ("placement", "fields"),
    [
        ("cross-device", {}),
        ("cross-device", {"lot_size": 200}),
        ("cross-silo", {}),
        ("local", {"steps": 1, "sampling_rate": 1.0}),
    ],
    ids=["cross-device", "cohorts of fixed size", "cross-silo", "local"],
)
def test_a_federated_run_is_audited_by_its_own_rounds(placement, fields, finished, tmp_path):
    run = federated_run(finished, tmp_path, {"placement": placement}, **fields)
    result = CliRunner().invoke(command, [str(run), *QUICK, "--quiet"])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert fields["consistent"] is True
    assert fields["mechanism_tested"] is True
    assert f"real {placement} rounds with canary" in " ".join(fields["sentences"])
    assert fields["battery"]["alarm"] is False


@pytest.mark.parametrize("federated", [None, "cross-device", "cross-silo"])
def test_where_no_canary_fits_noise_and_model_are_still_attacked(federated, finished, tmp_path):
    central = training.read_study(finished / "study.toml")
    data = msgspec.structs.replace(
        central.data, features={"mdvis": central.data.features["mdvis"]}, group="site"
    )
    study = msgspec.structs.replace(
        central,
        data=data,
        model=training.Model(kind="linear"),
        training=training.Training(steps=1, sampling_rate=0.05),
        federated=None if federated is None else {"placement": federated},
    )
    make = training.train if federated is None else federate
    run = make(study, out=tmp_path).folder.path
    result = CliRunner().invoke(command, [str(run), *QUICK, "--quiet"])
    assert result.exit_code == 0, result.exception
    fields = json.loads(result.stdout)
    assert [attack["name"] for attack in fields["attacks"]] == ["loss"]
    assert fields["epsilon_lower"] is None
    assert fields["battery"]["checks"]
    for told in (" ".join(fields["sentences"]), told_in_public(run)[1]):
        assert "NOT TESTED WITH CANARIES" in told
        assert "could not have found noise that is less than" in told
        assert "Canaries and tests of the noise found nothing" not in told


@pytest.mark.parametrize(
    "federated",
    [
        {"placement": "cross-silo", "local_steps": 3},
        {"placement": "cross-silo", "secagg": {"noise": "none"}},
    ],
    ids=["several private steps", "masked sums"],
)
def test_what_no_canary_looked_at_is_not_called_sound(federated, finished, tmp_path):
    run = federated_run(finished, tmp_path, federated, population=4800)
    result = CliRunner().invoke(command, [str(run), *QUICK[:-1], "--quiet"])
    assert result.exit_code == 0, result.output
    for told in (result.stdout, (run / "card.html").read_text()):
        assert "THE MECHANISM WAS NOT TESTED" in told
        assert "othing found contradicts the claim" not in told
    public = json.loads((run / "audit.json").read_text())
    assert public["mechanism_tested"] is False
    assert public["epsilon_lower"] is None
    assert public["tiers"] == []


def test_an_unfinished_run_and_other_data_are_refused(finished, tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "begun.json").write_text("{}")
    (tmp_path / "study.toml").write_text("")
    with pytest.raises(UsageError, match="SQ-812"):
        run_module.audit_run(tmp_path)
    fewer = datasets.randhie().split("person", held_out=0.5)[0]
    monkeypatch.setattr(run_module, "read_people", lambda *a, **k: fewer)
    with pytest.raises(UsageError, match="SQ-813"):
        run_module.audit_run(finished)


def test_a_plan_says_what_each_tier_needs():
    answers = {answer.tier: answer.canaries for answer in plan(Question(2.0, 1e-5, 0.5))}
    assert 300 < answers[GAUSSIAN] < 2000
    harder = {answer.tier: answer.canaries for answer in plan(Question(2.0, 1e-5, 0.7))}
    assert harder[GAUSSIAN] > answers[GAUSSIAN]
    result = CliRunner().invoke(command, ["plan", "--epsilon", "8", "--json"])
    assert len(json.loads(result.stdout)["tiers"]) == 4
    errors = list(json.loads(result.stdout)["smallest_noise_error"].values())
    assert 1 > errors[0] > errors[1] > errors[2] > 0
    for wrong in ((2.0, 1e-5, 1.5), (np.inf, 1e-5, 0.5), (np.nan, 1e-5, 0.5)):
        with pytest.raises(UsageError, match="SQ-811"):
            Question(*wrong)


@pytest.mark.parametrize(
    "wrong",
    [["--canaries", "0"], ["--people", "-1"], ["--references", "3"], ["--steps", "-5"]],
)
def test_settings_that_cannot_be_are_refused(finished, wrong):
    result = CliRunner().invoke(command, [str(finished), *wrong])
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert "SQ-816" in str(result.exception)


def test_damaged_weights_and_plans_without_steps_are_refused(finished):
    file = finished / "model.safetensors"
    honest = file.read_bytes()
    file.write_bytes(honest[:40])
    try:
        with pytest.raises(UsageError, match="SQ-812"):
            run_module.audit_run(finished)
    finally:
        file.write_bytes(honest)


def test_a_plan_that_cannot_be_is_refused_before_the_work(monkeypatch):
    monkeypatch.setattr(planning, "plan", None)
    for wrong in (["--steps", "-5"], ["--sampling-rate", "2"], ["--epsilon", "inf"]):
        result = CliRunner().invoke(command, ["plan", "--epsilon", "2", *wrong])
        assert isinstance(result.exception, UsageError)
        assert "SQ-811" in str(result.exception)


def test_canaries_that_could_prove_nothing_are_not_said_to_have_found_nothing(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    claim = json.loads((run / "claim.json").read_text())
    (run / "claim.json").write_text(json.dumps(claim | {"version": "9.9.9"}))
    few = [str(run), "--canaries", "8", *QUICK[2:-1], "--quiet", "--steps", "1"]
    result = CliRunner().invoke(command, few)
    assert result.exit_code == 0, result.exception
    public, card = told_in_public(run)
    could = any(tier["verdict"] == "consistent" for tier in public["tiers"])
    assert public["canaries_can_tell"] is could
    for told in (result.stdout, card):
        assert ("canaries cannot tell" in told) is not could
        assert "another version" in told


def test_no_tier_finds_more_than_it_could_have():
    coins = np.arange(200) % 2 == 0
    values = np.where(coins, 9.0, -9.0)
    registration = register(4.0, 200, 1e-5, confidence=Confidence(alarm=0.999))
    for tier in all_tiers(Scores(values, coins), registration, 1e-5):
        assert tier.epsilon <= tier.ceiling
        assert tier.alarm <= tier.reach


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_released_number_that_is_not_finite_fails_the_battery(value):
    noise = np.random.Generator(np.random.Philox(1)).normal(size=(4, 20))
    noise[1, 3] = value
    quiet = np.full(4, np.nan)
    trace = Trace(noise, {"w": (0, 20)}, quiet, quiet, np.ones((4, 5), bool), 1.0, 4, 4)
    assert run_battery(trace).alarm


class Interrupted(Exception):
    """Stands for a power cut: not one of ours, and nothing handles it."""


def stopping(after: str, most: int):
    """A watcher that stops the audit once `most` parts of a stage are done."""

    def watch(stage, done, of):
        if stage.startswith(after) and done >= most:
            raise Interrupted

    return watch


def test_an_interrupted_audit_goes_on_with_what_was_finished(finished, monkeypatch):
    settings = run_module.Settings(canaries=40, steps=2, references=2, people=30)
    trained = []
    make = run_module.adam

    def counting(**options):
        def train(*parts):
            trained.append(1)
            return make(**options, epochs=2)(*parts)

        return train

    monkeypatch.setattr(run_module, "adam", counting)
    with pytest.raises(Interrupted):
        run_module.audit_run(finished, settings, watch=stopping("membership", 1))
    left = finished / "private" / "audit"
    assert sorted(path.name for path in left.iterdir()) == [
        "asked",
        "mechanism.json",
        "reference-0.safetensors",
        "windows.key",
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (left, *left.iterdir()))
    kept = msgspec.json.decode((left / "mechanism.json").read_bytes())
    with monkeypatch.context() as again:
        again.setattr(Rounds, "observe", None)
        again.setattr(Subject, "observe", None)
        found = run_module.audit_run(finished, settings)
    assert len(trained) == 2
    assert found.mechanism.scores.values.tolist() == kept["values"]
    assert not left.exists()
    whole = run_module.audit_run(finished, settings)
    assert [a.auc for a in whole.membership] == [a.auc for a in found.membership]
    assert len(trained) == 4


def test_what_another_question_left_behind_is_not_used(finished):
    settings = run_module.Settings(canaries=40, steps=2, references=0, people=30)
    with pytest.raises(Interrupted):
        run_module.audit_run(finished, settings, watch=stopping("mechanism", 1))
    left = finished / "private" / "audit"
    before = (left / "windows.key").read_bytes()
    with pytest.raises(Interrupted):
        run_module.audit_run(finished, settings, watch=stopping("mechanism", 1))
    assert (left / "windows.key").read_bytes() == before
    other = dataclasses.replace(settings, seed=1)
    with pytest.raises(Interrupted):
        run_module.audit_run(finished, other, watch=stopping("mechanism", 1))
    assert (left / "windows.key").read_bytes() != before
    (left / "mechanism.json").write_text('{"values": [1')  # what a full disk may leave
    assert run_module.audit_run(finished, other).consistent


@pytest.mark.parametrize("view", ["iterates", "sum", "final"])
def test_a_released_number_that_is_none_is_a_finding_and_not_a_crash(view):
    """At a canary's weight, in the first step: everything after it is none either."""

    def broken(noise, exact):
        noise[::7] = float("nan")
        return noise

    with without_invariants(), on_noise(broken).plant():
        audit = audit_mechanism(subject(4.0, steps=3), canaries=40, seed=1, view=view)
    assert audit.alarm
    assert "finite" in {check.name for check in audit.battery.failed}
    assert all(tier.epsilon == 0.0 for tier in audit.tiers if view == "final")
