"""`federate`: from a study to released weights, a claim and facts, trained in rounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch import nn

from sequester.core.errors import SequesterError
from sequester.federated.assemble import check_enrolled, simulation_of, sums_of
from sequester.federated.clients import Devices
from sequester.federated.driver import Outcome
from sequester.federated.engine.base import fill
from sequester.federated.homes import check_homes
from sequester.federated.keepsakes import judge_personal, write_parts
from sequester.federated.masking import Masking
from sequester.federated.settings import Federated, detail_of, settings_of
from sequester.federated.shares import settle
from sequester.federated.simulate import Simulation
from sequester.mechanism import Claim
from sequester.secagg import hides_little
from sequester.sequences import People
from sequester.training import charging, reporting, resumption
from sequester.training.checkpoint import destroy, run_key
from sequester.training.dataset import split
from sequester.training.evaluation import Utility
from sequester.training.folder import RunFolder
from sequester.training.session import Session
from sequester.training.signals import Interruption
from sequester.training.sources import read_people
from sequester.training.study import Study
from sequester.training.study_file import checked

Watch = Callable[[int, Outcome], None]

_SITES = (
    "The list of sites is public, and none is there because of one person; each person's records "
    "lie at one site only; sites clip each of their people"
)
ASSUMPTIONS = {
    "cross-device": (
        "Each person is one client; the server clips every update it receives and adds the "
        "noise, so the server itself is trusted with the updates.",
    ),
    "cross-silo": (
        f"{_SITES} and draw secret coins as planned; the server is trusted with the "
        "sites' sums and adds the noise.",
    ),
    "sites": (
        f"{_SITES}, draw secret coins and add noise as planned, at every step; the guarantee "
        "holds against the server too, and each site is trusted by its own people.",
    ),
    "local": (
        "Each person is one client that clips and adds noise itself, also for a person without "
        "data: who takes part is public, and what they hold is hidden, from the server too. What "
        "is charged covers any exchange of all of the person's data.",
    ),
}
MASKED = {
    "cross-device": "Each person is one client, clips its own update and flips its own coin.",
    "cross-silo": f"{_SITES} and draw secret coins as planned.",
}
_FOUND = (
    "That no site is there because of one person: the sites were taken from the data, not declared "
    "in federated.sites."
)
_NOT_EVIDENCED = (
    "That distant clients run the code they were given: this run was simulated in one process.",
)


@dataclass(frozen=True)
class FederatedRun:
    """What came out.

    Attributes:
        folder: Where it lies.
        stopped: "finished", "budget" (its rounds were cut to a ceiling) or "interrupted".
        rounds: Rounds that ran, abandoned ones included.
        abandoned: Rounds of which no model came: too few updates, or a masked sum that did not
            open. They stay charged.
        steps: Noisy steps charged: the rounds, or more where sites take several in a round.
        cohort: Expected clients (or people of all sites) in a round; public.
        epsilon: ε of what ran, ∞ without privacy.
        delta: Its δ.
        unit: Whose presence it hides.
        claim: None while interrupted.
        utility: None while interrupted.
    """

    folder: RunFolder
    stopped: str
    rounds: int
    steps: int
    cohort: float
    epsilon: float
    delta: float
    unit: str
    claim: Claim | None = None
    utility: Utility | None = None
    abandoned: int = 0


def federate(
    study: Study,
    *,
    out: Path = Path("runs"),
    people: People | None = None,
    beside: Path | None = None,
    watch: Watch | None = None,
) -> FederatedRun:
    """Train a study in rounds, simulated in this process.

    Args:
        study: With a `[federated]` part; `training.steps` rounds.
        out: Folder that receives the run folder.
        people: Instead of reading `study.data.source`.
        beside: Folder that a relative source starts from.
        watch: Sees every round's private figures; for the operator's terminal only.

    Raises:
        UsageError: for a study or data that cannot be used.
        LedgerRefusal: if not one round fits into the budget.
        SequesterError: SQ-628 if training diverged, SQ-629 if every round was abandoned.
    """
    study = checked(study)
    settings_of(study)
    people = people if people is not None else read_people(study.data, beside=beside)
    check_homes(study, people)
    if study.training.lot_size:
        check_enrolled(study, len(split(people, study.data)[0]))
    folder, begun = resumption.start(study, out, people, "federated")
    with folder.held():
        with folder.undone():
            key, charge = _charged(folder, study, begun, people)
        return _go(folder, study, key, charge, people, watch)


def resume(
    path: Path,
    *,
    study: Study | None = None,
    people: People | None = None,
    beside: Path | None = None,
    watch: Watch | None = None,
) -> FederatedRun:
    """Continue an interrupted run exactly: same cohorts, same noise, same charge.

    Args:
        path: The run folder.
        study: What the caller takes the run's study to be; None to ask no questions.
        people: Instead of reading `study.data.source`.
        beside: Folder that a relative source starts from.
        watch: Sees every round's private figures; for the operator's terminal only.

    Raises:
        UsageError: SQ-502 to SQ-508 or SQ-622 if the folder holds no run that can be
            continued, or the data are not those it started with; SQ-509 if `study` is another.
    """
    folder = RunFolder.open(path)
    with folder.held():
        if study is not None:
            resumption.check_study(folder, study)
        ran, begun = resumption.read(folder, "federated")
        people = people if people is not None else read_people(ran.data, beside=beside)
        resumption.check_people(folder, begun, people)
        key, charge = _charged(folder, ran, begun, people)
        return _go(folder, ran, key, charge, people, watch)


def _charged(
    folder: RunFolder, study: Study, begun: resumption.Begun, people: People
) -> tuple[bytes, charging.Charge]:
    """The run's secret, and what is held for it."""
    key = run_key(folder.checkpoints, test_seed=study.privacy.insecure_test_seed)
    begun = _settled(folder, study, begun, people, key)
    return key, charging.reserve(study, begun, people)


def _go(
    folder: RunFolder,
    study: Study,
    key: bytes,
    charge: charging.Charge,
    people: People,
    watch: Watch | None,
) -> FederatedRun:
    settings = settings_of(study)
    charge.begin()
    session = Session.open(folder, study, charge.begun, people, key)
    resumption.write(folder, session.study, charge.begun)
    simulation = simulation_of(session, settings)
    # A round may take several charged steps; the reservation covers these and not one more.
    each = min(settings.local_steps, charge.begun.steps)
    rounds = charge.begun.steps // each
    simulation.allowed = lambda number: number < rounds
    simulation.noted = partial(_note, folder, simulation)
    done = _rounds(simulation, rounds, watch)
    check_progress(simulation)
    session.state.step = simulation.next_round * each
    masking = simulation.masking
    if masking is not None and masking.sums.noisy and masking.arrived:
        session.happened = masking.happened(study.training.sampling_rate)
    write_into(session, simulation)
    said = _personal(session, settings, simulation) if done else ""
    run = FederatedRun(
        folder=folder,
        stopped=("budget" if charge.begun.cut else "finished") if done else "interrupted",
        rounds=simulation.next_round,
        steps=session.state.step,
        cohort=_expected(session, settings),
        epsilon=reporting.epsilon_of(session.plan, session.ran()),
        delta=study.privacy.delta,
        unit=study.unit.kind,
        abandoned=simulation.abandoned,
    )
    if not done:
        return run

    def amend(claim: Claim, facts: dict[str, Any]) -> None:
        if said:
            claim.fields["assumptions"] = [*claim.fields["assumptions"], said]
        _add_assumptions(claim, settings, masking, session.state.model)
        add_facts(facts, session, settings, run.rounds)

    claim, figures = reporting.finish(session, charge, amend)
    destroy(folder.checkpoints)
    return replace(run, claim=claim, utility=figures[0] if figures else None)


def _personal(session: Session, settings: Federated, simulation: Simulation) -> str:
    """Keep the clients' own parts, and judge by them; what the claim says of the figure."""
    devices = simulation.crowd
    if not isinstance(devices, Devices) or devices.personal is None:
        return ""
    groups, sites = session.prepared.groups, settings.placement == "cross-silo"
    names = sorted(set(groups.tolist())) if sites and groups is not None else []
    shared = simulation.state.model.astype(np.float32)
    write_parts(session.folder, devices, shared, names)
    return judge_personal(session, devices, shared, names)


def _settled(
    folder: RunFolder, study: Study, begun: resumption.Begun, people: People, key: bytes
) -> resumption.Begun:
    """The run's decisions, with the noise shares of its members if it has any.

    Their number and the model's size decide the shares, so the data are laid out once before
    the charge; nothing is computed from them.
    """
    settings = settings_of(study)
    if settings.secagg is None or settings.secagg.noise == "none" or begun.mechanism:
        return begun
    sums = sums_of(Session.open(folder, study, begun, people, key), settings)
    return begun if sums is None else settle(sums, study, begun)


def _rounds(simulation: Simulation, rounds: int, watch: Watch | None) -> bool:
    """Run what is left; False if interrupted."""
    with Interruption() as interruption:
        while simulation.next_round < rounds:
            number = simulation.next_round
            outcome = simulation.run_round()
            if watch is not None:
                watch(number, outcome)
            if interruption.asked and simulation.next_round < rounds:
                return False
    return True


def check_progress(simulation: Simulation) -> None:
    """Release no model that no round has moved.

    Raises:
        SequesterError: SQ-629 if every round was abandoned. What was reserved stays charged.
    """
    if simulation.abandoned and simulation.abandoned == simulation.next_round:
        raise SequesterError(
            629,
            f"all {simulation.abandoned} rounds were abandoned, so there is no model to release; "
            "what was reserved stays charged. private/rounds.jsonl says why: lower "
            "federated.quorum, or a learning rate at which clients diverge",
            where="federated",
        )


def _note(
    folder: RunFolder, simulation: Simulation, number: int, clip: float, outcome: Outcome
) -> None:
    """One line of `private/rounds.jsonl`: who answered is private."""
    line = {
        "round": number,
        "clip": clip,
        "done": outcome.done,
        "why": outcome.why,
        "cohort": outcome.cohort,
        "accepted": outcome.accepted,
        "rejected": {str(reason): count for reason, count in sorted(outcome.rejected.items())},
        "bytes": simulation.bytes_sent,
    }
    append_round(folder, line)


def append_round(folder: RunFolder, line: dict[str, object]) -> None:
    """Append one line to `private/rounds.jsonl`, which its owner alone may read; a round once."""
    handle = os.open(folder.private / "rounds.jsonl", os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+b") as file:
        raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]  # a crash may have left half a line
        told = whole.splitlines()
        if told and msgspec.json.decode(told[-1])["round"] >= line["round"]:
            return  # before a crash that lost the state after it
        file.seek(len(whole))
        file.truncate()
        file.write(msgspec.json.encode(line) + b"\n")


def write_into(session: Session, simulation: Simulation) -> None:
    """Move the released model into the session's module."""
    fill(session.state.model, simulation.state.model.astype(np.float32))


def _expected(session: Session, settings: Federated) -> float:
    if session.plan is not None:
        return session.plan.expected_lot
    if settings.placement == "cross-silo":  # without a guarantee: each site is a client
        groups = session.prepared.groups
        return float(len(set(groups.tolist()))) if groups is not None else 0.0
    training = session.study.training
    return training.lot_size or session.prepared.train.people * training.sampling_rate


def add_facts(facts: dict[str, Any], session: Session, settings: Federated, rounds: int) -> None:
    """How the rounds were run, in `facts.json`, in place of what central training says there."""
    plan: dict[str, object] = facts["plan"]
    for central in ("optimiser", "learning rate", "average of weights"):
        plan.pop(central, None)
    summed = settings.placement == "cross-silo" and session.plan is not None
    plan |= {"rounds": rounds, "placement": settings.placement}
    plan |= detail_of(settings, ("algorithm",)) if summed else detail_of(settings)
    plan["server learning rate"] = settings.server_learning_rate
    if settings.local_steps > 1 or not summed:
        plan["local learning rate"] = settings.local_learning_rate
    if not summed:
        plan |= {"local epochs": settings.epochs, "windows a local step": settings.batch}
    elif settings.local_steps > 1:
        plan["local steps a round"] = settings.local_steps
    if size := session.study.training.lot_size:
        plan.pop("sampling rate", None)
        plan["people in each round"] = size


def sums_tell(masking: Masking | None, model: nn.Module, *, private: bool) -> tuple[str, ...]:
    """What exact sums tell whoever opens them, for a claim; nothing where members add noise.

    Args:
        masking: None where nothing is summed in secret.
        model: Tables that are looked up in it have rows that few members change.
        private: Whether the server adds noise to what it opened.
    """
    if masking is None or masking.sums.noisy:
        return ()
    tables = any(
        isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.weight.requires_grad
        for part in model.modules()
    )
    if private and not tables:
        return ()
    why = hides_little(masking.sums.round_plan(1.0, 0.0), sparse_rows=tables)
    return (f"Secure aggregation alone hides little: {why}.",)


def _add_assumptions(
    claim: Claim, settings: Federated, masking: Masking | None, model: nn.Module
) -> None:
    """What this placement takes for granted, in the claim beside what every run does."""
    private = claim.fields["events"] != {}
    trusted = "sites" if settings.local_steps > 1 else settings.placement
    about: tuple[str, ...] = ASSUMPTIONS[trusted] if private else ()
    if masking is not None:
        about = (MASKED[settings.placement], *masking.says())
    said = claim.fields["assumptions"]
    if masking is not None and masking.sums.noisy:  # integers, not floats on a grid
        said = [line for line in said if not line.startswith("Noise has double precision")]
    claim.fields["assumptions"] = [*said, *about]
    found = private and settings.placement == "cross-silo" and not settings.sites
    told = sums_tell(masking, model, private=private)
    unproven = (*told, *((_FOUND,) if found else ()), *_NOT_EVIDENCED)
    claim.fields["not_evidenced"] = [*claim.fields["not_evidenced"], *unproven]
