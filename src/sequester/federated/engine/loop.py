"""The sequential engine: one client after another, autograd, any module."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.federated.engine.base import (
    Job,
    Trained,
    layout_of,
    trainable,
    visits,
)
from sequester.gradients.checks import refuse_mixing_layers
from sequester.sampling import Lot

Loss = Callable[[nn.Module, Lot], Tensor]


class LoopEngine:
    """Trains each client as a reader would write it; what the other engines are measured by."""

    name = "loop"

    def __init__(self, model: nn.Module, loss: Loss, lot: Lot) -> None:
        """Take the module's shape and the clients' windows.

        Args:
            model: Its trainable parameters are overwritten while training.
            loss: Loss of each window, `(windows,)`; a step descends their mean.
            lot: All enrolled clients' windows; a client is the lot's person.

        Raises:
            UsageError: SQ-612 for parameters that are not float32.
        """
        refuse_mixing_layers(model)
        self._parameters = list(trainable(model).values())
        if any(p.dtype != torch.float32 for p in self._parameters):
            raise UsageError(612, "federated models are float32; convert the module with .float()")
        self._model, self._loss, self._lot = model, loss, lot
        self._offsets = lot.offsets.numpy()
        self.layout = layout_of(model)

    def train(self, job: Job) -> Trained:
        """Train every client of the job."""
        plan = visits(job, self._offsets)
        deltas = np.zeros((len(job.clients), self.layout.size), dtype=np.float32)
        steps = np.zeros(len(job.clients), dtype=np.int64)
        anchor = self._split(job.anchor)
        for row in range(len(job.clients)):
            start = job.start if job.start.ndim == 1 else job.start[row]
            correction = None if job.correction is None else self._split(job.correction[row])
            order = torch.from_numpy(plan.order[plan.offsets[row] : plan.offsets[row + 1]])
            with torch.no_grad():
                for parameter, value in zip(self._parameters, self._split(start), strict=True):
                    parameter.copy_(value)
            steps[row] = self._descend(order, int(plan.windows[row]), job, anchor, correction)
            if steps[row]:
                trained = [p.detach().numpy().reshape(-1) for p in self._parameters]
                deltas[row] = np.concatenate(trained) - start
        return Trained(deltas, steps, plan.windows)

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
