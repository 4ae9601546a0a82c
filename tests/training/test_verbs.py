"""`train`, `doctor` and `demo` as somebody types them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as csv
import pytest
from click.testing import CliRunner

from sequester.cli.bars import Bars
from sequester.cli.display import Display
from sequester.cli.live import LiveLine
from sequester.cli.main import cli
from sequester.cli.options import Output
from sequester.core.errors import LedgerRefusal, UsageError
from sequester.training import Adaptive, Baseline, demos, to_toml
from tests.training.population import study, table


def folder_with_study(tmp_path: Path, **changes: object) -> Path:
    csv.write_csv(table(120), tmp_path / "people.csv")
    made = study(
        data__source="people.csv",
        data__read={"time": {"kind": "step"}},
        **({"privacy__insecure_test_seed": None} | changes),
    )
    file = tmp_path / "study.toml"
    file.write_text(to_toml(made))
    return file


def call(*arguments: object):
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)


def test_train_prints_one_json_object_and_writes_a_card(tmp_path: Path):
    file = folder_with_study(tmp_path)
    done = call("train", file, "--out", tmp_path / "runs", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert {"run", "epsilon", "delta", "unit", "steps", "stopped"} <= set(said)
    assert said["stopped"] == "finished"
    assert Path(said["card"]).stat().st_size < 400_000
    run = Path(said["run"])
    names = {p.name for p in run.iterdir()}
    assert {
        "study.toml",
        "claim.json",
        "facts.json",
        "model.safetensors",
        "card.html",
        "checkpoints",
        "private",
    } <= names
    # The operator's figures are not in a pipe's output, and the card shows none of them.
    assert "loss" not in done.stdout
    again = call("train", file, "--resume", run)
    assert isinstance(again.exception, UsageError)


def test_the_window_unit_and_the_twin_are_warned_about(tmp_path: Path):
    file = folder_with_study(tmp_path, unit=type(study().unit)(kind="window"), data__window=2)
    assert "unit is a window" in call("train", file, "--out", tmp_path / "runs").stderr
    file = folder_with_study(tmp_path, privacy__mode="none")
    done = call("train", file, "--out", tmp_path / "runs")
    assert "nobody" in done.stderr
    assert "NOT PRIVATE" in done.stdout


UNPROTECTED = {
    "test seed": {"privacy__insecure_test_seed": 3},
    # Every site takes part: of coins for two of them in two rounds, all may fail.
    "no noise": {"privacy__mode": "none", "training__sampling_rate": 1.0},
}
SITES = {
    "federated": {"placement": "cross-silo"},
    "training__average": 0.0,
    "training__learning_rate": 0.01,
    "training__checkpoint_every": 20,
    "data__group": "town",
}


@pytest.mark.parametrize("verb", ["train", "federate"])
@pytest.mark.parametrize("why", [*UNPROTECTED, "private"])
def test_every_place_that_states_an_epsilon_states_whether_it_protects(
    tmp_path: Path, why: str, verb: str
):
    changes = UNPROTECTED.get(why, {}) | (SITES if verb == "federate" else {})
    file = folder_with_study(tmp_path, training__steps=2, data__window=3, **changes)
    private = why == "private"
    shown = call(verb, file, "--out", tmp_path / "runs")
    assert shown.exit_code == 0, shown.output
    run = next((tmp_path / "runs").iterdir())
    texts = [shown.stdout, call("explain", run).stdout]
    objects = [
        json.loads(call(verb, file, "--out", tmp_path / "other", "--json").stdout),
        json.loads(call("explain", run, "--json").stdout),
    ]
    for said in objects:
        assert "epsilon" in said
        assert said["private"] is private
        assert said["status"] == ("private" if private else "NOT PRIVATE")
    assert objects[1]["words"][0].startswith("NOT PRIVATE") == (not private)
    for text in texts:
        assert text.startswith("NOT PRIVATE") == (not private), text
        assert private or text.count("ε =") + text.count("epsilon =") <= 1
    facts = json.loads((run / "facts.json").read_text())
    assert facts["status"] == json.loads((run / "claim.json").read_text())["status"]
    assert facts["status"] == objects[0]["status"]
    spent = [c["title"] for c in facts["curves"] if "ε" in c["title"]]
    assert all(("were the noise secret" in title) == (not private) for title in spent)


def test_the_result_in_json_holds_what_the_text_holds(tmp_path: Path):
    file = folder_with_study(
        tmp_path,
        unit=type(study().unit)(kind="window"),
        data__window=2,
        data__stride=2,
        data__max_per_person=2,
        training__steps=2,
    )
    said = json.loads(call("train", file, "--out", tmp_path / "runs", "--json").stdout)
    assert said["unit"] == "window"
    assert said["person"]["epsilon"] > said["epsilon"]
    assert [figure["metric"] for figure in said["figures"]]
    assert {"value", "baseline", "protection", "people"} <= set(said["figures"][0])


def test_refusals_keep_their_exit_codes(tmp_path: Path):
    done = call("train", tmp_path / "none.toml")
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2
    assert call("ledger", "init", tmp_path / "b.db").exit_code == 0
    budget = ["--dataset", "d", "--epsilon", "0.01", "--delta", "1e-3"]
    assert call("ledger", "budget", tmp_path / "b.db", "town", *budget).exit_code == 0
    file = folder_with_study(tmp_path)
    url = f"sqlite:///{tmp_path / 'b.db'}"
    file.write_text(file.read_text() + f'\n[ledger]\nurl = "{url}"\nbudget = "town"\n')
    done = call("train", file, "--out", tmp_path / "runs")
    assert isinstance(done.exception, LedgerRefusal)
    assert not (tmp_path / "runs").exists() or not list(
        (tmp_path / "runs").glob("*/model.safetensors")
    )


def test_doctor_gives_checks_and_fails_on_critical_ones(tmp_path: Path):
    done = call("doctor", folder_with_study(tmp_path), "--json")
    assert done.exit_code == 0
    checks = json.loads(done.stdout)["checks"]
    assert all({"name", "severity", "passed", "detail"} == set(check) for check in checks)
    assert call("doctor", folder_with_study(tmp_path, privacy__mode="none")).exit_code == 4


def test_the_shell_sees_the_exit_code(tmp_path: Path):
    file = folder_with_study(tmp_path, privacy__mode="none")
    for arguments, code in ((["doctor", str(file)], 4), (["--help"], 0), (["doctor"], 2)):
        done = subprocess.run([sys.executable, "-m", "sequester", *arguments], capture_output=True)
        assert done.returncode == code, done.stderr[-500:]


# Counts in a file: what a network keeps in memory is refused.
STOPPING = """
import os
from torch import nn


class Net(nn.Linear):
    def __init__(self, shape):
        super().__init__(shape.features, 1)

    def forward(self, x, mask, categorical=None):
        if "STOP" in os.environ:
            with open(os.environ["TAKEN"], "ab") as taken:
                taken.write(b".")
                stop = taken.tell() == int(os.environ["AT"])
            if stop:
                os.kill(os.getpid(), int(os.environ["STOP"]))
        return super().forward(x)
"""


@pytest.mark.parametrize(
    ("verb", "number", "seed"),
    [
        ("train", signal.SIGINT, None),
        ("train", signal.SIGINT, 3),
        ("federate", signal.SIGTERM, None),
        ("federate", signal.SIGTERM, 3),
    ],
)
def test_an_interrupted_run_exits_as_shells_expect_and_says_how_to_go_on(
    tmp_path: Path, verb: str, number: int, seed: int | None
):
    file = folder_with_study(
        tmp_path,
        model__module=f"own_stop_{verb}:Net",
        model__options={},
        privacy__insecure_test_seed=seed,
        **(SITES if verb == "federate" else {}),
    )
    (tmp_path / f"own_stop_{verb}.py").write_text(STOPPING)
    stopped = subprocess.run(
        [sys.executable, "-m", "sequester", verb, str(file), "--out", str(tmp_path / "runs")],
        env=os.environ | {"STOP": str(int(number)), "AT": "16", "TAKEN": str(tmp_path / "taken")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert stopped.returncode == 128 + number, stopped.stderr[-2000:]
    assert not list(tmp_path.glob("runs/*/claim.json"))
    assert stopped.stdout.startswith("NOT PRIVATE") == (seed is not None)
    again = stopped.stdout.splitlines()[-1].split()
    assert again[:3] == ["sequester", verb, str(file)]
    done = call(*again[1:], "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["stopped"] == "finished"


@pytest.mark.parametrize("name", ["randhie", "mobility"])
def test_the_demo_does_the_whole_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    import msgspec

    make = demos.randhie if name == "randhie" else demos.town
    short = make()
    training = msgspec.structs.replace(short.training, steps=2, sampling_rate=0.05)
    short = msgspec.structs.replace(short, training=training)
    monkeypatch.setattr(demos, "randhie" if name == "randhie" else "town", lambda: short)
    if name == "mobility":
        from sequester.sequences import mobility

        honest = mobility.simulate
        monkeypatch.setattr(mobility, "simulate", lambda: honest(150, 2))
    done = call("demo", name, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert {"run", "epsilon", "delta", "unit", "metric", "value", "baseline", "card"} <= set(said)
    assert said["unit"] == "person"
    figures = said["figures"]
    assert said["baseline"] == figures[0]["baseline"]
    if name == "randhie":
        assert [(f["metric"], f["name"]) for f in figures] == [
            ("auc", "persistence"),
            ("accuracy", "persistence"),
        ]
        # Over everybody it is the known 0.727; these are the people held out.
        assert 0.70 < figures[1]["baseline"] < 0.76
    else:
        assert said["baseline_name"] == "the person's own Markov chain"
    assert ("simulated" in done.stderr) == (name == "mobility")


@pytest.mark.timeout(250)
def test_the_randhie_demo_meets_its_figure():
    """Person-level ε = 1 on real people, 0.78 on those held out."""
    import tempfile

    from sequester.training import train

    with tempfile.TemporaryDirectory() as out:
        run = train(demos.randhie(), out=Path(out))
    assert run.epsilon <= 1.0
    assert run.delta == 1e-5
    assert run.claim is not None
    assert run.claim.private
    assert run.utility is not None
    assert run.utility.value >= 0.78


NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, shape, *, width=3):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(shape.features, width), NORM, nn.Linear(width, 1))

    def forward(self, x, mask, categorical=None):
        return self.head(x)
"""


def test_a_module_beside_the_study_is_found_and_its_faults_name_the_line(tmp_path: Path):
    file = folder_with_study(tmp_path, model__module="own_net:Net", model__options={"width": 4})
    (tmp_path / "own_net.py").write_text(NET.replace("NORM", "nn.LayerNorm(width)"))
    done = call("train", file, "--out", tmp_path / "runs", "--json")
    assert done.exit_code == 0, done.output
    quiet = call("doctor", file, "--quiet")
    assert quiet.exit_code == 0
    assert quiet.output
    everything = call("doctor", file).stdout.splitlines()
    assert quiet.stdout.splitlines() == [line for line in everything if line[0] != "✓"]
    file = folder_with_study(tmp_path, model__module="own_bad:Net", model__options={"width": 4})
    (tmp_path / "own_bad.py").write_text(NET.replace("NORM", "nn.BatchNorm1d(width)"))
    lines = file.read_text().splitlines()
    done = call("train", file, "--out", tmp_path / "runs")
    assert isinstance(done.exception, UsageError)
    number = lines.index('module = "own_bad:Net"') + 1
    assert str(done.exception).endswith(f"(study.toml, line {number})"), done.exception
    assert call("doctor", file).exit_code == 4


@pytest.mark.parametrize(
    ("field", "value", "code", "line"),
    [
        ("privacy__noise_multiplier", 0.05, 270, "noise_multiplier = 0.05"),
        ("privacy__adaptive", Adaptive(count_noise=0.01), 237, "count_noise = 0.01"),
        ("data__clock", True, 269, "clock = true"),
        ("data__baseline", Baseline(feature="none", at_least=1), 268, 'feature = "none"'),
        ("model__options", {"hiden": 3}, 253, "hiden = 3"),
    ],
)
def test_what_is_refused_after_reading_names_its_line_and_charges_nothing(
    tmp_path: Path, field: str, value: object, code: int, line: str
):
    file = folder_with_study(tmp_path, **{field: value})
    lines = file.read_text().splitlines()
    done = call("train", file, "--out", tmp_path / "runs")
    assert isinstance(done.exception, UsageError), done.output
    assert done.exception.code == code
    table = {253: "[model.options]"}.get(code, line)
    assert f"(study.toml, line {lines.index(table) + 1})" in str(done.exception)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_what_moves_is_for_a_terminal_alone_and_ends_with_its_verb(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, quiet: bool
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    output = Output(as_json=False, quiet=quiet)
    shown: list[Display] = [Bars(output), LiveLine(output, study())]
    for display in shown:
        assert (display.moving is not None) == (terminal and not quiet)
        seen: list[str] = []
        if display.moving is not None:
            monkeypatch.setattr(display.moving, "start", lambda seen=seen: seen.append("start"))
            monkeypatch.setattr(display.moving, "stop", lambda seen=seen: seen.append("stop"))
        with pytest.raises(KeyError), display:
            raise KeyError
        assert seen == (["start", "stop"] if terminal and not quiet else [])
