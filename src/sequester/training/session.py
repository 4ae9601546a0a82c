"""One process's part of a run: data, model, loop and state, put together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from torch import nn

from sequester.accounting import Event
from sequester.core.errors import UsageError
from sequester.core.rng import Keystream
from sequester.gradients import checks
from sequester.mechanism import NoiseStream, Plan, Position
from sequester.sampling import PoissonSampler
from sequester.sequences import People
from sequester.training.chance import Chance
from sequester.training.checkpoint import State, load_state, save_state
from sequester.training.dataset import Prepared, prepare
from sequester.training.folder import POSITION, RunFolder
from sequester.training.loop import Loop, Watch
from sequester.training.monitor import Monitor
from sequester.training.network import network_of
from sequester.training.optimisers import Average, Optimiser
from sequester.training.resumption import Begun
from sequester.training.setup import estimated, resolve
from sequester.training.study import Study
from sequester.training.study_file import to_toml
from sequester.training.twin import TwinLoop


@dataclass
class Session:
    """Everything a run needs in memory.

    Attributes:
        folder: Where it writes.
        study: With private ranges and vocabularies filled in.
        begun: What was decided at the start.
        people: Everybody who was read.
        key: The run's secret.
        prepared: Lots, task and shape.
        plan: None without privacy.
        state: Weights and progress.
        monitor: What the operator may see.
        happened: What ran, where that is known more closely than the plan's worst case.
        constant: Digests of what no step moves: buffers and frozen weights as they were built.
        judged: What the figure of merit is computed of: the released model, or what people get
            beside it; None for no figure.
    """

    folder: RunFolder
    study: Study
    begun: Begun
    people: People
    key: bytes
    prepared: Prepared
    plan: Plan | None
    state: State
    monitor: Monitor
    happened: Event | None = None
    constant: dict[str, bytes] = field(init=False)
    judged: nn.Module | None = field(init=False)

    def __post_init__(self) -> None:
        """Note what must not change; judge the released model, unless somebody says otherwise."""
        self.constant = checks.contents(self.state.model, trainable=False)
        self.judged = self.state.model

    @classmethod
    def open(
        cls, folder: RunFolder, study: Study, begun: Begun, people: People, key: bytes
    ) -> Session:
        """Estimate what is to be estimated, prepare data and model, load the checkpoint."""
        plan = begun.plan(study)
        if plan is not None and estimated(study):
            # A crash between here and the rewritten study repeats this very noise on the very
            # same data (their fingerprint is checked), which reveals nothing more.
            private = study.privacy.insecure_test_seed is None
            stream = NoiseStream(key, f"{begun.run}/setup", private=private)
            study = resolve(study, people, plan, stream)
        prepared = prepare(study, people, key=derive(key, "windows"))
        if study.unit.kind != "person":
            prepared = replace(prepared, train=prepared.train.each_window_its_own(), groups=None)
        _require_answers(prepared)
        model = network_of(study, prepared.shape)
        parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if plan is not None:
            plan = begun.plan(study, parameters=parameters)
        state = State(
            model=model,
            optimiser=Optimiser(study.training),
            average=Average(study.training.average),
            step=0,
            applied=0,
            clip=study.privacy.clip,
        )
        session = cls(
            folder, study, begun, people, key, prepared, plan, state, Monitor(folder.private)
        )
        load_state(folder.checkpoints, state, study=session.study_digest(), data=begun.data)
        return session

    def study_digest(self) -> str:
        """What a checkpoint must have been made with."""
        return hashlib.sha256(to_toml(self.study).encode()).hexdigest()

    def save(self, state: State) -> None:
        """Write the checkpoint."""
        save_state(self.folder.checkpoints, state, study=self.study_digest(), data=self.begun.data)

    def stream(self, purpose: str) -> NoiseStream:
        """Noise for one purpose; the steps' own has its position on disk."""
        private = self.study.privacy.insecure_test_seed is None
        if purpose == "steps":
            position = Position(self.folder.checkpoints / POSITION)
            if position.next < self.state.step:
                raise UsageError(
                    503,
                    "the position of the noise is lost or behind the checkpoint, so that noise "
                    "could be drawn twice; start a new run, the old charge stays",
                    where=str(self.folder.checkpoints),
                )
            return NoiseStream(self.key, self.begun.run, position=position, private=private)
        return NoiseStream(self.key, f"{self.begun.run}/{purpose}", private=private)

    def chance(self) -> Chance:
        """What the model's layers draw in this run."""
        return Chance.of(self.key, self.begun.run)

    def run(self, watch: Watch) -> bool:
        """Run the remaining steps; False if interrupted."""
        sampler = PoissonSampler(
            self.prepared.train.people,
            self.study.training.sampling_rate,
            Keystream(self.key, self.begun.run, "lots"),
        )
        train, task = self.prepared.train, self.prepared.task
        loop: Loop | TwinLoop
        if self.plan is None:
            loop = TwinLoop(self.study, train, task, sampler, self.monitor, self.chance())
        else:
            loop = Loop(
                study=self.study,
                plan=self.plan,
                train=train,
                task=task,
                sampler=sampler,
                stream=self.stream("steps"),
                monitor=self.monitor,
                groups=self.prepared.groups,
                chance=self.chance(),
            )
        return loop.run(self.state, save=self.save, watch=watch)

    def ran(self) -> Event | None:
        """The event of what ran so far, lost draws included; None without privacy."""
        return None if self.plan is None else self.happened or self.plan.event(self.state.step)


def derive(key: bytes, purpose: str) -> bytes:
    """A key of its own for one purpose."""
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=32).digest()


def _require_answers(prepared: Prepared) -> None:
    if not len(prepared.train.owner):
        raise UsageError(
            506,
            "no window of any training person has an answer to learn from; check data.label, "
            "data.window and data.horizon",
        )
