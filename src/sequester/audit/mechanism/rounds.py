"""Run real federated rounds with canaries among the people, and write down what they release.

cross-silo    canaries are persons of a site, with windows, before clipping, as in central training
cross-device  canaries are whole clients whose one update is a canary: Andrew et al. 2023
              (arXiv:2302.03098), with orthogonal directions in place of random ones, so that they
              do not disturb each other in small models; where cohorts have a fixed size, which
              hides an exchange, every canary is there and points one way or the other
local         the same, of each client's own release: `releases`

The server's state machine, gate, clipping, sum, noise and algorithm are the real ones. The
observer notes what the algorithm is given and what clients sent, and adds the latter up itself.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sequester.audit.mechanism.canaries import LENGTH, CanaryLot, CanaryTask, Design
from sequester.audit.mechanism.notebook import (
    Contrast,
    Notebook,
    Observation,
    Seen,
    noise_multiplier,
)
from sequester.audit.mechanism.observe import Progress
from sequester.audit.mechanism.reference import Reference
from sequester.audit.mechanism.releases import Releases, deviation
from sequester.core.rng import key_from_test_seed
from sequester.federated import round as machine
from sequester.federated.algorithms import ServerState
from sequester.federated.assemble import simulation_of
from sequester.federated.clients import Devices, Silos
from sequester.federated.gate import Accepted, admit
from sequester.federated.messages import Instruction, Rejection, Sum, answer
from sequester.federated.settings import Federated
from sequester.federated.simulate import Crowd, Simulation
from sequester.federated.sites import names_of_sites
from sequester.mechanism import Plan
from sequester.sampling import Lot
from sequester.training import Study
from sequester.training.checkpoint import State
from sequester.training.dataset import Prepared
from sequester.training.folder import RunFolder
from sequester.training.loop import rule_of
from sequester.training.monitor import Monitor
from sequester.training.optimisers import Average, Optimiser
from sequester.training.resumption import Begun
from sequester.training.session import Session

# Rounds work on prepared lots; nothing of a session reads the table again.
_NOBODY: Any = None


@dataclass(frozen=True)
class Rounds:
    """What is audited: real rounds, as a study sets them up.

    Attributes:
        study: With its `[federated]` part.
        settings: That part.
        begun: What the run decided.
        plan: What is charged for the audited rounds.
        prepared: Clients, task and sites.
        model: Initial weights; copied, never changed.
        progress: Told after every round.
        key: Of lots and noise, where people are real; None takes them from the audit's seed.
    """

    study: Study
    settings: Federated
    begun: Begun
    plan: Plan
    prepared: Prepared
    model: nn.Module
    progress: Progress = lambda done, of: None
    key: bytes | None = field(default=None, repr=False)

    @property
    def what(self) -> str:
        """Is run, in words."""
        kind = "persons" if self.settings.placement == "cross-silo" else "clients"
        return f"{self.settings.placement} rounds with canary {kind}"

    @property
    def contrast(self) -> Contrast:
        """A canary takes part or not, or one of two that point either way does."""
        if self.settings.placement == "local":
            return Contrast(deviation(self.plan), exchange=True)
        return Contrast(noise_multiplier(self.plan), exchange=self.plan.lot_size > 0)

    def observe(self, *, canaries: int, windows: int, seed: int) -> Observation:
        """Run the plan's rounds with canaries and take them apart."""
        sites = self.settings.placement == "cross-silo"
        exchange = self.contrast.exchange
        design = Design.draw(
            self.model, canaries, windows=windows if sites else 0, seed=seed, exchange=exchange
        )
        people = self.prepared.train
        if self.plan.lot_size:  # exactly as many to draw from as the rate that is charged says
            people = people.select(0, self.plan.population - canaries)
        everybody = CanaryLot.of(people, design)
        with tempfile.TemporaryDirectory() as folder:
            session = self._session(Path(folder), everybody, design, seed)
            simulation = simulation_of(session, self.settings)
            if self.settings.placement == "local":
                return self._releases(simulation, people.people, design, seed)
            given: list[Sum] = []
            simulation.algorithm = _Noting(simulation.algorithm, given)
            watcher: _Sites | _Clients
            if sites:
                watcher = _Sites(self, design, simulation, session, seed)
            else:
                watcher = _Clients(self, design, simulation, people.people)
            start = simulation.state.model.copy()
            for _ in range(self.plan.steps):
                given.clear()
                watcher.round(given)
                self.progress(simulation.next_round, self.plan.steps)
        moved = watcher.sign * torch.from_numpy(simulation.state.model - start)
        return watcher.notebook.close(
            charged=simulation.next_round, gaps=watcher.gaps, moved=-moved
        )

    def _releases(
        self, simulation: Simulation, people: int, design: Design, seed: int
    ) -> Observation:
        """Rounds whose clients make their own updates private."""
        devices = simulation.crowd
        if not isinstance(devices, Devices):
            raise TypeError("only single clients make their own updates private here")
        releases = Releases(self.plan, design, simulation, people, seed)
        releases.watch(devices)
        simulation.crowd = _Crowd(devices, people, design, LENGTH * self.plan.clip)
        start = simulation.state.model.copy()
        for _ in range(self.plan.steps):
            releases.round()
            self.progress(simulation.next_round, self.plan.steps)
        moved = torch.from_numpy(simulation.state.model - start)
        return releases.close(charged=simulation.next_round, moved=moved)

    def _session(self, folder: Path, everybody: Lot, design: Design, seed: int) -> Session:
        """A session of the audit's own: real parts, an empty folder, an audit's key."""
        groups, task = self.prepared.groups, self.prepared.task
        if self.settings.placement == "cross-silo" and groups is not None:
            names = np.unique(groups)
            task = CanaryTask.of(task, design, self.model, LENGTH * self.plan.clip)
            more = names[np.arange(len(design.inside)) % len(names)]
            groups = np.concatenate([groups, more])
        run = RunFolder(folder)
        run.checkpoints.mkdir()
        run.private.mkdir()
        model = copy.deepcopy(self.model)
        training = self.study.training
        state = State(model, Optimiser(training), Average(0.0), 0, 0, self.plan.clip)
        return Session(
            folder=run,
            study=self.study,
            begun=self.begun,
            people=_NOBODY,
            key=self.key or key_from_test_seed(seed),
            prepared=replace(self.prepared, train=everybody, task=task, groups=groups),
            plan=self.plan,
            state=state,
            monitor=Monitor(run.private),
        )


@dataclass
class _Noting:
    """An algorithm that also keeps the directions it is given."""

    real: Any
    given: list[Sum]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def apply(self, state: ServerState, direction: Sum) -> None:
        self.given.append(direction.copy())
        self.real.apply(state, direction)


@dataclass
class _Sites:
    """Watches sites that send clipped sums of their people's gradients."""

    rounds: Rounds
    design: Design
    simulation: Simulation
    session: Session
    seed: int
    sign: float = -1.0  # sites send what the model moves along: minus the gradient
    notebook: Notebook = field(init=False)

    def __post_init__(self) -> None:
        people = self.rounds.prepared.train
        self.notebook = Notebook(self.rounds.plan, self.design, people.people)
        task = self.rounds.prepared.task
        self._reference = Reference(people, task.loss, self.design.names, self.seed)
        silos, groups = self.simulation.crowd, self.session.prepared.groups
        if not isinstance(silos, Silos) or groups is None:
            raise TypeError("only sites that send sums are watched here")
        watched = [replace(lot, picked=[]) for lot in silos.sites if isinstance(lot, CanaryLot)]
        silos.sites = watched
        self._sites: Sequence[CanaryLot] = watched
        names = names_of_sites(groups, self.rounds.settings.sites)
        self._where = [np.flatnonzero(groups == name) for name in names]

    @property
    def gaps(self) -> list[float]:
        return self._reference.gaps

    def round(self, given: list[Sum]) -> None:
        plan, clip = self.rounds.plan, self.simulation.clip
        for lot in self._sites:
            (lot.picked or []).clear()
        before = copy.deepcopy(self.session.state.model)
        _load(before, self.simulation.state.model)
        self.simulation.run_round()
        drawn = [
            where[lot.picked[0]]
            for where, lot in zip(self._where, self._sites, strict=True)
            if lot.picked
        ]
        positions = np.sort(np.concatenate([np.empty(0, np.int64), *drawn]))
        rule = rule_of(self.rounds.study, before, clip)
        people, norms = self._reference.sum(
            before, rule, positions[positions < self.notebook.people]
        )
        self.notebook.write(
            Seen(
                drawn=positions,
                clip=clip,
                rule=rule,
                people=people,
                below=int((norms <= clip).sum()) - 0.5 * len(positions),
                released=_sums(given, self.sign * plan.expected_lot),
                next_clip=self.simulation.clip,
            )
        )


@dataclass
class _Clients:
    """Watches single clients' updates; canaries answer instructions themselves."""

    rounds: Rounds
    design: Design
    simulation: Simulation
    people: int
    sign: float = 1.0
    gaps: list[float] = field(default_factory=list)
    notebook: Notebook = field(init=False)

    def __post_init__(self) -> None:
        self.notebook = Notebook(self.rounds.plan, self.design, self.people)
        length = LENGTH * self.rounds.plan.clip
        self._crowd = _Crowd(self.simulation.crowd, self.people, self.design, length)
        self.simulation.crowd = self._crowd

    def round(self, given: list[Sum]) -> None:
        plan, clip = self.rounds.plan, self.simulation.clip
        self._crowd.asked.clear()
        self._crowd.events.clear()
        self.simulation.run_round()
        accepted = self._accepted()
        weights = self.simulation.weighting.raw(accepted)
        total = torch.zeros(self.design.offsets[-1], dtype=torch.float64)
        below = 0
        for update, weight in zip(accepted, weights.tolist(), strict=True):
            delta = torch.from_numpy(update.delta.astype(np.float64))
            norm = float(delta.norm())
            total += delta * (min(1.0, weight) * min(1.0, clip / norm))
            below += norm <= clip
        drawn = np.array(sorted(self._crowd.asked), dtype=np.int64)
        canaries = int((drawn >= self.notebook.people).sum())
        self.notebook.write(
            Seen(
                drawn=drawn,
                clip=clip,
                rule=rule_of(self.rounds.study, self.rounds.model, clip),
                people=total,
                below=below - 0.5 * (len(accepted) + canaries),
                released=_sums(given, self.sign * plan.expected_lot),
                next_clip=self.simulation.clip,
            )
        )

    def _accepted(self) -> list[Accepted]:
        """What a gate of our own lets through, of the people alone."""
        found = []
        for event in self._crowd.events:
            if isinstance(event, machine.Arrived):
                try:
                    update = admit(event.update, self._crowd.layout, self.simulation.limits)
                except Rejection:
                    continue
                found.append(update)
        return found


@dataclass
class _Crowd:
    """The real crowd, and canary clients beside it."""

    real: Crowd
    people: int
    design: Design
    length: float
    asked: list[int] = field(default_factory=list)
    events: list[machine.Event] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def answer(
        self, instructions: Sequence[Instruction], state: ServerState, clip: float
    ) -> Iterable[machine.Event]:
        self.asked += [instruction.client for instruction in instructions]
        real = [one for one in instructions if one.client < self.people]
        for event in self.real.answer(real, state, clip):
            self.events.append(event)
            yield event
        for one in instructions:
            if one.client >= self.people:
                yield machine.Arrived(self._canary(one), 0.0)

    def _canary(self, instruction: Instruction) -> Any:
        layout = self.real.layout
        update = np.zeros(layout.size, dtype=np.float32)
        number = self.design.inside[instruction.client - self.people]
        update[self.design.coordinate[number]] = self.length * self.design.sign[number]
        if isinstance(self.real, Devices) and self.real.protect is not None:
            update = self.real.protect(instruction, update)
        return answer(instruction, layout.views(update), steps=1, weight=1e6)


def _sums(given: list[Sum], factor: float) -> list[Tensor]:
    return [torch.from_numpy(direction * factor) for direction in given]


def _load(model: nn.Module, vector: Sum) -> None:
    """The float32 model that clients receive."""
    flat, at = torch.from_numpy(vector.astype(np.float32)), 0
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
