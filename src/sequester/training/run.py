"""`train`: from a study to released weights, a claim and facts, in one run folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from sequester.core.files import write_atomic
from sequester.mechanism import Claim
from sequester.sequences import People
from sequester.training import charging, reporting, resumption
from sequester.training.checkpoint import destroy, run_key
from sequester.training.evaluation import Utility
from sequester.training.folder import RunFolder
from sequester.training.loop import Watch
from sequester.training.monitor import Measure
from sequester.training.session import Session
from sequester.training.sources import read_people
from sequester.training.study import Study
from sequester.training.study_file import checked


@dataclass(frozen=True)
class Run:
    """What came out.

    Attributes:
        folder: Where it lies.
        stopped: "finished", "budget" (its steps were cut to a ceiling) or "interrupted".
        steps: Steps charged.
        epsilon: ε of what ran, ∞ without privacy.
        delta: Its δ.
        unit: Whose presence it hides.
        claim: None while interrupted.
        figures: Figures of merit on held-out people, the main one first; none while interrupted.
        advice: For the operator alone; private.
    """

    folder: RunFolder
    stopped: str
    steps: int
    epsilon: float
    delta: float
    unit: str
    claim: Claim | None = None
    figures: tuple[Utility, ...] = ()
    advice: tuple[str, ...] = field(default=(), repr=False)

    @property
    def utility(self) -> Utility | None:
        """The main figure of merit; None while interrupted."""
        return self.figures[0] if self.figures else None


def train(
    study: Study,
    *,
    out: Path = Path("runs"),
    people: People | None = None,
    beside: Path | None = None,
    watch: Watch | None = None,
) -> Run:
    """Train a study from its beginning.

    Args:
        study: What to do.
        out: Folder that receives the run folder.
        people: Instead of reading `study.data.source`.
        beside: Folder that a relative source starts from.
        watch: Sees every step's private figures; for the operator's terminal only.

    Raises:
        UsageError: for a study or data that cannot be used.
        LedgerRefusal: if not one step fits into the budget.
    """
    study = checked(study)
    people = people if people is not None else read_people(study.data, beside=beside)
    folder, begun = resumption.start(study, out, people, "central")
    with folder.held():
        with folder.undone():
            charge = charging.reserve(study, begun, people)
        return _go(folder, study, charge, people, watch)


def resume(
    path: Path,
    *,
    study: Study | None = None,
    people: People | None = None,
    beside: Path | None = None,
    watch: Watch | None = None,
) -> Run:
    """Continue an interrupted run exactly: same noise stream, same lots, same charge.

    Args:
        path: The run folder.
        study: What the caller takes the run's study to be; None to ask no questions.
        people: Instead of reading `study.data.source`.
        beside: Folder that a relative source starts from.
        watch: Sees every step's private figures; for the operator's terminal only.

    Raises:
        UsageError: SQ-502 to SQ-505 if the folder holds no run that can be continued, or the
            data are not those it started with; SQ-509 if `study` is another one.
    """
    folder = RunFolder.open(path)
    with folder.held():
        if study is not None:
            resumption.check_study(folder, study)
        ran, begun = resumption.read(folder, "central")
        people = people if people is not None else read_people(ran.data, beside=beside)
        resumption.check_people(folder, begun, people)
        return _go(folder, ran, charging.reserve(ran, begun, people), people, watch)


def _go(
    folder: RunFolder,
    study: Study,
    charge: charging.Charge,
    people: People,
    watch: Watch | None,
) -> Run:
    charge.begin()
    key = run_key(folder.checkpoints, test_seed=study.privacy.insecure_test_seed)
    session = Session.open(folder, study, charge.begun, people, key)
    resumption.write(folder, session.study, charge.begun)
    done = session.run(watch or _nothing)
    advice = tuple(session.monitor.advice())
    write_atomic(folder.private / "advice.txt", "\n".join(advice) + "\n", private=True)
    ran = session.ran()
    stopped = "budget" if charge.begun.cut else "finished"
    run = Run(
        folder=folder,
        stopped=stopped if done else "interrupted",
        steps=session.state.step,
        epsilon=reporting.epsilon_of(session.plan, ran),
        delta=study.privacy.delta,
        unit=study.unit.kind,
        advice=advice,
    )
    if not done:
        return run
    claim, figures = reporting.finish(session, charge)
    destroy(folder.checkpoints)
    return replace(run, claim=claim, figures=figures)


def _nothing(measured: Measure) -> None:
    """Nobody watches."""
