"""The sequential engine: one client after another, autograd, any module.

A client's update depends on the model it received, its windows and its own numbers alone. What a
module keeps from one client to the next is refused: `attributes` sees what lies in the module,
`Surroundings` what its code reaches beside it, and a client trained once more, after others, would
show what lies anywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.federated.engine.base import (
    Job,
    Trained,
    Visits,
    layout_of,
    trainable,
    visits,
)
from sequester.federated.messages import Vector
from sequester.gradients import checks
from sequester.gradients.randomness import kept
from sequester.gradients.surroundings import Surroundings
from sequester.gradients.verify import due
from sequester.sampling import Lot
from sequester.training.chance import Chance

Loss = Callable[[nn.Module, Lot], Tensor]
_ROUNDING = 1e-3
"""Of its norm, by which an update may differ when it is computed once more."""


class LoopEngine:
    """Trains each client as a reader would write it; what the other engines are measured by."""

    name = "loop"

    def __init__(
        self, model: nn.Module, loss: Loss, lot: Lot, *, chance: Chance | None = None
    ) -> None:
        """Take the module's shape and the clients' windows.

        Args:
            model: Its trainable parameters are overwritten while training.
            loss: Loss of each window, `(windows,)`; a step descends their mean.
            lot: All enrolled clients' windows; a client is the lot's person.
            chance: What layers draw, for each round and client; public numbers if not given.

        Raises:
            UsageError: SQ-612 for parameters that are not float32, SQ-401 for layers in which
                people would meet.
        """
        checks.refuse_mixing_layers(model)
        self._parameters = list(trainable(model).values())
        if any(p.dtype != torch.float32 for p in self._parameters):
            raise UsageError(612, "federated models are float32; convert the module with .float()")
        self._model, self._loss, self._lot = model, loss, lot
        self._chance, self._calls = chance or Chance.public(), 0
        self._offsets = lot.offsets.numpy()
        self.layout = layout_of(model)

    def train(self, job: Job) -> Trained:
        """Train every client of the job.

        Raises:
            UsageError: SQ-406 if the module or the loss carries something from client to client.
        """
        plan = visits(job, self._offsets)
        deltas = np.zeros((len(job.clients), self.layout.size), dtype=np.float32)
        steps = np.zeros(len(job.clients), dtype=np.int64)
        before = checks.contents(self._model, trainable=False), checks.attributes(self._model)
        around = Surroundings(self._model, self._loss)
        with kept():
            for row in range(len(job.clients)):
                deltas[row], steps[row] = self._client(job, plan, row)
            checks.refuse_written(self._model, before[0], trainable=False)
            checks.refuse_remembering(self._model, before[1])
            around.refuse_changed()
            self._again(job, plan, deltas)
        return Trained(deltas, steps, plan.windows)

    def _client(self, job: Job, plan: Visits, row: int) -> tuple[Vector, int]:
        """One client's update and how many steps it took."""
        start = job.start if job.start.ndim == 1 else job.start[row]
        correction = None if job.correction is None else self._split(job.correction[row])
        order = torch.from_numpy(plan.order[plan.offsets[row] : plan.offsets[row + 1]])
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._split(start), strict=True):
                parameter.copy_(value)
        self._chance.set(job.round, int(job.clients[row]))
        anchor = self._split(job.anchor)
        steps = self._descend(order, int(plan.windows[row]), job, anchor, correction)
        if not steps:
            return np.zeros(self.layout.size, dtype=np.float32), 0
        trained = [p.detach().numpy().reshape(-1) for p in self._parameters]
        return np.concatenate(trained) - start, steps

    def _again(self, job: Job, plan: Visits, deltas: Vector) -> None:
        """Train one client once more, at calls 1, 4, 16, …: others must not have changed it."""
        self._calls += 1
        number, several = due(self._calls), np.flatnonzero(plan.windows)
        if number is None or not len(several):
            return
        row = int(several[number % len(several)])
        again, _ = self._client(job, plan, row)
        norms = [float(np.linalg.norm(value.astype(np.float64))) for value in (again, deltas[row])]
        with np.errstate(invalid="ignore", over="ignore"):
            off = float(np.linalg.norm(again.astype(np.float64) - deltas[row]))
        if not any(map(math.isfinite, norms)) or off <= _ROUNDING * max(norms):
            return
        raise UsageError(
            406,
            "a client's update changed after others were trained, so the model carries something "
            "from person to person, outside its own attributes; keep it in a local variable",
        )

    def _descend(
        self,
        order: Tensor,
        windows: int,
        job: Job,
        anchor: list[Tensor],
        correction: list[Tensor] | None,
    ) -> int:
        work, steps = job.work, 0
        velocity = [torch.zeros_like(p) for p in self._parameters]
        for begin in range(0, len(order), max(windows, 1)):
            for at in range(begin, begin + windows, work.batch):
                rows = order[at : min(at + work.batch, begin + windows)]
                loss = self._loss(self._model, _rows(self._lot, rows)).mean()
                gradients = torch.autograd.grad(loss, self._parameters)
                with torch.no_grad():
                    for k, (parameter, gradient) in enumerate(
                        zip(self._parameters, gradients, strict=True)
                    ):
                        if correction is not None:
                            gradient = gradient + correction[k]
                        if work.proximal:
                            gradient = gradient + work.proximal * (parameter - anchor[k])
                        if work.momentum:
                            gradient = velocity[k].mul_(work.momentum).add_(gradient)
                        parameter.sub_(gradient, alpha=work.learning_rate)
                steps += 1
        return steps

    def _split(self, vector: np.ndarray) -> list[Tensor]:
        views = self.layout.views(np.ascontiguousarray(vector, dtype=np.float32))
        return [torch.from_numpy(view) for view in views.values()]


def _rows(lot: Lot, rows: Tensor) -> Lot:
    """Windows at `rows` as one person's lot."""
    return Lot(
        x=lot.x[rows],
        mask=lot.mask[rows],
        target=lot.target[rows],
        owner=torch.zeros(len(rows), dtype=torch.int64),
        people=1,
        categorical=None if lot.categorical is None else lot.categorical[rows],
    )
