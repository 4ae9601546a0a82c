"""No command, not even one that fails, writes down who its people are or what they did.

All verbs run on a thousand canary people. Scanned are standard output and error, log records and
warnings, the ledger's files, the run folders outside `private/`, everything that is deleted or
renamed in the temporary folder and what is left there.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import click
import pytest

from sequester.cli import demo as demo_module
from sequester.cli import main as main_module
from sequester.cli.main import cli, main
from sequester.cli.options import Output
from sequester.core.rng import key_from_test_seed
from sequester.federated import run as federated_run
from sequester.training import study_file
from sequester.training.monitor import Monitor
from tests.house.leaks.canaries import ID, WORD, identifier, marks_in, write_table
from tests.house.leaks.studies import write_study

QUICK = ["--canaries", "20", "--steps", "2", "--references", "2", "--people", "20"]


class Watchman:
    """Runs commands in this process and reads all they write."""

    def __init__(self, home: Path, capture: pytest.CaptureFixture[bytes]) -> None:
        self.home, self.capture = home, capture
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        self.verbs: set[str] = set()
        self.found: list[str] = []
        self.watching = True
        self.files = 0
        sys.addaudithook(self._event)

    def run(self, *words: object, code: int | None = 0) -> bytes:
        """Run `sequester words…`, scan everything and expect an exit code.

        None is any but 1, which would be a crash: some mistakes are none, such as an empty cell.
        """
        argv = [str(word) for word in words]
        self.verbs.add(_verb(cli, argv))
        ended = _exit_code(argv)
        out, err = self.capture.readouterr()
        self.scan(" ".join(argv), out + err)
        for path in self.home.rglob("*"):
            if path.is_file() and not _may_hold_people(path.relative_to(self.home)):
                self.files += 1
                self.scan(f"{argv[0]}: {path.relative_to(self.home)}", path.read_bytes())
        good = ended != 1 if code is None else ended == code
        assert good, f"{argv} → {ended}\n{err[-2000:].decode()}"
        return out

    def scan(self, where: str, data: bytes) -> None:
        self.found += [f"{where}: {mark}" for mark in marks_in(data)]

    def _event(self, event: str, arguments: tuple) -> None:
        """What is about to vanish is read before it does."""
        if not self.watching or event not in ("os.remove", "os.rename"):
            return
        path = Path(os.fsdecode(arguments[0]))
        inside = path.is_absolute() and path.is_relative_to(self.temporary)
        if inside and path.is_file():
            self.scan(f"{event} {path.name}", path.read_bytes())


def _verb(command: click.Command, argv: list[str]) -> str:
    """The whole name of what is run: `ledger show`; what names no command of a group is a run."""
    if not isinstance(command, click.Group):
        return ""
    name = argv[0] if argv[0] in command.list_commands(click.Context(command)) else "run"
    return f"{name} {_verb(command.get_command(click.Context(command), name), argv[1:])}".strip()


def _verbs(command: click.Command) -> set[str]:
    """The whole names of all there are."""
    if not isinstance(command, click.Group):
        return {""}
    context = click.Context(command)
    return {
        f"{name} {rest}".strip()
        for name in command.list_commands(context)
        for rest in _verbs(command.get_command(context, name))
    }


def _exit_code(argv: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sequester", *argv])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def _may_hold_people(path: Path) -> bool:
    """The sources themselves, and what DESIGN section 4 calls private."""
    return path.suffix == ".csv" or {"private", "checkpoints"} & set(path.parts) != set()


@pytest.fixture
def watchman(tmp_path, monkeypatch, capfdbinary, caplog):
    """A home with the canaries' table and a ledger, and every channel watched."""
    caplog.set_level(logging.DEBUG)
    watch = Watchman(tmp_path, capfdbinary)
    monkeypatch.setattr(tempfile, "tempdir", str(watch.temporary))
    monkeypatch.setenv("TMPDIR", str(watch.temporary))
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "people.csv")
    yield watch
    watch.watching = False
    watch.scan("log records", "\n".join(r.getMessage() for r in caplog.records).encode())


def run_of(out: bytes) -> str:
    return json.loads(out)["run"]


def test_no_command_tells_who_its_people_are(watchman, monkeypatch):
    home, run = watchman.home, watchman.run
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _sound_commands(home, run, monkeypatch)
        _failing_commands(home, run)
    watchman.scan("warnings", "\n".join(str(w.message) for w in warned).encode())
    assert {"inspect", "ledger show", "audit run"} <= _verbs(cli)
    assert _verbs(cli) - watchman.verbs == set()
    assert watchman.files > 100
    assert not watchman.found, "\n".join(dict.fromkeys(watchman.found))


def _sound_commands(home, run, monkeypatch):
    ledger = home / "budget.db"
    run("ledger", "init", ledger)
    run("ledger", "budget", ledger, "clinic", "--dataset", "d", "--epsilon", 1e6, "--delta", 1e-4)
    run("inspect", home / "people.csv", "--point", "site", "--out", home / "look.html")
    run("inspect", home / "people.csv", "--label", "label", "--out", home / "look.svg")
    (home / "schema.toml").write_text(
        'numeric = ["reading", "second", "label"]\ncategorical = ["site", "kind"]\n'
        '[time]\nkind = "step"\n'
    )
    run("inspect", home / "people.csv", "--schema", home / "schema.toml", "--memory", 256)
    study = write_study(home / "central.toml")
    run("doctor", study)
    done = run_of(run("train", study, "--out", home / "runs", "--json"))
    # The same audit each time: by design one correct one in a hundred raises an alarm.
    monkeypatch.setattr("sequester.audit.run.fresh_key", lambda: key_from_test_seed(0))
    run("audit", done, *QUICK)
    run("report", done)
    run("explain", Path(done) / "claim.json")
    # Whose noise is their own take part openly: another adjacency, and so another budget.
    run(
        "ledger",
        "budget",
        ledger,
        "local",
        "--dataset",
        "e",
        "--epsilon",
        1e6,
        "--delta",
        1e-4,
        "--adjacency",
        "zero-out",
    )
    for placement, rate, budget in (
        ("cross-device", 0.1, "clinic"),
        ("cross-silo", 0.1, "clinic"),
        ("local", 1.0, "local"),
    ):
        rest = f'[federated]\nplacement = "{placement}"\n'
        study = write_study(home / f"{placement}.toml", rest=rest, rate=rate, budget=budget)
        run_of(run("federate", study, "--out", home / "runs", "--json"))
    if main_module._exists("flower"):  # without its extra it says so
        run("flower", "new", home / "cross-silo.toml", home / "app", code=None)
    run("flower", "key", home / "node")
    for words in (
        ("epsilon", "--noise-multiplier", 1, "--sampling-rate", 0.1, "--steps", 9, "--delta", 1e-5),
        ("calibrate", "--epsilon", 1, "--sampling-rate", 0.1, "--steps", 9, "--delta", 1e-5),
        ("plan", "--members", 100, "--length", 1000),
        ("audit", "plan", "--epsilon", 2),
        ("ledger", "show", ledger),
        ("ledger", "verify", ledger),
        ("ledger", "export", ledger, "--format", "csv"),
        ("ledger", "checkpoint", ledger, "--out", home / "checkpoint.json"),
    ):
        run(*words)
    _granted(home, run, Path(done))
    _interrupted(home, run, monkeypatch)
    small = study_file.read_study(home / "central.toml")
    monkeypatch.setattr(demo_module.demos, "randhie", lambda: small)
    monkeypatch.setattr(demo_module.demos, "charged", lambda study, out: study)
    run("demo", "--out", home / "runs")


def _granted(home, run, done):
    """A holder's key and policy, a raised ceiling, and a charge that had been forgotten."""
    public = run("ledger", "key", home / "holder.key").decode().split()[-1]
    (home / "policy.toml").write_text(
        f'units = ["person"]\n[[granters]]\nname = "holder"\npublic_key = "{public}"\n'
    )
    held = home / "held.db"
    run("ledger", "init", held, "--policy", home / "policy.toml")
    run("ledger", "budget", held, "town", "--dataset", "d", "--epsilon", 3, "--delta", 1e-6)
    run("ledger", "policy", held)
    who = ("--who", "holder", "--why", "approved", "--key", home / "holder.key")
    run("ledger", "grant", held, "town", "--epsilon", 4, *who)
    rows = json.loads(run("ledger", "export", home / "budget.db", "--format", "json"))["rows"]
    first = next(row["seq"] for row in rows if row["kind"] == "reserve")
    forgotten = ("--event", done / "claim.json", "--why", "a lost run", "--key", "once")
    run("ledger", "correct", home / "budget.db", first, *forgotten)


def _interrupted(home, run, monkeypatch):
    """Runs that a signal stops, and that go on."""

    def stopping(honest):
        def stop(*words):
            os.kill(os.getpid(), signal.SIGINT)
            return honest(*words)

        return stop

    for verb, study, owner, name in (
        ("train", home / "central.toml", Monitor, "add"),
        ("federate", home / "cross-device.toml", federated_run, "_note"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stopping(getattr(owner, name)))
            out = run(verb, study, "--out", home / "runs", "--json", code=130)
        run(verb, study, "--resume", run_of(out))


def _failing_commands(home, run):
    """Each mistake is about a cell, a column or a person, and must name none of them."""
    spoilt = {
        "words": f"{WORD}17",
        "wide": "91736.05",
        "torn": f'"{WORD}17',
        "nothing": "",
    }
    for name, cell in spoilt.items():
        write_table(home / f"{name}.csv", spoilt=cell)
        run("inspect", home / f"{name}.csv", code=None)
        study = write_study(home / f"{name}.toml", source=home / f"{name}.csv")
        run("train", study, "--out", home / "runs", code=None)
    header = "person,time,site,reading,second,kind,label\n"
    (home / "cut.csv").write_text(header + f"{identifier(1)},1,s1\n" * 2)
    run("inspect", home / "cut.csv", code=None)
    run("inspect", home / "people.csv", "--person", "reading", "--time", "person", code=None)
    for name, changes in {
        "label": {"data": 'label = "reading"'},
        "identifier": {"data": 'label = "person"'},
        "column": {"features": '[data.categories.person]\nvalues = ["one"]'},
        "unknown": {"features": '[data.categories.kind]\nvalues = ["a"]'},
        "estimated": {"features": "[data.categories.person]\nestimate = true"},
        "broke": {"budget": "nobody's"},
        "held": {"data": 'holdout = {column = "person", value = "x"}'},
    }.items():
        study = write_study(home / f"bad-{name}.toml", **changes)
        run("train", study, "--out", home / "runs", code=None)
        run("doctor", study, code=None)
    _changed_data(home, run)


def _changed_data(home, run):
    """A finished run whose data are not the claim's any more."""
    first = next(path for path in (home / "runs").iterdir() if path.name.startswith("central"))
    write_table(home / "people.csv", spoilt="0.5")
    run("audit", first, *QUICK, code=2)
    run("train", home / "central.toml", "--resume", first, code=2)
    run("report", home / "runs", code=None)


def test_a_crash_does_not_quote_the_record_it_fell_over(watchman, monkeypatch):
    def fall(*_, **__):
        raise ValueError(f"could not convert string to float: '{WORD}'")

    study = write_study(watchman.home / "central.toml", ledger="missing.db")
    monkeypatch.setattr("sequester.training.train", fall)
    watchman.run("train", study, code=1)
    assert not watchman.found
    monkeypatch.setenv("SEQUESTER_TRACEBACK", "1")
    with pytest.raises(ValueError, match=WORD):
        watchman.run("train", study, code=1)


def test_what_is_computed_on_people_is_said_on_a_terminal_alone(capsys, monkeypatch):
    output = Output(as_json=False, quiet=False)
    output.confide("half of them are clipped")
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    output.confide("half of them are clipped")
    assert "half" in capsys.readouterr().err


def test_the_scan_itself_finds_what_it_looks_for(tmp_path):
    table = write_table(tmp_path / "people.csv").read_bytes()
    assert {mark.partition(":")[0] for mark in marks_in(table)} == {"an identifier", "a value"}
    import numpy as np

    numbers = np.loadtxt(tmp_path / "people.csv", delimiter=",", skiprows=1, usecols=(3, 4))
    assert marks_in(numbers.astype("<f8").tobytes())
    assert marks_in(repr(numbers.astype(np.float32).tolist()).encode())
    assert marks_in(str(float(numbers[0, 0])).encode())
    assert marks_in(identifier(3).upper().encode())
    assert not marks_in(b"0.8173605 and 7 people")
    assert identifier(0).startswith(ID)
