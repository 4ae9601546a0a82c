"""Watch clients that make their own updates private: placement "local".

Each release is a mechanism of its own, so nothing is summed: the observer notes what every client
clips and what it sends. A canary client sends its direction or, in the place of that, the
opposite one, since such a claim is about exchanging all data of one client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sequester.audit.mechanism.canaries import Design
from sequester.audit.mechanism.notebook import Observation
from sequester.audit.mechanism.trace import Floats, Trace
from sequester.core.rng import public_generator
from sequester.federated.clients import Devices
from sequester.federated.messages import Instruction, Vector
from sequester.federated.simulate import Simulation
from sequester.mechanism import Plan

_RELEASES = 400  # whose noise is looked at: chosen among all clients and rounds
_FEWEST = 4  # of each round


def deviation(plan: Plan) -> float:
    """Noise of a client's release in clipping bounds: an exchange moves it by two of them."""
    return 2.0 * plan.noise_multiplier


@dataclass
class Releases:
    """Notes what clients release.

    Attributes:
        plan: What each client is promised.
        design: The canaries.
        simulation: The rounds, whose clients are watched.
        people: Clients beside the canaries.
        seed: Chooses whose noise is looked at.
    """

    plan: Plan
    design: Design
    simulation: Simulation
    people: int
    seed: int
    _notes: dict[int, tuple[Vector, Vector]] = field(default_factory=dict)
    _rows: list[tuple[Tensor, float, float]] = field(default_factory=list)
    _signals: list[Floats] = field(default_factory=list)
    _released: list[np.ndarray] = field(default_factory=list)

    def watch(self, devices: Devices) -> None:
        """Note what goes into the real protection of `devices` and what comes out."""
        protect = devices.protect
        if protect is None:
            raise TypeError("only clients that protect their own updates are watched here")

        def noting(instruction: Instruction, delta: Vector) -> Vector:
            released = protect(instruction, delta)
            self._notes[instruction.client] = (delta.copy(), released.copy())
            return released

        devices.protect = noting

    def round(self) -> None:
        """One real round, and what everybody released."""
        self._notes.clear()
        self.simulation.run_round()
        everybody = self.people + len(self.design.inside)
        there = np.zeros(everybody, dtype=bool)
        there[list(self._notes)] = True
        self._released.append(there)
        canaries = [self._notes[self.people + number][1] for number in self.design.inside]
        at = zip(canaries, self.design.coordinate, strict=True)
        self._signals.append(np.array([one[where] for one, where in at], float) / self.plan.clip)
        each = max(_FEWEST, _RELEASES // self.plan.steps)
        chosen = public_generator(self.seed + len(self._released)).permutation(sorted(self._notes))
        self._rows += [self._row(client) for client in chosen[:each].tolist()]

    def close(self, *, charged: int, moved: Tensor) -> Observation:
        """Everything as arrays; `moved` is final minus initial weights, `(parameters,)`."""
        names, offsets = self.design.names, self.design.offsets
        noise, along, presence = zip(*self._rows, strict=True)
        trace = Trace(
            residual=torch.stack(noise).numpy(),
            tensors={n: (offsets[i], offsets[i + 1]) for i, n in enumerate(names)},
            signal=np.array(along),
            presence=np.array(presence),
            drawn=np.array(self._released),
            rate=self.plan.sampling_rate,
            steps_charged=charged,
            steps_released=len(self._released),
        )
        multipliers = np.full(len(self._signals), deviation(self.plan))
        shift = moved.double()[torch.from_numpy(self.design.coordinate)].numpy()
        return Observation(trace, np.array(self._signals), multipliers, shift, self.design)

    def _row(self, client: int) -> tuple[Tensor, float, float]:
        """A release's noise, along the clipped update, and at the client's canary if it is one."""
        given, released = (torch.from_numpy(v.astype(np.float64)) for v in self._notes[client])
        length = float(given.norm())
        clipped = given * min(1.0, self.plan.clip / length) if length > 0 else given
        noise = (released - clipped) / (deviation(self.plan) * self.plan.clip)
        along = float(noise @ given) / length if length > 0 else math.nan
        number = client - self.people
        if number < 0:
            return noise, along, math.nan
        sign, where = self.design.sign[number], int(self.design.coordinate[number])
        return noise, along, float(sign * noise[where])
