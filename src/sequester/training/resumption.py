"""What a run decided before its first step, kept so that a resumed run decides nothing anew."""

from __future__ import annotations

import hashlib
import hmac
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
from sequester.mechanism import Plan, Position
from sequester.models import KINDS
from sequester.sequences import People
from sequester.training import own_code
from sequester.training.checkpoint import destroy, run_key
from sequester.training.folder import DECISIONS, NEVER_BEGAN, POSITION, RunFolder
from sequester.training.labels import check_data, check_labels
from sequester.training.network import check_network
from sequester.training.planning import base_plan, make_plan
from sequester.training.study import Study
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
        module: SHA-256 of the files of the user's own module, with what it imports from beside
            it; empty for a network of this package.
        found: The study with what was found privately before the first step, as TOML; empty
            before, or where nothing was to be found.
        seal: Keyed digest of all the others, under the run's noise key.
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
    module: dict[str, str] = {}
    found: str = ""
    seal: str = ""

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
    if kind == "central":
        Position(folder.checkpoints / POSITION)  # from here on, where it is missing it was lost
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
        return Begun(
            run=run,
            data=data,
            noise_multiplier=0.0,
            steps=steps,
            setup=(),
            cut=False,
            kind=kind,
            asked=to_toml(study),
            module=module_files(study),
        )
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
        module=module_files(study),
    )


def write(folder: RunFolder, study: Study, begun: Begun) -> None:
    """Keep study and decisions, sealed; the study last, so that it never runs ahead."""
    key = run_key(folder.checkpoints, test_seed=study.privacy.insecure_test_seed)
    text = to_toml(study)
    begun = msgspec.structs.replace(begun, found=text if text != begun.asked else "")
    begun = msgspec.structs.replace(begun, seal=_seal(begun, key))
    write_atomic(folder.checkpoints / DECISIONS, msgspec.json.encode(begun), private=True)
    write_atomic(folder.study, text)


def read(folder: RunFolder, kind: str) -> tuple[Study, Begun]:
    """Study and decisions of an interrupted run.

    Raises:
        UsageError: SQ-505 if the run is over, SQ-502 if it never began, SQ-503 if its decisions
            or its study were altered or the position of its noise is lost, SQ-504 if its noise
            key is lost, SQ-507 if it is a run of the other kind, SQ-510 if the user's own module
            is another one.
    """
    if folder.claim.exists():
        destroy(folder.checkpoints)  # a crash may have come between the claim and this
        raise UsageError(
            505, "this run is finished and has its claim; start a new one", where=str(folder.path)
        )
    if not any(folder.checkpoints.iterdir()):
        raise UsageError(502, f"this folder holds {NEVER_BEGAN}", where=str(folder.path))
    begun = decisions_in(folder.checkpoints / DECISIONS)
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
    asked, study = _studies(begun)
    _check_seal(folder, begun, study)
    kept = read_study(folder.study)
    # A crash may have come before what was found was written into the study, too.
    if differences(asked, kept) and (changes := differences(study, kept)):
        raise UsageError(
            503,
            f"the run's own study was altered: {'; '.join(changes)}; a run ends as it began",
            where=str(folder.study),
        )
    if kind == "central" and not (folder.checkpoints / POSITION).is_file():
        raise UsageError(
            503,
            "the position of the noise is lost, so that noise could be drawn twice; start a new "
            "run, the old charge stays",
            where=str(folder.checkpoints / POSITION),
        )
    changed = sorted(name for name, _ in begun.module.items() ^ module_files(study).items())
    if changed:
        raise UsageError(
            510,
            f"{changed[0]!r} of {study.model.kind!r} is not what this run began with; put it back, "
            "or start a new run, the old charge stays",
            where=str(folder.path),
        )
    return study, msgspec.structs.replace(begun, found="", seal="")


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
    asked, found = _studies(decisions_in(file))
    given = checked(given)
    if differences(given, found) and (changes := differences(given, asked)):
        raise UsageError(
            509,
            f"this run started with another study: {'; '.join(changes)}. Name the study it "
            "started with (the run folder's own study.toml will do), or start a new run",
            where=str(folder.path),
        )


def differences(one: Study, other: Study) -> list[str]:
    """Fields in which two studies differ, "field is a, in the run b"."""
    left, right = _flat(msgspec.to_builtins(one)), _flat(msgspec.to_builtins(other))
    return [
        f"{name} is {left.get(name)!r}, in the run {right.get(name)!r}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def filled(asked: Study, found: Study) -> Study:
    """`asked`, with what it wants estimated as it stands in `found`, and nothing else of that."""
    features, categories = dict(asked.data.features), dict(asked.data.categories)
    for name, feature in features.items():
        other = found.data.features.get(name)
        if other is None or not feature.estimate:
            continue
        if feature.wants_mean:
            change = {"centre": other.centre}
        else:
            change = {"lower": other.lower, "upper": other.upper}
        features[name] = msgspec.structs.replace(feature, estimate=False, **change)
    for name, category in categories.items():
        words = found.data.categories.get(name)
        if words is not None and category.estimate:
            kept = words.values[: len(category.values)] == category.values
            values = words.values if kept else category.values
            categories[name] = msgspec.structs.replace(category, values=values, estimate=False)
    data = msgspec.structs.replace(asked.data, features=features, categories=categories)
    return msgspec.structs.replace(asked, data=data)


def _studies(begun: Begun) -> tuple[Study, Study]:
    """The study as it was asked for, and with what was found since.

    Raises:
        UsageError: SQ-503 if one cannot be read.
    """
    try:
        asked = decode(tomllib.loads(begun.asked))
        return asked, decode(tomllib.loads(begun.found)) if begun.found else asked
    except (tomllib.TOMLDecodeError, UsageError):
        raise UsageError(503, "this run's decisions are damaged", where=DECISIONS) from None


def _seal(begun: Begun, key: bytes) -> str:
    raw = msgspec.json.encode(msgspec.structs.replace(begun, seal=""))
    own = hashlib.blake2b(b"decisions", key=key, digest_size=32).digest()
    return hashlib.blake2b(raw, key=own, digest_size=32).hexdigest()


def _check_seal(folder: RunFolder, begun: Begun, study: Study) -> None:
    seed, file = study.privacy.insecure_test_seed, folder.checkpoints / "noise.key"
    if seed is None and not file.is_file():
        raise UsageError(504, "the noise key is lost; start a new run", where=str(file))
    key = run_key(folder.checkpoints, test_seed=seed)
    if not hmac.compare_digest(_seal(begun, key), begun.seal):
        raise UsageError(
            503,
            "this run's decisions were altered; a run ends as it began. Start a new one, the old "
            "charge stays",
            where=str(folder.checkpoints / DECISIONS),
        )


def module_files(study: Study) -> dict[str, str]:
    """SHA-256 of each file of the user's own module; empty if there is none."""
    known = study.model.kind in KINDS
    return {} if known else own_code.digests(study.model.kind.partition(":")[0])


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def decisions_in(file: Path) -> Begun:
    """The decisions kept in `file`.

    Raises:
        UsageError: SQ-503 if they are damaged.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Begun)
    except (OSError, msgspec.MsgspecError):
        raise UsageError(503, "this run's decisions are damaged", where=str(file)) from None
