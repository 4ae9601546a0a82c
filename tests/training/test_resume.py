"""Interrupted, killed and resumed runs: the same bits, the same charge, no noise twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sequester.core.errors import LedgerRefusal, UsageError
from sequester.core.rng import Keystream
from sequester.federated.run import resume as federated_resume
from sequester.ledger import Ledger
from sequester.training import Category, Feature, LedgerSection, read_study, resume, train
from sequester.training.checkpoint import Progress
from sequester.training.monitor import Measure
from sequester.training.resumption import check_study
from sequester.training.session import Session
from tests.training.population import people, study


def interrupt_at(step: int, number: int = signal.SIGINT):
    def watch(measured: Measure) -> None:
        if measured.step == step:
            os.kill(os.getpid(), number)

    return watch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("changes", [{}, {"training__optimizer": "sgd", "training__average": 0.0}])
def test_a_resumed_run_gives_the_same_bits(tmp_path: Path, number: int, changes: dict):
    whole = train(study(**changes), out=tmp_path / "a", people=people())
    part = train(
        study(**changes), out=tmp_path / "b", people=people(), watch=interrupt_at(3, number)
    )
    assert part.stopped == "interrupted"
    assert part.steps == 4
    assert part.claim is None
    assert not part.folder.claim.exists()
    assert not part.folder.weights.exists()
    assert part.epsilon < whole.epsilon
    done = resume(part.folder.path, people=people())
    assert done.stopped == "finished"
    assert done.folder.weights.read_bytes() == whole.folder.weights.read_bytes()
    assert done.epsilon == whole.epsilon
    assert done.claim is not None
    assert whole.claim is not None
    assert done.claim.fields["events"] == whole.claim.fields["events"]


class Crash(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("crash_step", [0, 3, 5, 8, 11])
def test_a_crash_loses_steps_but_never_reuses_noise_or_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_step: int
):
    drawn: list[tuple[str, str, int]] = []
    original = Keystream.pieces

    def remember(self: Keystream, step: int, count: int, **drawn_as: Any) -> Iterator[memoryview]:
        if self.purpose == "noise":
            drawn.append((self.run, self.purpose, step))
        return original(self, step, count, **drawn_as)

    monkeypatch.setattr(Keystream, "pieces", remember)

    def crash(measured: Measure) -> None:
        if measured.step == crash_step:
            raise Crash

    with pytest.raises(Crash):
        train(study(), out=tmp_path, people=people(), watch=crash)
    (folder,) = tmp_path.iterdir()
    done = resume(folder, people=people())
    assert done.steps == 12
    assert len(drawn) == len(set(drawn)) == 12
    assert done.claim is not None
    assert done.claim.fields["events"]["count"] == 12


def test_a_killed_process_resumes(tmp_path: Path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tests.training.population import people, study\n"
        "from sequester.training import train\n"
        "def kill(m):\n"
        "    if m.step == 6: os.kill(os.getpid(), 9)\n"
        "train(study(privacy__insecure_test_seed=None), out=Path(sys.argv[1]), people=people(),"
        " watch=kill)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False)
    assert done.returncode == -9
    (folder,) = tmp_path.iterdir()
    assert int.from_bytes((folder / "checkpoints" / "position").read_bytes(), "little") == 7
    run = resume(folder, people=people())
    assert run.steps == 12
    assert run.claim is not None
    assert run.claim.private


def test_the_key_is_destroyed_and_a_finished_run_is_not_resumed(tmp_path: Path):
    run = train(study(privacy__insecure_test_seed=None), out=tmp_path, people=people())
    assert not (run.folder.checkpoints / "noise.key").exists()
    assert not (run.folder.checkpoints / "state.safetensors").exists()
    with pytest.raises(UsageError, match="SQ-505"):
        resume(run.folder.path, people=people())


def test_other_data_or_a_changed_study_are_refused(tmp_path: Path):
    part = train(study(), out=tmp_path, people=people(), watch=interrupt_at(6))
    with pytest.raises(UsageError, match="SQ-503 the data"):
        resume(part.folder.path, people=people(89))
    text = part.folder.study.read_text()
    part.folder.study.write_text(text.replace("learning_rate = 0.05", "learning_rate = 0.5"))
    with pytest.raises(UsageError, match="SQ-503"):
        resume(part.folder.path, people=people())
    with pytest.raises(UsageError, match="SQ-502"):
        resume(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 64, b"\xff" * 8 + b"{}"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: bytes):
    part = train(study(), out=tmp_path, people=people(), watch=interrupt_at(6))
    (part.folder.checkpoints / "state.safetensors").write_bytes(damage)
    with pytest.raises(UsageError, match="SQ-503"):
        resume(part.folder.path, people=people())


@pytest.mark.parametrize("position", [None, b"", b"\0" * 8, b"\1"])
def test_a_lost_or_older_position_of_the_noise_is_refused(tmp_path: Path, position: bytes | None):
    part = train(study(), out=tmp_path, people=people(), watch=interrupt_at(6))
    file = part.folder.checkpoints / "position"
    if position is None:
        file.unlink()
    else:
        file.write_bytes(position)
    with pytest.raises(UsageError, match=r"^SQ-503 "):
        resume(part.folder.path, people=people())
    assert not part.folder.weights.exists()


def test_private_files_are_for_the_owner_alone(tmp_path: Path):
    part = train(
        study(privacy__insecure_test_seed=None),
        out=tmp_path,
        people=people(),
        watch=interrupt_at(6),
    )
    for folder in (part.folder.checkpoints, part.folder.private):
        assert folder.stat().st_mode & 0o077 == 0
        for file in folder.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file.name
    assert "step" in Progress.__struct_fields__


def test_a_central_run_is_not_resumed_as_a_federated_one(tmp_path: Path):
    part = train(study(), out=tmp_path, people=people(), watch=interrupt_at(6))
    with pytest.raises(UsageError, match="SQ-507"):
        federated_resume(part.folder.path, people=people())


def test_a_run_that_is_being_trained_cannot_be_resumed_beside_it(tmp_path: Path):
    # Two processes would draw the same noise on different sums.
    part = train(study(), out=tmp_path, people=people(), watch=interrupt_at(6))
    with part.folder.held(), pytest.raises(UsageError, match="SQ-508"):
        resume(part.folder.path, people=people())
    assert resume(part.folder.path, people=people()).stopped == "finished"


def test_a_run_is_resumed_by_the_study_it_started_with(tmp_path: Path):
    part = train(study(), out=tmp_path, people=people(), watch=interrupt_at(6))
    with pytest.raises(UsageError, match=r"SQ-509.*training.steps is 13, in the run 12"):
        resume(part.folder.path, study=study(training__steps=13), people=people())
    done = resume(part.folder.path, study=study(), people=people())
    assert done.stopped == "finished"


def test_what_was_estimated_is_no_difference(tmp_path: Path):
    features = {"signal": Feature(-100, 100, estimate=True), "other": Feature(-3, 3)}
    words = {"town": Category(estimate=True)}
    asked = study(data__features=features, data__categories=words, privacy__epsilon=200.0)
    part = train(asked, out=tmp_path, people=people(400), watch=interrupt_at(6))
    assert "estimate = true" not in part.folder.study.read_text()
    check_study(part.folder, asked)
    # The run folder's own study, in which the estimates stand, names the run too.
    done = resume(part.folder.path, study=read_study(part.folder.study), people=people(400))
    assert done.stopped == "finished"


@pytest.mark.parametrize(
    ("before", "after"),
    [("upper = 100", "upper = 50"), ('estimate = "range"', 'estimate = "mean"')],
)
def test_one_noise_meets_one_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
):
    # A crash before the estimates are noted repeats their noise: it must meet the same question.
    def crash(*arguments: object) -> None:
        raise Crash

    features = {"signal": Feature(-100, 100, estimate="range"), "other": Feature(-3, 3)}
    monkeypatch.setattr(Session, "open", crash)
    with pytest.raises(Crash):
        train(study(data__features=features), out=tmp_path, people=people())
    monkeypatch.undo()
    (folder,) = tmp_path.iterdir()
    text = (folder / "study.toml").read_text()
    assert before in text
    (folder / "study.toml").write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=r"SQ-503.*data\.features\.signal"):
        resume(folder, people=people())
    (folder / "study.toml").write_text(text)
    assert resume(folder, people=people()).stopped == "finished"


def test_an_altered_study_in_the_run_folder_is_refused_before_the_first_checkpoint(tmp_path: Path):
    # Without a checkpoint nothing else would notice that the lots' rate changed under the claim.
    def crash(measured: Measure) -> None:
        raise Crash

    with pytest.raises(Crash):
        train(study(), out=tmp_path, people=people(), watch=crash)
    (folder,) = tmp_path.iterdir()
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace("sampling_rate = 0.5", "sampling_rate = 0.1"))
    with pytest.raises(UsageError, match=r"SQ-503.*sampling_rate"):
        resume(folder, people=people())


@pytest.mark.parametrize("estimate", [False, True])
def test_a_crash_between_a_cut_reservation_and_its_note_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimate: bool
):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 6.0, 1e-3)
    asked = study(
        ledger=LedgerSection(url=url, budget="town"),
        privacy__epsilon=None,
        privacy__noise_multiplier=2.5,
        training__steps=500,
        data__features={"signal": Feature(-3, 3, estimate=estimate), "other": Feature(-3, 3)},
    )

    def crash(*arguments: object) -> None:
        raise Crash

    honest = Session.open
    monkeypatch.setattr(Session, "open", crash)
    with pytest.raises(Crash):
        train(asked, out=tmp_path / "runs", people=people())
    monkeypatch.setattr(Session, "open", honest)
    with Ledger.open(url) as ledger:
        held = ledger.budgets()[0].spent
    (folder,) = (tmp_path / "runs").iterdir()
    run = resume(folder, study=asked, people=people())
    assert run.stopped == "budget"
    assert 1 <= run.steps < 500
    assert run.claim is not None
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent == held <= 6.0
        assert ledger.verify()
    assert run.epsilon <= 6.0


def test_a_reservation_of_another_plan_is_not_taken_for_a_cut_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 30.0, 1e-3)
    section = LedgerSection(url=url, budget="town")
    # A test seed names the run, so both ask under one key.
    train(
        study(ledger=section, training__steps=3, privacy__epsilon=2.0),
        out=tmp_path,
        people=people(),
    )
    with pytest.raises(LedgerRefusal, match="SQ-315"):
        train(study(ledger=section), out=tmp_path, people=people())
