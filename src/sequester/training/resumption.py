"""What a run decided before its first step, kept so that a resumed run decides nothing anew."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import msgspec

from sequester.accounting import from_json, to_json
from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.core.rng import fresh_key
from sequester.mechanism import Plan
from sequester.sequences import People
from sequester.training.folder import RunFolder
from sequester.training.planning import base_plan, make_plan
from sequester.training.study import Study
from sequester.training.study_file import read_study, to_toml

_NAME = "begun.json"
_KEY = "fingerprint.key"


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decisions of a run.

    Attributes:
        run: Names the run in keystreams and in the ledger; unguessable, never used twice.
        data: Keyed fingerprint of everybody read.
        noise_multiplier: As solved; 0 without privacy.
        steps: As planned, possibly cut to a ceiling.
        setup: Events of the private set-up, as canonical JSON.
        cut: Whether the study's steps were cut.
        kind: "central" or "federated"; the two count steps differently, so a run resumed as the
            other kind would draw noise twice under one charge.
        mechanism: What a step does to its lot, as canonical JSON; empty for one Gaussian. Noise
            that many members share is decided by them, not by the server.
    """

    run: str
    data: str
    noise_multiplier: float
    steps: int
    setup: tuple[str, ...]
    cut: bool
    kind: str
    mechanism: str = ""

    def plan(self, study: Study, *, parameters: int = 1) -> Plan | None:
        """The plan these decisions amount to; None without privacy."""
        if study.privacy.mode == "none":
            return None
        plan = base_plan(
            study,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            setup=tuple(from_json(event) for event in self.setup),
            parameters=parameters,
        )
        if not self.mechanism:
            return plan
        # Who is a member is public where members share the noise: zeros stand for a person's data.
        return replace(plan, mechanism=from_json(self.mechanism), adjacency="zero-out")


def start(study: Study, out: Path, people: People, kind: str) -> tuple[RunFolder, Begun]:
    """A new run folder with its decisions in it.

    Args:
        study: Checked.
        out: Folder that receives the run folder.
        people: Everybody read.
        kind: "central" or "federated".

    Raises:
        UsageError: SQ-276 for lots of fixed size in central training.
    """
    if study.training.lot_size and kind == "central":
        raise UsageError(
            276,
            "lots of fixed size are for federated rounds; remove training.lot_size, and "
            "training.sampling_rate decides",
            where="training.lot_size",
        )
    fingerprint_key = fresh_key()
    begun = begin(study, people.fingerprint(fingerprint_key), kind)
    folder = RunFolder.create(out, study.name)
    # Whoever holds the data can prove later, with this key, which data the claim is about.
    write_atomic(folder.private / _KEY, fingerprint_key, private=True)
    write(folder, study, begun)
    return folder, begun


def check_people(folder: RunFolder, begun: Begun, people: People) -> None:
    """Refuse to continue a run with other data.

    Raises:
        UsageError: SQ-503.
    """
    if people.fingerprint((folder.private / _KEY).read_bytes()) != begun.data:
        raise UsageError(
            503,
            "the data are not those this run started with; noise already drawn must not meet "
            "other data. Start a new run",
            where=str(folder.path),
        )


def begin(study: Study, data: str, kind: str) -> Begun:
    """Solve for the noise and choose the run's name.

    Args:
        study: Checked.
        data: Keyed fingerprint of the people.
        kind: "central" or "federated".
    """
    seed = study.privacy.insecure_test_seed
    run = secrets.token_hex(16) if seed is None else f"insecure-test-{seed}"
    if study.privacy.mode == "none":
        return Begun(run, data, 0.0, study.training.steps, (), cut=False, kind=kind)
    planned = make_plan(study)
    return Begun(
        run=run,
        data=data,
        noise_multiplier=planned.plan.noise_multiplier,
        steps=planned.plan.steps,
        setup=tuple(to_json(event) for event in planned.plan.setup),
        cut=planned.cut,
        kind=kind,
    )


def write(folder: RunFolder, study: Study, begun: Begun) -> None:
    """Keep study and decisions; the study first, so that it never lags behind."""
    write_atomic(folder.study, to_toml(study))
    write_atomic(folder.checkpoints / _NAME, msgspec.json.encode(begun), private=True)


def read(folder: RunFolder, kind: str) -> tuple[Study, Begun]:
    """Study and decisions of an interrupted run.

    Raises:
        UsageError: SQ-505 if the run is over, SQ-503 if its decisions are damaged, SQ-507
            if it is a run of the other kind.
    """
    if folder.claim.exists():
        raise UsageError(
            505, "this run is finished and has its claim; start a new one", where=str(folder.path)
        )
    file: Path = folder.checkpoints / _NAME
    try:
        begun = msgspec.json.decode(file.read_bytes(), type=Begun)
    except (OSError, msgspec.MsgspecError):
        raise UsageError(503, "this run's decisions are damaged", where=str(file)) from None
    if begun.kind != kind:
        verb = "train" if begun.kind == "central" else "federate"
        raise UsageError(
            507,
            f"this is a {begun.kind} run; resume it with 'sequester {verb} --resume'",
            where=str(folder.path),
        )
    return read_study(folder.study), begun
