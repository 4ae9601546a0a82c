"""What a run decided before its first step, kept so that a resumed run decides nothing anew."""

from __future__ import annotations

import secrets
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sequester.accounting import from_json, to_json
from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.core.rng import fresh_key
from sequester.mechanism import Plan
from sequester.sequences import People
from sequester.training.checkpoint import destroy
from sequester.training.folder import DECISIONS, NEVER_BEGAN, RunFolder
from sequester.training.labels import check_data, check_labels
from sequester.training.network import check_network
from sequester.training.planning import base_plan, make_plan
from sequester.training.study import Data, Study
from sequester.training.study_file import checked, decode, read_study, to_toml

KEY = "fingerprint.key"
"""In `private`: the key of the data's fingerprint."""


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decisions of a run.

    Attributes:
        run: Names the run in keystreams and in the ledger; unguessable, never used twice.
        data: Keyed fingerprint of everybody read.
        noise_multiplier: As solved; 0 without privacy.
        steps: As planned, possibly cut to a ceiling.
        setup: Events of the private set-up, as canonical JSON.
        cut: Whether the study's steps were cut.
        kind: "central", "federated" or "flower"; they count steps differently, so a run resumed
            as another kind would draw noise twice under one charge.
        asked: The study as it was asked for, as TOML, before anything was estimated.
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
    asked: str
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
            central=self.kind == "central",
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
        UsageError: SQ-276 for lots of fixed size in central training, SQ-131 and SQ-279 for data
            that do not suit the study, SQ-268, SQ-277, SQ-278 or SQ-506 for labels.
    """
    check_data(study.data, people)
    check_network(study)
    if study.training.lot_size and kind == "central":
        raise UsageError(
            276,
            "lots of fixed size are for federated rounds; remove training.lot_size, and "
            "training.sampling_rate decides",
            where="training.lot_size",
        )
    check_labels(study.data, people)
    fingerprint_key = fresh_key()
    begun = begin(study, people.fingerprint(fingerprint_key), kind)
    folder = RunFolder.create(out, study.name)
    # Whoever holds the data can prove later, with this key, which data the claim is about.
    write_atomic(folder.private / KEY, fingerprint_key, private=True)
    write(folder, study, begun)
    return folder, begun


def check_people(folder: RunFolder, begun: Begun, people: People) -> None:
    """Refuse to continue a run with other data.

    Raises:
        UsageError: SQ-503.
    """
    if people.fingerprint((folder.private / KEY).read_bytes()) != begun.data:
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
        steps = study.training.steps
        return Begun(run, data, 0.0, steps, (), cut=False, kind=kind, asked=to_toml(study))
    planned = make_plan(study)
    return Begun(
        run=run,
        data=data,
        noise_multiplier=planned.plan.noise_multiplier,
        steps=planned.plan.steps,
        setup=tuple(to_json(event) for event in planned.plan.setup),
        cut=planned.cut,
        kind=kind,
        asked=to_toml(study),
    )


def write(folder: RunFolder, study: Study, begun: Begun) -> None:
    """Keep study and decisions; the study first, so that it never lags behind."""
    write_atomic(folder.study, to_toml(study))
    write_atomic(folder.checkpoints / DECISIONS, msgspec.json.encode(begun), private=True)


def read(folder: RunFolder, kind: str) -> tuple[Study, Begun]:
    """Study and decisions of an interrupted run.

    Raises:
        UsageError: SQ-505 if the run is over, SQ-502 if it never began, SQ-503 if its decisions
            are damaged, SQ-507 if it is a run of the other kind.
    """
    if folder.claim.exists():
        destroy(folder.checkpoints)  # a crash may have come between the claim and this
        raise UsageError(
            505, "this run is finished and has its claim; start a new one", where=str(folder.path)
        )
    if not any(folder.checkpoints.iterdir()):
        raise UsageError(502, f"this folder holds {NEVER_BEGAN}", where=str(folder.path))
    begun = _decisions(folder.checkpoints / DECISIONS)
    if begun.kind != kind:
        how = {
            "central": "resume it with 'sequester train --resume'",
            "federated": "resume it with 'sequester federate --resume'",
        }.get(begun.kind, "start its Flower app again, and it goes on")
        raise UsageError(
            507,
            f"this is a {begun.kind} run; {how}",
            where=str(folder.path),
        )
    study, asked = read_study(folder.study), decode(tomllib.loads(begun.asked))
    if changes := differences(asked, study):
        raise UsageError(
            503,
            f"the run's own study was altered: {'; '.join(changes)}; a run ends as it began",
            where=str(folder.study),
        )
    return study, begun


def check_study(folder: RunFolder, given: Study) -> None:
    """Refuse to continue a run under another study than the one it started with.

    Args:
        folder: The run's.
        given: What the user named beside the run.

    Raises:
        UsageError: SQ-509 naming each field that differs.
    """
    file = folder.checkpoints / DECISIONS
    if not file.is_file():
        return  # `read` says what is wrong with the folder
    began = decode(tomllib.loads(_decisions(file).asked))
    if changes := differences(checked(given), began):
        raise UsageError(
            509,
            f"this run started with another study: {'; '.join(changes)}. Name the study it "
            "started with (the run folder's own study.toml will do), or start a new run",
            where=str(folder.path),
        )


def differences(one: Study, other: Study) -> list[str]:
    """Fields in which two studies differ, "field is a, in the run b"; estimates are left out.

    What one of them asks to be estimated privately is filled in where the other has run; where
    both still ask for it, they must ask for the same, or one noise would meet two questions.
    """
    found = []
    left, right = _flat(msgspec.to_builtins(one)), _flat(msgspec.to_builtins(other))
    filled = tuple(_estimates(one.data) ^ _estimates(other.data))
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) == right.get(name) or name.startswith(filled):
            continue
        found.append(f"{name} is {left.get(name)!r}, in the run {right.get(name)!r}")
    return found


def _estimates(data: Data) -> set[str]:
    """Prefixes of the fields of what is to be estimated."""
    features = {f"data.features.{n}." for n, f in data.features.items() if f.estimate}
    return features | {f"data.categories.{n}." for n, c in data.categories.items() if c.estimate}


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def _decisions(file: Path) -> Begun:
    """The decisions kept in `file`.

    Raises:
        UsageError: SQ-503 if they are damaged.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Begun)
    except (OSError, msgspec.MsgspecError):
        raise UsageError(503, "this run's decisions are damaged", where=str(file)) from None
