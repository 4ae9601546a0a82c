"""The main job on an invented population: what is charged, claimed, kept in and refused."""

import json
import math
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sequester import accounting
from sequester.core.errors import LedgerRefusal, SequesterError, UsageError, VerificationError
from sequester.ledger import Ledger
from sequester.mechanism import Claim
from sequester.models import auc
from sequester.report import write_card
from sequester.training import (
    Adaptive,
    Baseline,
    Category,
    Feature,
    LedgerSection,
    Run,
    read_study,
    resume,
    train,
)
from sequester.training import loop as loop_module
from sequester.training.dataset import prepare, split
from sequester.training.monitor import Measure
from tests.training.population import people, study

ROOT = Path(__file__).resolve().parents[2]


def schema(name: str) -> dict:
    return json.loads((ROOT / "docs" / f"{name}.schema.json").read_text())


def plain(path: Path) -> dict:
    return json.loads(path.read_text())


def test_a_run_learns_claims_what_ran_and_follows_its_schemas(tmp_path: Path):
    asked = study(training__steps=60, training__sampling_rate=1.0, privacy__epsilon=20.0)
    run = train(asked, out=tmp_path, people=people(300))
    claim = plain(run.folder.claim)
    jsonschema.validate(claim, schema("claim"))
    jsonschema.validate(plain(run.folder.facts), schema("facts"))
    assert run.utility is not None
    assert run.utility.value > 0.85
    event = accounting.from_json(json.dumps(claim["events"]))
    assert event == accounting.SelfComposed(event.event, 60)
    assert claim["epsilon"] >= accounting.epsilon(event, 1e-3)
    assert claim["epsilon"] <= 20.0 * 1.001
    assert claim["status"] == "NOT PRIVATE"  # a test seed
    assert "Nobody is protected" in claim["unit_sentence"]
    assert claim["person"]["epsilon"] == claim["epsilon"]


def test_a_system_key_makes_a_private_claim(tmp_path: Path):
    run = train(study(privacy__insecure_test_seed=None), out=tmp_path, people=people())
    assert run.claim is not None
    assert run.claim.private
    assert "operating system" in run.claim.fields["noise_source"]


def test_the_twin_is_marked(tmp_path: Path):
    asked = study(privacy__mode="none", training__steps=60, training__sampling_rate=1.0)
    run = train(asked, out=tmp_path, people=people(300))
    claim = plain(run.folder.claim)
    jsonschema.validate(claim, schema("claim"))
    assert claim["status"] == "NOT PRIVATE"
    assert claim["epsilon"] == "inf"
    assert run.epsilon == math.inf
    assert run.utility is not None
    assert run.utility.value > 0.9


def test_empty_lots_are_pure_noise_and_are_charged(tmp_path: Path):
    asked = study(
        training__sampling_rate=1e-6, privacy__epsilon=None, privacy__noise_multiplier=1.0
    )
    seen = []
    run = train(asked, out=tmp_path, people=people(), watch=seen.append)
    assert [m.people for m in seen] == [0] * 12
    assert run.steps == 12
    weights = load_file(run.folder.weights)
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_micro_batches_do_not_change_the_result(tmp_path: Path):
    whole = train(study(), out=tmp_path / "a", people=people())
    parts = train(study(training__micro_batch=7), out=tmp_path / "b", people=people())
    one, other = load_file(whole.folder.weights), load_file(parts.folder.weights)
    for name, value in one.items():
        assert torch.allclose(value, other[name], atol=1e-4), name


def test_the_window_unit_says_what_it_means_for_a_person(tmp_path: Path):
    asked = study(unit={"kind": "window"})
    asked = study(
        unit=type(study().unit)(kind="window"),
        data__window=2,
        data__stride=2,
        data__max_per_person=3,
    )
    run = train(asked, out=tmp_path, people=people())
    assert run.claim is not None
    person = run.claim.fields["person"]
    assert run.claim.fields["unit"] == "window"
    assert person["max_contribution"] == 3
    assert person["epsilon"] > 1.5 * run.claim.fields["epsilon"]
    assert run.claim.fields["population"] == 80 * 3
    unbounded = study(unit=asked.unit, data__window=2, data__stride=2)
    run = train(unbounded, out=tmp_path, people=people())
    assert plain(run.folder.claim)["person"]["epsilon"] == "inf"


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "automatic"])
def test_every_clipping_rule_trains(tmp_path: Path, clipping: str):
    run = train(study(privacy__clipping=clipping), out=tmp_path, people=people())
    assert run.steps == 12


def test_adaptive_clipping_moves_the_bound_and_keeps_epsilon(tmp_path: Path):
    seen = []
    fixed = train(study(), out=tmp_path / "a", people=people())
    adaptive = Adaptive(quantile=0.5, learning_rate=0.3, count_noise=20.0)
    moved = train(
        study(privacy__adaptive=adaptive), out=tmp_path / "b", people=people(), watch=seen.append
    )
    assert len({m.clip for m in seen}) == 12
    (curve,) = clipped_curves(moved)
    assert curve["protection"] == "privatised"
    assert curve["y"] != [m.clipped for m in seen]
    assert moved.epsilon == fixed.epsilon


def clipped_curves(run: Run) -> list[dict]:
    curves = plain(run.folder.facts)["curves"]
    return [curve for curve in curves if curve["title"].startswith("People clipped")]


def test_every_run_shows_its_curves_and_the_count_of_clipped_people_is_paid_for(tmp_path: Path):
    seen: list[Measure] = []
    asked = study(
        privacy__epsilon=None,
        privacy__noise_multiplier=2.0,
        training__sampling_rate=1.0,
        data__population=3000,
        privacy__delta=1e-4,
        privacy__clip=0.1,
    )
    run = train(asked, out=tmp_path / "a", people=people(3000), watch=seen.append)
    without = train(
        msgspec.structs.replace(
            asked, privacy=msgspec.structs.replace(asked.privacy, count_clipped=False)
        ),
        out=tmp_path / "b",
        people=people(3000),
    )
    # The same event, so the same ε: the gradient has the more noise instead.
    assert run.claim is not None
    assert without.claim is not None
    assert run.claim.fields["events"] == without.claim.fields["events"]
    assert clipped_curves(without) == []
    titles = [curve["title"] for curve in plain(run.folder.facts)["curves"]]
    assert titles[0].startswith("ε spent")
    assert titles[1].startswith("Noise")
    (curve,) = clipped_curves(run)
    assert curve["protection"] == "privatised"
    true = np.array([m.clipped for m in seen])
    assert len(curve["y"]) == len(true) == 12
    errors = np.array(curve["y"]) * 3000 - true * seen[0].people
    # Centred bits over the expected 3000 people, who are fewer here: 2.0 · 5 people of noise.
    missing = (3000 - seen[0].people) / 2
    assert np.abs(errors - missing).max() < 10.0 * 5.0
    assert np.abs(errors - missing).min() > 0.0
    plan = {name: value for name, value in plain(run.folder.facts)["plan"].items()}
    assert 1.004 < plan["noise on the gradient"] / plan["noise multiplier"] < 1.006


def test_the_ledger_is_charged_first_cuts_steps_and_then_refuses(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 6.0, 1e-3)
    section = LedgerSection(url=url, budget="town")
    asked = study(
        ledger=section,
        privacy__epsilon=None,
        privacy__noise_multiplier=1.5,
        training__steps=5000,
    )
    run = train(asked, out=tmp_path, people=people())
    assert run.stopped == "budget"
    assert 1 <= run.steps < 5000
    assert run.folder.weights.exists()
    assert run.claim is not None
    row = run.claim.fields["ledger"]
    assert row["budget"] == "town"
    assert row["spent"] <= 6.0
    with pytest.raises(LedgerRefusal) as refused:
        train(study(ledger=section, privacy__epsilon=6.0), out=tmp_path, people=people())
    assert refused.value.exit_code == 3


def test_a_privatised_figure_is_charged_to_the_held_out_people(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 30.0, 1e-3)
        ledger.create_budget("judges", "tiny-held-out", 2.0, 1e-3)
    held = type(study().data.holdout)(share=0.3, protection="privatised", epsilon=1.5)
    section = LedgerSection(url=url, budget="town")
    for without in (None, section):  # neither without a ledger, nor without a budget in it
        with pytest.raises(UsageError, match="SQ-273"):
            train(study(ledger=without, data__holdout=held), out=tmp_path / "a", people=people())
    section = LedgerSection(url=url, budget="town", holdout_budget="judges")
    asked = study(ledger=section, data__holdout=held)
    run = train(asked, out=tmp_path / "b", people=people())
    assert run.stopped == "finished"
    with Ledger.open(url) as ledger:
        spent = {s.budget.name: s.spent for s in ledger.budgets()}
    assert 1.4 < spent["judges"] < 2.0
    # A run that may not train judges nobody: the held-out people's hold is void again.
    with Ledger.open(url) as ledger:
        ledger.create_budget("rich", "tiny-rich", 3.0, 1e-3)
        ledger.create_budget("poor", "tiny-poor", 0.01, 1e-3)
    poor = LedgerSection(url=url, budget="poor", holdout_budget="rich")
    asked = study(ledger=poor, data__holdout=held, privacy__insecure_test_seed=9)
    with pytest.raises(LedgerRefusal, match="poor"):
        train(asked, out=tmp_path / "d", people=people())
    with Ledger.open(url) as ledger:
        assert {s.budget.name: s.spent for s in ledger.budgets()}["rich"] == 0.0
    with pytest.raises(LedgerRefusal, match="judges"):
        train(
            study(ledger=section, data__holdout=held, privacy__insecure_test_seed=8),
            out=tmp_path / "c",
            people=people(),
        )


def test_an_interrupted_run_keeps_its_reservation_and_settles_once(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 30.0, 1e-3)
    asked = study(ledger=LedgerSection(url=url, budget="town"))

    def crash(measured: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(asked, out=tmp_path / "runs", people=people(), watch=crash)
    with Ledger.open(url) as ledger:
        held = ledger.budgets()[0].spent
    (folder,) = (tmp_path / "runs").iterdir()
    resume(folder, people=people())
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent <= held
        assert ledger.budgets()[0].spent > 0
        assert ledger.verify()


def test_a_crash_between_settling_and_claiming_is_finished_by_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 30.0, 1e-3)
    asked = study(ledger=LedgerSection(url=url, budget="town"))
    honest = Claim.write

    def crash(self: Claim, path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Claim, "write", crash)
    with pytest.raises(KeyboardInterrupt):
        train(asked, out=tmp_path / "runs", people=people())
    (folder,) = (tmp_path / "runs").iterdir()
    with Ledger.open(url) as ledger:
        spent = ledger.budgets()[0].spent
    monkeypatch.setattr(Claim, "write", honest)
    run = resume(folder, people=people())
    assert run.stopped == "finished"
    assert run.claim is not None
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent == spent


def test_steps_are_cut_to_the_studys_own_ceiling(tmp_path: Path):
    asked = study(privacy__epsilon=3.0, privacy__noise_multiplier=2.0, training__steps=100_000)
    run = train(asked, out=tmp_path, people=people())
    assert run.stopped == "budget"
    assert run.epsilon <= 3.0
    more = accounting.SelfComposed(
        accounting.PoissonSampled(0.5, accounting.Gaussian(2.0)), run.steps + 1
    )
    assert accounting.epsilon(more, 1e-3) > 3.0


def test_ranges_and_vocabularies_are_found_privately_and_charged(tmp_path: Path):
    asked = study(
        data__features={"signal": Feature(-100, 100, estimate=True), "other": Feature(-3, 3)},
        data__categories={"town": Category(estimate=True)},
        privacy__epsilon=200.0,
        privacy__estimates=0.5,
    )
    run = train(asked, out=tmp_path, people=people(400))
    text = run.folder.study.read_text()
    assert "estimate = true" not in text
    found = read_study(run.folder.study)
    assert found.data.features["signal"].upper < 20
    assert found.data.features["other"].upper == 3
    assert found.data.categories["town"].values == ("east", "north", "south")
    assert run.claim is not None
    parts = run.claim.fields["events"]["events"]
    assert [part["type"] for part in parts] == [
        "gaussian",
        "gaussian",
        "approximate-dp",
        "self-composed",
    ]
    assert run.epsilon <= 200.0


def test_means_are_found_privately_charged_and_become_zero(tmp_path: Path):
    centred = {"signal": Feature(-5, 15, estimate="mean"), "other": Feature(-3, 3, centre=1.0)}
    asked = study(
        data__features=centred,
        data__population=2400,
        privacy__epsilon=20.0,
        privacy__delta=1e-4,
        privacy__estimates=0.3,
    )
    everybody = people(3000)
    run = train(asked, out=tmp_path, people=everybody)
    found = read_study(run.folder.study).data.features["signal"]
    assert not found.estimate
    values, _ = everybody.values(["signal"])
    assert found.centre is not None
    assert abs(found.centre - values.mean()) < 0.2  # of a range 20 wide
    assert run.claim is not None
    kinds = [part["type"] for part in run.claim.fields["events"]["events"]]
    assert kinds == ["gaussian", "self-composed"]
    assert run.epsilon <= 20.0
    # Values at the centre are zero for the network, missing ones too.
    lot = prepare(read_study(run.folder.study), everybody, key=bytes(32)).train
    scaled = (values[:, 0] - found.centre) / 10.0
    assert abs(float(lot.x[..., 0][lot.mask].mean()) - scaled.mean()) < 0.02
    assert float(lot.x[..., 0][~lot.mask].abs().max()) == 0.0
    assert float(lot.x[..., 1][lot.mask].mean()) == pytest.approx(-1 / 3, abs=0.02)


def test_the_step_unit_says_what_it_means_for_a_person(tmp_path: Path):
    unit = type(study().unit)(kind="step")
    shared = {"unit": unit, "data__window": 1, "data__stride": 1}
    shared |= {"privacy__insecure_test_seed": None}
    run = train(study(**shared, data__max_per_person=6), out=tmp_path, people=people())
    claim = plain(run.folder.claim)
    jsonschema.validate(claim, schema("claim"))
    assert claim["unit"] == "step"
    assert "record" in claim["unit_sentence"]
    assert claim["population"] == 80 * 6
    assert claim["person"]["max_contribution"] == 6
    assert claim["person"]["epsilon"] > 2.0 * claim["epsilon"]
    assert any("at most 6" in words for words in claim["assumptions"])
    run = train(study(**shared), out=tmp_path, people=people())
    assert plain(run.folder.claim)["person"]["epsilon"] == "inf"


def test_the_rule_to_beat_stands_beside_the_figures(tmp_path: Path):
    rule = Baseline(feature="signal", at_least=0.5, name="a large signal")
    run = train(study(data__baseline=rule), out=tmp_path, people=people(300))
    assert [figure.metric for figure in run.figures] == ["auc", "accuracy"]
    everybody = people(300)
    values, _ = everybody.values(["signal", "label"])
    held = np.flatnonzero(np.array(everybody.text("part").to_pylist()) == "test")
    _, out = split(everybody, study().data)
    values, _ = out.values(["signal", "label"])
    accuracy = ((values[:, 0] >= 0.5) == (values[:, 1] > 0.5)).mean()
    assert len(held)
    assert run.figures[1].baseline == pytest.approx(accuracy)
    assert run.figures[0].baseline == pytest.approx(auc(values[:, 1] > 0.5, values[:, 0]))
    told = plain(run.folder.facts)["utility"]
    assert [figure["baseline_name"] for figure in told] == ["a large signal"] * 2
    wrong = Baseline(feature="nothing", at_least=0.5)
    with pytest.raises(UsageError, match="SQ-268"):
        train(study(data__baseline=wrong), out=tmp_path, people=people())


@pytest.mark.parametrize("said", ["unsaid", "public", "charged", "private"])
def test_the_claim_repeats_where_the_settings_come_from(tmp_path: Path, said: str):
    run = train(study(privacy__tuned_on=said), out=tmp_path, people=people())
    claim = plain(run.folder.claim)
    told = [words for words in claim["assumptions"] if words.startswith("The settings")]
    assert len(told) == (said in ("public", "charged"))
    assert any("uncharged trials" in words for words in claim["not_evidenced"]) == (
        said == "private"
    )
    # It is the author's word and no evidence.
    assert any("settings were chosen" in words for words in claim["not_evidenced"])


def test_a_mistake_in_the_network_costs_nothing(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 30.0, 1e-3)
    section = LedgerSection(url=url, budget="town")
    wrong = {"model__kind": "tests.training.test_train:Mixing", "model__options": {}}
    for changes, number in ((wrong, "SQ-401"), ({"model__options": {"hiden": 4}}, "SQ-253")):
        with pytest.raises(UsageError, match=number):
            train(study(ledger=section, **changes), out=tmp_path, people=people())
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent == 0.0


def test_a_layer_that_mixes_people_is_refused(tmp_path: Path):
    asked = study(model__kind="tests.training.test_train:Mixing", model__options={})
    with pytest.raises(UsageError, match=r"SQ-401.*norm.*BatchNorm1d.*GroupNorm"):
        train(asked, out=tmp_path, people=people())


class Mixing(nn.Module):
    """A user's module with BatchNorm."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.BatchNorm1d(shape.features)
        self.head = nn.Linear(shape.features, shape.outputs)

    def forward(self, x, mask, categorical=None):
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


def test_a_users_own_module_trains(tmp_path: Path):
    asked = study(model__module="tests.training.test_train:Own", model__options={"width": 5})
    run = train(asked, out=tmp_path, people=people())
    assert set(load_file(run.folder.weights)) == {"a.weight", "a.bias", "b.weight", "b.bias"}


class Own(nn.Module):
    """A user's module."""

    def __init__(self, shape, *, width: int = 3):
        super().__init__()
        self.a = nn.Linear(shape.features, width)
        self.b = nn.Linear(width, shape.outputs)

    def forward(self, x, mask, categorical=None):
        return self.b(torch.tanh(self.a(x)))


class Dropping(Own):
    """Draws new masks at every pass."""

    def __init__(self, shape):
        super().__init__(shape)
        self.rnn = nn.GRU(shape.features, 4, num_layers=2, dropout=0.3, batch_first=True)
        self.a, self.drop = nn.Linear(4, 3), nn.Dropout(0.4)

    def forward(self, x, mask, categorical=None):
        return self.b(self.drop(torch.tanh(self.a(self.rnn(x)[0]))))


def test_dropout_of_a_users_module_trains(tmp_path: Path):
    asked = study(model__module="tests.training.test_train:Dropping", model__options={})
    assert train(asked, out=tmp_path, people=people()).folder.weights.exists()


class WrongShape(Own):
    """One answer a window, where one a step is asked for."""

    def forward(self, x, mask, categorical=None):
        return super().forward(x, mask)[:, -1]


class Crashing(Own):
    """Fails at its first pass."""

    def forward(self, x, mask, categorical=None):
        return self.a(self.b(x))


class Keeping(Own):
    """Keeps a record in a weight that no step moves, where no version counter sees it."""

    def __init__(self, shape):
        super().__init__(shape)
        self.kept = nn.Parameter(torch.zeros(shape.features), requires_grad=False)

    def forward(self, x, mask, categorical=None):
        self.kept.data.copy_(x.detach()[0, 0] * 7.0 + 1.0)
        return super().forward(x, mask)


class Waiting(Keeping):
    """The same, once it has seen people rather than zeros."""

    def forward(self, x, mask, categorical=None):
        return super().forward(x, mask) if x.any() else Own.forward(self, x, mask)


@pytest.mark.parametrize(
    ("name", "code"), [("WrongShape", 254), ("Crashing", 254), ("Keeping", 406)]
)
def test_a_network_that_cannot_run_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, code: int
):
    asked = study(model__module=f"tests.training.test_train:{name}", model__options={})
    with pytest.raises(UsageError, match=f"^SQ-{code} "):
        train(asked, out=tmp_path, people=people())
    assert not list(tmp_path.iterdir())


def test_a_network_that_keeps_records_is_never_released(tmp_path: Path):
    asked = study(model__module="tests.training.test_train:Waiting", model__options={})
    with pytest.raises(UsageError, match=r"^SQ-406 'kept'"):
        train(asked, out=tmp_path, people=people())
    assert not list(tmp_path.rglob("model.safetensors"))


def test_a_planted_fault_in_clipping_stops_the_run_before_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    honest = loop_module.clipped_sum

    def doubled(*arguments, **options):
        found = honest(*arguments, **options)
        return type(found)(
            sum={name: 2 * value for name, value in found.sum.items()},
            norms=found.norms,
            zero=found.zero,
            nonfinite=found.nonfinite,
        )

    monkeypatch.setattr(loop_module, "clipped_sum", doubled)
    with pytest.raises(SequesterError, match=r"SQ-240.*more than the clipping bound"):
        train(study(), out=tmp_path, people=people())


def test_a_loader_of_fixed_lots_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "sequester.sampling.PoissonSampler.draw", lambda self, step: np.arange(self.people)
    )
    with pytest.raises(SequesterError, match=r"SQ-240.*Poisson"):
        train(study(training__sampling_rate=0.1), out=tmp_path, people=people(300))


def test_nothing_private_leaves_the_private_folder(tmp_path: Path, capsys):
    run = train(study(), out=tmp_path, people=people())
    public = [run.folder.claim, run.folder.facts, run.folder.study]
    text = "".join(file.read_text() for file in public)
    text += run.folder.weights.read_bytes().decode("latin-1")
    assert "person-0" not in text
    facts = plain(run.folder.facts)
    said = json.dumps(facts)
    for word in ("loss", "norms"):
        assert word not in said
    # The clip fraction that is told is the noisy one.
    lines = (run.folder.private / "metrics.jsonl").read_text().splitlines()
    exact = {json.loads(line)["clipped"] for line in lines}
    assert not set(clipped_curves(run)[0]["y"]) & exact - {0.0, 1.0}
    assert (run.folder.private / "metrics.jsonl").exists()
    shown = capsys.readouterr()
    assert "person-0" not in shown.out + shown.err


def test_claims_cannot_be_made_by_hand_or_softened(tmp_path: Path):
    run = train(study(), out=tmp_path, people=people())
    assert run.claim is not None
    with pytest.raises(UsageError, match="SQ-241"):
        Claim(run.claim.fields)
    assert Claim.read(run.folder.claim).epsilon == run.claim.epsilon
    fields = plain(run.folder.claim)
    fields["epsilon"] = 0.5
    run.folder.claim.write_text(json.dumps(fields))
    with pytest.raises(VerificationError, match="SQ-242"):
        Claim.read(run.folder.claim)


def test_a_privatised_evaluation_is_near_the_true_figure_and_says_so(tmp_path: Path):
    held = study().data.holdout
    private = type(held)(column="part", value="test", protection="privatised", epsilon=5.0)
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 90.0, 1e-3)
        ledger.create_budget("judges", "tiny-held-out", 9.0, 1e-3)
    section = LedgerSection(url=url, budget="town", holdout_budget="judges")
    shared = {
        "privacy__epsilon": 50.0,
        "training__steps": 40,
        "training__sampling_rate": 1.0,
    }
    truth = train(study(**shared), out=tmp_path / "a", people=people(1500))
    asked = study(**shared, data__holdout=private, ledger=section)
    noisy = train(asked, out=tmp_path / "b", people=people(1500))
    assert truth.utility is not None
    assert noisy.utility is not None
    assert noisy.utility.protection == "privatised"
    assert noisy.utility.people is None
    assert abs(noisy.utility.value - truth.utility.value) < 0.08
    assert noisy.claim is not None
    assert any("Held-out people were used" in words for words in noisy.claim.fields["assumptions"])


@pytest.mark.parametrize("ending", ["", "/"])
def test_what_leaves_names_the_source_without_its_folders(tmp_path: Path, ending: str):
    asked = study(data__source=f"/home/somebody/town.parts{ending}", training__steps=2)
    run = train(asked, out=tmp_path, people=people())
    for file in (run.folder.claim, run.folder.facts, write_card(run.folder.path)):
        text = file.read_text()
        assert "somebody" not in text
        assert "town.parts" in text
