"""Audit a finished run: its mechanism with canaries, its model with membership attacks.

What is computed on the run's people stays in its `private/` folder and on the operator's
terminal; `audit.json`, which the card shows, holds what comes from canaries, whose coins and
windows are the audit's own.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from sequester import __version__, accounting
from sequester.audit.claimed import compare, digests_of
from sequester.audit.lots import join, some
from sequester.audit.mechanism.canaries import FEWEST
from sequester.audit.mechanism.evidence import Auditable, MechanismAudit, View, audit_mechanism
from sequester.audit.mechanism.observe import Subject
from sequester.audit.mechanism.rounds import Rounds
from sequester.audit.membership import adam, attacks, halves, reference_signals
from sequester.audit.membership.roc import Attack, Caps, measure
from sequester.audit.resuming import Finished
from sequester.core.errors import UsageError
from sequester.core.rng import fresh_key, public_generator
from sequester.federated.settings import settings_of
from sequester.mechanism import Claim, Plan
from sequester.sequences import People
from sequester.training import Study, read_study
from sequester.training.dataset import Prepared, prepare
from sequester.training.folder import RunFolder
from sequester.training.network import network_of
from sequester.training.resumption import KEY, Begun
from sequester.training.sources import read_people

Watch = Callable[[str, int, int], None]
"""Told a stage, and how many of how many of its parts are done."""


@dataclass(frozen=True)
class Settings:
    """How thorough an audit is.

    Attributes:
        canaries: Canary persons of the mechanism audit.
        steps: Most steps of it; the run's own number if smaller.
        references: Reference models of the membership attacks, even; 0 for the loss alone.
        people: Most members, and most others, to attack.
        seed: Of what the audit draws; lots and noise of real people have a secret key.
        view: What canaries are scored by.
    """

    canaries: int = 200
    steps: int = 60
    references: int = 8
    people: int = 200
    seed: int = 0
    view: View = "iterates"

    def __post_init__(self) -> None:
        """Refuse numbers that no audit can have, before any work.

        Raises:
            UsageError: SQ-816.
        """
        if self.canaries < FEWEST or min(self.steps, self.people) < 1 or self.seed < 0:
            raise UsageError(816, "an audit needs 8 canaries, a step, a person and a seed ≥ 0")
        if self.references < 0 or self.references % 2:
            raise UsageError(816, "reference models come in pairs; eight suffice, 0 is for none")


@dataclass(frozen=True)
class RunAudit:
    """Everything found about one run.

    Attributes:
        claimed: The claim's ε; ∞ without privacy.
        delta: Its δ.
        recomputed: ε of the run's plan, computed anew.
        mechanism: None for a run without privacy.
        membership: Attacks on the people, private; unit of the claim.
        caps: What the claim leaves to any attack; None without privacy.
        simulated: The people are invented, so that nothing here is private.
        protected: False without privacy, and after a test seed: the claim says NOT PRIVATE.
        digests: Of the claim and the weights that were audited, as `digests_of` gives them.
        unchecked: What could not be compared, in words that everybody may read.
        untested: Why the mechanism was not audited although there is a claim; "" if it was.
    """

    claimed: float
    delta: float
    recomputed: float
    mechanism: MechanismAudit | None
    membership: tuple[Attack, ...]
    caps: Caps | None
    simulated: bool
    protected: bool
    digests: dict[str, str]
    unchecked: tuple[str, ...] = ()
    untested: str = ""

    @property
    def above_caps(self) -> tuple[str, ...]:
        """Membership figures that the claim does not allow; private unless simulated."""
        if self.caps is None:
            return ()
        return tuple(
            f"{attack.name}: {figure}"
            for attack in self.membership
            for figure in self.caps.exceeded_by(attack, attacks=len(self.membership))
        )

    @property
    def mechanism_consistent(self) -> bool:
        """Whether canaries, noise and events agree with the claim, as far as they were asked."""
        sound = self.recomputed <= self.claimed * (1 + 1e-6)
        return sound and not (self.mechanism is not None and self.mechanism.alarm)

    @property
    def contradicted(self) -> bool:
        """Whether anything at all, private or not, contradicts the claim."""
        return not self.mechanism_consistent or bool(self.above_caps)

    @property
    def consistent(self) -> bool | None:
        """Whether nothing found contradicts the claim; None where nobody is protected."""
        if self.contradicted:
            return False
        return True if self.protected else None


def audit_run(
    path: Path,
    settings: Settings | None = None,
    *,
    beside: Path | None = None,
    watch: Watch | None = None,
) -> RunAudit:
    """Audit the finished run in `path`.

    Args:
        path: The run folder.
        settings: How thorough.
        beside: Folder that a relative data source starts from.
        watch: Told what is being done and how far it is; nothing of what is found.

    An audit that was interrupted and is asked the same again goes on: a finished mechanism and
    finished reference models are taken from the run's private folder.

    Raises:
        UsageError: SQ-812 if the run is not finished, SQ-813 if the data are not those of the
            run.
        VerificationError: SQ-242 if the claim states less than its events have, SQ-814 if it is
            about another run than this folder's, SQ-817 if its ledger booked something else.
    """
    chosen, tell = settings or Settings(), watch or (lambda stage, done, of: None)
    folder = RunFolder.open(path)
    if not folder.claim.is_file():
        raise UsageError(
            812,
            "this run has no claim yet, so there is nothing to audit; finish it with "
            "'sequester train STUDY --resume RUN'",
            where=str(path),
        )
    with folder.held():
        return _audit(folder, chosen, beside, tell)


def _audit(folder: RunFolder, settings: Settings, beside: Path | None, tell: Watch) -> RunAudit:
    """As `audit_run`, of a folder that nobody else works in."""
    digests = digests_of(folder)
    claim, study = Claim.read(folder.claim), read_study(folder.study)
    begun = None if study.privacy.mode == "none" else _decisions(folder)
    unchecked = compare(claim, study, begun, folder.facts)
    if not (folder.private / KEY).is_file():
        unchecked += ("the run's private/fingerprint.key is missing, so these may be other data",)
    people = _people(folder, study, claim, beside)
    finished = Finished.of(folder.private, _asked(folder, settings), key=fresh_key())
    prepared, model = _rebuild(study, people, finished.key)
    released = _released(folder, model)
    plan = _plan(folder, study, model)
    mechanism, recomputed, untested = None, float("inf"), ""
    if plan is not None:
        recomputed = plan.epsilon()
        untested = _untested(study)
        if not untested:
            running = _Running(study, plan, prepared, model, _decisions(folder))
            mechanism = running.audit(settings, finished, tell)
    audit = RunAudit(
        claimed=claim.epsilon,
        delta=study.privacy.delta,
        recomputed=recomputed,
        mechanism=mechanism,
        membership=_membership(released, study, prepared, settings, finished, tell),
        caps=None if plan is None else _caps(plan),
        simulated=study.data.simulated,
        protected=claim.private,
        digests=digests,
        unchecked=unchecked,
        untested=untested,
    )
    finished.close()
    return audit


def _caps(plan: Plan) -> Caps:
    return Caps.of(accounting.tradeoff(plan.event(), adjacency=plan.adjacency))


def _asked(folder: RunFolder, settings: Settings) -> bytes:
    """Everything that decides what an audit finds, but its own coins."""
    files = (folder.study, folder.claim, folder.weights, folder.checkpoints / "begun.json")
    parts = [path.read_bytes() if path.is_file() else b"" for path in files]
    versions = f"{__version__} {torch.__version__} {settings}".encode()
    return b"".join(hashlib.blake2b(part).digest() for part in (*parts, versions))


def _people(folder: RunFolder, study: Study, claim: Claim, beside: Path | None) -> People:
    """The run's own data."""
    people = read_people(study.data, beside=beside)
    key_file = folder.private / KEY
    if key_file.is_file():
        if people.fingerprint(key_file.read_bytes()) != claim.fields["data"]["fingerprint"]:
            raise UsageError(
                813,
                "the data are not those the claim is about; audit with the data of the run",
                where=str(folder.path),
            )
    return people


def _rebuild(study: Study, people: People, key: bytes) -> tuple[Prepared, nn.Module]:
    """The run's lots and initial weights, from its own study."""
    prepared = prepare(study, people, key=key)
    if study.unit.kind != "person":
        prepared = replace(
            prepared,
            train=prepared.train.each_window_its_own(),
            held_out=prepared.held_out.each_window_its_own(),
            groups=None,
        )
    return prepared, network_of(study, prepared.shape)


def _released(folder: RunFolder, model: nn.Module) -> nn.Module:
    """The released model."""
    released = copy.deepcopy(model)
    try:
        released.load_state_dict(load(folder.weights.read_bytes()))
    except (OSError, RuntimeError, KeyError, ValueError, SafetensorError):
        raise UsageError(
            812,
            "the released weights are missing, damaged or another model's; audit the folder that "
            "training wrote",
            where=str(folder.weights),
        ) from None
    return released


def _plan(folder: RunFolder, study: Study, model: nn.Module) -> Plan | None:
    if study.privacy.mode == "none":
        return None
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return _decisions(folder).plan(study, parameters=parameters)


def _decisions(folder: RunFolder) -> Begun:
    """What the run decided before its first step; its plan is never solved for anew."""
    decided = folder.checkpoints / "begun.json"
    try:
        return msgspec.json.decode(decided.read_bytes(), type=Begun)
    except (OSError, msgspec.MsgspecError):
        raise UsageError(
            812,
            "this run's decisions are missing or damaged, so its plan cannot be audited; audit "
            "the folder that training wrote, not a copy of its public files",
            where=str(decided),
        ) from None


@dataclass(frozen=True)
class _Running:
    """What ran, rebuilt: enough to run it again with canaries."""

    study: Study
    plan: Plan
    prepared: Prepared
    model: nn.Module
    begun: Begun

    def audit(self, settings: Settings, finished: Finished, tell: Watch) -> MechanismAudit:
        """Canaries and battery on the real steps or rounds."""
        # Set-up releases are charged besides; the audited steps claim what steps cost.
        audited = replace(self.plan, steps=min(self.plan.steps, settings.steps), setup=())
        canaries = min(settings.canaries, self.plan.parameters)
        if self.plan.lot_size:  # they take the places of people, of whom half at least stay
            canaries = min(canaries, self.plan.population // 2)
        if canaries < FEWEST:
            canaries = 0  # none fit; the battery and the attacks on the model need none

        def progress(done: int, of: int) -> None:
            tell(f"mechanism: {canaries} canaries through real steps", done, of)

        # A seed that the card prints would give this noise away, and with it what it hides of
        # people: the direction of their sum, and how many there are.
        key = None if self.study.data.simulated else fresh_key()
        subject: Auditable
        if self.begun.kind == "central":
            subject = Subject(
                self.study,
                audited,
                self.prepared.train,
                self.prepared.task,
                self.model,
                progress=progress,
                key=key,
            )
        else:
            subject = Rounds(
                self.study,
                settings_of(self.study),
                self.begun,
                audited,
                self.prepared,
                self.model,
                progress=progress,
                key=key,
            )
        return audit_mechanism(
            subject,
            canaries=canaries,
            seed=settings.seed,
            view=settings.view,
            kept=finished.mechanism,
        )


def _untested(study: Study) -> str:
    """Why canaries do not fit into a run; "" if they do."""
    if study.federated is None:
        return ""
    settings = settings_of(study)
    if settings.local_steps > 1:
        return "its sites add noise in every step of their own, before anything is summed"
    if settings.secagg is not None:
        return (
            "its sums are masked; the same study without [federated.secagg] can be tested, all "
            "but its masks and their noise"
        )
    return ""


def _membership(
    model: nn.Module,
    study: Study,
    prepared: Prepared,
    settings: Settings,
    finished: Finished,
    tell: Watch,
) -> tuple[Attack, ...]:
    """Attacks on as many members as others, all windows of a person together."""
    generator = public_generator(settings.seed + 1)
    members = some(prepared.train, settings.people, generator)
    others = some(prepared.held_out, settings.people, generator)
    if not members.people or not others.people:
        return ()
    both = join(members, others)
    inside = np.arange(both.people) < members.people
    target = attacks.signals(model, prepared.task, both)
    found = [measure("loss", target[inside], target[~inside])]
    if settings.references:
        fresh = network_of(study, prepared.shape, seed=study.training.seed + 1)
        rows = halves(both.people, settings.references, seed=settings.seed)
        train = adam(seed=settings.seed)
        signals = reference_signals(
            fresh,
            prepared.task,
            both,
            rows,
            train,
            progress=lambda done: tell("membership: reference models", done, len(rows)),
            kept=finished.reference,
        )
        ratio = attacks.lira(target, signals, rows)
        share = attacks.rmia(target, signals, population=~inside)
        found.append(measure("lira", ratio[inside], ratio[~inside]))
        found.append(measure("rmia", share[inside], share[~inside]))
    return tuple(found)
