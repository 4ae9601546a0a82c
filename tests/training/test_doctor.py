"""Each check of the doctor passes on a sound study and fails on one that falls into its pitfall."""

from pathlib import Path

import pytest
from torch import nn

from sequester.gradients import native
from sequester.training import read_study
from sequester.training.doctor import Check, examine
from sequester.training.planning import make_plan

SOUND = """\
name = "visits"

[data]
source = "visits.csv"
population = 4000
task = "label"
window = 12
stride = 12
simulated = true

[data.features.pain]
lower = 0
upper = 10

[data.features.sleep]
lower = 0
upper = 14

[data.categories.ward]
values = ["north", "south"]

[model]
kind = "gru"

[privacy]
epsilon = 1.0
delta = 1e-6
tuned_on = "public"

[training]
steps = 30
sampling_rate = 0.5

[ledger]
url = "sqlite:///budget.db"
budget = "visits"
"""

WORDS = ", ".join(f'"ward {k}"' for k in range(500))
PAIN_AND_SLEEP = "upper = 10\n\n[data.features.sleep]\nlower = 0\nupper = 14"
ZERO_TO_ONE = "upper = 1\n\n[data.features.sleep]\nlower = 0\nupper = 1"
WINDOWS = {"[model]": '[unit]\nkind = "window"\n\n[model]'}
LEDGER = SOUND[SOUND.index("[ledger]") :]
# (check, severity, what is written instead of what, words of the advice)
PITFALLS = [
    ("unit", "critical", WINDOWS, "max_per_person"),
    ("unit", "warning", WINDOWS | {"stride = 12": "stride = 12\nmax_per_person = 3"}, "3 of them"),
    ("privacy", "critical", {"epsilon = 1.0": 'epsilon = 1.0\nmode = "none"'}, "nobody"),
    ("delta", "warning", {"delta = 1e-6": "delta = 1.2e-4"}, "use 1e-05 or less"),
    ("population", "warning", {"population = 4000": "population = 150"}, "very few parameters"),
    ("denominator", "warning", {"population = 4000": "population = 4731"}, "looks counted"),
    ("denominator", "critical", WINDOWS, "not declared"),
    ("lot", "warning", {"sampling_rate = 0.5": "sampling_rate = 0.01"}, "larger lots"),
    ("sampling", "warning", {"sampling_rate = 0.5": "sampling_rate = 0.0135278"}, "batch size"),
    ("sampling", "warning", {"sampling_rate = 0.5": "sampling_rate = 0.02"}, "most people never"),
    ("normalisation", "warning", {"upper = 10": "upper = 9.87654"}, "estimate = 'range'"),
    ("normalisation", "warning", {"upper = 10": "upper = 10\ncentre = 3.14159"}, "'mean'"),
    ("normalisation", "warning", {PAIN_AND_SLEEP: ZERO_TO_ONE}, "scaled before"),
    ("normalisation", "warning", {'"north", "south"': WORDS}, "gives them away"),
    ("tuning", "note", {'tuned_on = "public"': ""}, "charge every trial"),
    ("tuning", "warning", {'"public"': '"charged"', LEDGER: ""}, "to no ledger"),
    ("tuning", "critical", {'"public"': '"private"'}, "no ε covers it"),
    ("metrics", "warning", {"simulated = true": ""}, "without protection"),
    ("ledger", "warning", {LEDGER: ""}, "several runs"),
    ("noise-source", "critical", {"delta = 1e-6": "delta = 1e-6\ninsecure_test_seed = 1"}, "seed"),
    (
        "layers",
        "critical",
        {'kind = "gru"': 'module = "tests.training.test_doctor:Mixing"'},
        "GroupNorm",
    ),
    ("layers", "critical", {'"gru"': '"gruu"'}, "must be one of"),
    (
        "plan",
        "critical",
        {"epsilon = 1.0": "epsilon = 0.01\nnoise_multiplier = 0.5"},
        "not one step",
    ),
    ("epsilon", "warning", {"epsilon = 1.0": "epsilon = 30.0"}, "says little"),
    ("steps", "note", {"epsilon = 1.0": "epsilon = 1.0\nnoise_multiplier = 8.0"}, "fit under"),
    ("signal", "note", {"population = 4000": "population = 310"}, "largest signal"),
]


class Mixing(nn.Module):
    """A user's module with BatchNorm."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.BatchNorm1d(shape.features)
        self.head = nn.Linear(shape.features, shape.outputs)

    def forward(self, x, mask, categorical=None):
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


def checks(tmp_path: Path, text: str) -> dict[str, Check]:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return {check.name: check for check in examine(read_study(file))}


def test_a_sound_study_passes_every_check(tmp_path: Path):
    found = checks(tmp_path, SOUND)
    kernels = found.pop("kernels")  # about the installation, not the study
    assert kernels.passed == (native.describe() == "compiled")
    assert [check.detail for check in found.values() if not check.passed] == []
    # Those of a plan that cannot be made, or is cut, are only there when they fail.
    assert {name for name, *_ in PITFALLS} - found.keys() == {"plan", "steps"}


@pytest.mark.parametrize(
    ("name", "severity", "changes", "words"), PITFALLS, ids=[f"{p[0]}-{p[3]}" for p in PITFALLS]
)
def test_a_study_in_a_pitfall_fails_its_check(
    tmp_path: Path, name: str, severity: str, changes: dict[str, str], words: str
):
    text = SOUND
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    check = checks(tmp_path, text)[name]
    assert not check.passed
    assert check.severity == severity
    assert words in check.detail, check.detail


def test_private_estimates_are_no_pitfall(tmp_path: Path):
    text = SOUND.replace("upper = 10", 'upper = 10.12345\nestimate = "range"')
    text = text.replace('values = ["north", "south"]', "estimate = true")
    found = checks(tmp_path, text)
    assert found["normalisation"].passed
    assert "charged: pain, ward" in found["normalisation"].detail
    assert found["layers"].passed


def test_a_privatised_hold_out_is_no_leak(tmp_path: Path):
    text = SOUND.replace("simulated = true", "").replace(
        "[model]", '[data.holdout]\nprotection = "privatised"\n\n[model]'
    )
    text += 'holdout_budget = "judges"\n'
    assert checks(tmp_path, text)["metrics"].passed


def test_it_says_which_kernels_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEQUESTER_NO_NATIVE", "1")
    check = checks(tmp_path, SOUND)["kernels"]
    assert (check.severity, check.passed) == ("note", False)
    assert "plain PyTorch runs" in check.detail


def test_lots_are_counted_in_the_unit_that_is_sampled(tmp_path: Path):
    changes = WINDOWS | {"stride = 12": "stride = 12\nmax_per_person = 3"}
    text = SOUND.replace("sampling_rate = 0.5", "sampling_rate = 0.01")
    for old, new in changes.items():
        text = text.replace(old, new)
    (tmp_path / "study.toml").write_text(text)
    asked = read_study(tmp_path / "study.toml")
    checks = {check.name: check for check in examine(asked)}
    assert checks["lot"].passed
    assert checks["lot"].detail.startswith("120 windows ")
    assert checks["denominator"].detail.endswith("windows, 12000 · 0.01")
    assert make_plan(asked).plan.expected_lot == pytest.approx(120.0)
