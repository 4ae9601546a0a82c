"""The other side of the wire, simulated: a whole cohort answers its instructions at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sequester.federated import round as machine
from sequester.federated.algorithms import Algorithm, LocalWork, ServerState
from sequester.federated.algorithms.personal import FineTune, Personal
from sequester.federated.compression import Feedback
from sequester.federated.compression.codecs import Address
from sequester.federated.engine import Engine, Job, Trained
from sequester.federated.engine.base import fill
from sequester.federated.gate import people_of
from sequester.federated.messages import (
    Instruction,
    Layout,
    Reason,
    Rejection,
    Update,
    Vector,
    answer,
)
from sequester.gradients import ClippingRule, clipped_sum
from sequester.mechanism import Plan
from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training.chance import Chance

Tamper = Callable[[Update], Update | None]
"""What a hostile client does to its update; None is silence."""

Protect = Callable[[Instruction, Vector], Vector]
"""What a client does to its delta last, before it leaves: clipping and noise of its own."""


CHUNK_BYTES = 32 << 20
"""Deltas that exist at once while a cohort answers."""

COUNTS = ("people below the bound", "people")


def sums_layout(inner: Layout) -> Layout:
    """Of what a site sends: its sum in the model's layout, and its counts."""
    return Layout((*inner.names, *COUNTS), (*inner.shapes, (), ()), "float64")


def held_counts(below: int, people: int, most: int) -> tuple[int, int]:
    """Counts of a lot of `people` as the gate takes them, where a lot may hold more than `most`.

    What is released is `below - people / 2`, which one person moves by ½. It is held to ±`most`/2,
    which moves no two lots apart, and sent as two counts with that difference.
    """
    if people <= most:
        return below, people
    twice = min(max(2 * below - people, -most), most)
    shown = most - (most - twice) % 2
    return (twice + shown) // 2, shown


def part_of(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The arrays called `<name>.<rest>`, by their rest."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


@dataclass
class Devices:
    """Clients that train the model they receive and send what changed.

    Attributes:
        engine: Trains cohorts.
        work: Local work.
        algorithm: Adds its own to local gradients.
        seed: Public, of the visiting order.
        personal: What a client keeps.
        feedback: Compresses what leaves, with one residual for each client.
        tamper: Hostile clients, by position.
        protect: Makes each update private on its own, in placement "local".
        kept: Each client's own part of the model.
        bytes_sent: Bytes of updates on the wire so far, dense ones included.
    """

    engine: Engine
    work: LocalWork
    algorithm: Algorithm
    seed: int
    personal: Personal | None = None
    feedback: Feedback | None = None
    tamper: dict[int, Tamper] = field(default_factory=dict)
    protect: Protect | None = None
    kept: dict[int, Vector] = field(default_factory=dict)
    bytes_sent: int = 0

    @property
    def layout(self) -> Layout:
        """Of the deltas that are sent."""
        return self.engine.layout

    def answer(
        self, instructions: Sequence[Instruction], state: ServerState, clip: float
    ) -> Iterable[machine.Event]:
        """Train all clients that are asked, some at a time; one event for each.

        A delta does not depend on who else is trained beside it, so the number at a time is a
        matter of memory alone.
        """
        some = max(1, CHUNK_BYTES // (4 * self.layout.size))
        for at in range(0, len(instructions), some):
            yield from self._answer(instructions[at : at + some], state)

    def _answer(
        self, instructions: Sequence[Instruction], state: ServerState
    ) -> Iterable[machine.Event]:
        job = self._job(instructions, state)
        trained = self.engine.train(job)
        if self.personal is not None:
            self._personalise(job, trained, instructions)
        for row, instruction in enumerate(instructions):
            yield self._event(instruction, trained, row)

    def settle(self, number: int, clients: Sequence[int]) -> None:
        """Nothing: simulated clients keep what they sent, whatever becomes of it."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Each client's own part and residual."""
        kept = {f"kept.{client}": value for client, value in self.kept.items()}
        residuals = self.feedback.residuals if self.feedback else {}
        return kept | {f"residual.{client}": value for client, value in residuals.items()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take both back."""
        self.kept = {int(client): value for client, value in part_of(arrays, "kept").items()}
        if self.feedback is not None:
            residuals = part_of(arrays, "residual").items()
            self.feedback.residuals = {int(client): value for client, value in residuals}

    def _job(self, instructions: Sequence[Instruction], state: ServerState) -> Job:
        clients = np.array([item.client for item in instructions], dtype=np.int64)
        shared = state.model.astype(np.float32)
        start: Vector = shared
        if self.personal is not None and not isinstance(self.personal, FineTune):
            own = [self.personal.start(shared, self.kept.get(c)) for c in clients.tolist()]
            start = np.stack(own)
        corrections = [self.algorithm.correction(state, c) for c in clients.tolist()]
        present = [c for c in corrections if c is not None]
        return Job(
            clients=clients,
            start=start,
            anchor=shared,
            work=self.algorithm.local(self.work),
            seed=self.seed,
            round=instructions[0].round,
            correction=np.stack(present) if present else None,
        )

    def _personalise(self, job: Job, trained: Trained, instructions: Sequence[Instruction]) -> None:
        """Move each client's own part; deltas become what is shared."""
        personal = self.personal
        if personal is None:
            return
        own = trained.deltas
        if isinstance(personal, FineTune):
            pulled = replace(self.work, proximal=personal.pull)
            clients = job.clients.tolist()
            starts = np.stack([personal.start(job.anchor, self.kept.get(c)) for c in clients])
            second = Job(job.clients, starts, job.anchor, pulled, job.seed, job.round)
            own = self.engine.train(second).deltas
        for row, instruction in enumerate(instructions):
            client = instruction.client
            self.kept[client] = personal.keep(job.anchor, self.kept.get(client), own[row])
            trained.deltas[row] = personal.share(trained.deltas[row])

    def _event(self, instruction: Instruction, trained: Trained, row: int) -> machine.Event:
        client = instruction.client
        delta = trained.deltas[row]
        if self.protect is not None:  # silence would tell that a client has no data
            delta = self.protect(instruction, delta)
        elif not trained.steps[row]:
            return machine.Lost(client, Reason.ZERO)
        if self.feedback is None:
            self.bytes_sent += delta.nbytes
        else:
            address = Address(instruction.run, instruction.round, client)
            if not np.isfinite(delta).all():  # a codec must not hide that training diverged
                return machine.Lost(client, Reason.NOT_FINITE)
            data = self.feedback.encode(delta, address)
            self.bytes_sent += len(data)
            try:
                delta = self.feedback.decode(data, address)
            except Rejection as rejection:
                return machine.Lost(client, rejection.reason)
        update: Update | None = answer(
            instruction,
            self.layout.views(delta),
            # Under local privacy the noisy delta is all that leaves: the true counts would tell
            # how many records a person has.
            steps=1 if self.protect is not None else max(1, int(trained.steps[row])),
            weight=1.0 if self.protect is not None else max(1.0, float(trained.windows[row])),
        )
        if update is not None and client in self.tamper:
            update = self.tamper[client](update)
        return machine.Lost(client) if update is None else machine.Arrived(update, 0.0)


@dataclass
class Silos:
    """Sites that hold many people: each clips its people's gradients and sends their sum.

    One round is one step of DP-SGD over all people of all sites: every site flips its own
    people's coins, so the union is a Poisson lot. The sum is sent on the grid of the plan in
    float64, exactly, so that neither addition nor the number of sites rounds anything.

    Attributes:
        model: Scratch module; its parameters are overwritten.
        task: The loss.
        sites: Each site's people.
        samplers: Each site's coins.
        plan: Its grid is used.
        rule: Clipping rule for the bound in force.
        layout: Of what is sent.
        chance: What layers draw, for each round and site.
        bytes_sent: Bytes of updates on the wire so far.
    """

    model: nn.Module
    task: Task
    sites: Sequence[Lot]
    samplers: Sequence[PoissonSampler]
    plan: Plan
    rule: Callable[[nn.Module, float], ClippingRule]
    layout: Layout
    chance: Chance
    bytes_sent: int = 0

    def answer(
        self, instructions: Sequence[Instruction], state: ServerState, clip: float
    ) -> Iterable[machine.Event]:
        """Each site's clipped sum of negative gradients; with adaptive clipping, its counts."""
        fill(self.model, state.model.astype(np.float32))
        rule = self.rule(self.model, clip)
        grid = self.plan.grid(clip)
        for instruction in instructions:
            site = instruction.client
            lot = self.sites[site].pick(self.samplers[site].draw(instruction.round))
            with self.chance.at(instruction.round, site):
                clipped = clipped_sum(self.model, self.task.loss, lot, rule)
            whole = torch.cat(
                [value.reshape(-1).to(torch.float64) for value in clipped.sum.values()]
            )
            counts = np.zeros(2)  # how many took part leaves only where it is privatised
            if self.plan.adaptive is not None:
                below = int((clipped.norms <= clip).sum())
                counts[:] = held_counts(below, lot.people, people_of(self.plan))
            reach = people_of(self.plan) * clip
            norm = float(whole.norm())
            if norm > reach:  # into the ball, which moves no two sums apart; see the gate
                whole *= reach / norm
            snapped = -torch.round(whole / grid).numpy() * grid
            vector: NDArray[np.float64] = np.concatenate([snapped, counts])
            self.bytes_sent += vector.nbytes
            yield machine.Arrived(answer(instruction, self.layout.views(vector)), 0.0)

    def settle(self, number: int, clients: Sequence[int]) -> None:
        """Nothing: a site keeps nothing between rounds."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Nothing."""
