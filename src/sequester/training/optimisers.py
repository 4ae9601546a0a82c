"""What is done with a private update: optimisers, schedules and averages of weights.

All of it is post-processing: it may depend on anything released before and costs nothing.
State lives in plain tensors by name, so that a checkpoint is a flat safetensors file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sequester.training.study import Training

_BETA_MEAN, _BETA_SQUARE, _ADAM_FLOOR = 0.9, 0.999, 1e-8


def learning_rate(training: Training, step: int, steps: int) -> float:
    """The step length at `step` of `steps`: a warm-up, then the schedule's decay."""
    if step < training.warmup:
        return training.learning_rate * (step + 1) / (training.warmup + 1)
    done = (step - training.warmup) / max(1, steps - training.warmup)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }[training.schedule]
    return training.learning_rate * factor


@dataclass
class Optimiser:
    """SGD with momentum, or Adam, with decoupled weight decay.

    Sources: Polyak 1964; Kingma and Ba 2015; Loshchilov and Hutter 2019.

    Attributes:
        training: The study's section; decides kind and constants.
        state: Tensors by `slot.parameter`.
        updates: How many updates were applied.
    """

    training: Training
    state: dict[str, Tensor] = field(default_factory=dict)
    updates: int = 0

    @torch.no_grad()
    def apply(self, model: nn.Module, update: dict[str, Tensor], rate: float) -> None:
        """Move the weights of `model` along the private mean gradient `update`."""
        self.updates += 1
        for name, parameter in model.named_parameters():
            if name not in update:
                continue
            gradient = update[name].to(parameter.dtype)
            if self.training.weight_decay:
                parameter.mul_(1.0 - rate * self.training.weight_decay)
            move = self._sgd if self.training.optimizer == "sgd" else self._adam
            parameter.sub_(move(name, gradient), alpha=rate)

    def _slot(self, slot: str, name: str, like: Tensor) -> Tensor:
        return self.state.setdefault(f"{slot}.{name}", torch.zeros_like(like))

    def _sgd(self, name: str, gradient: Tensor) -> Tensor:
        if not self.training.momentum:
            return gradient
        velocity = self._slot("velocity", name, gradient)
        return velocity.mul_(self.training.momentum).add_(gradient)

    def _adam(self, name: str, gradient: Tensor) -> Tensor:
        mean = self._slot("mean", name, gradient)
        square = self._slot("square", name, gradient)
        mean.mul_(_BETA_MEAN).add_(gradient, alpha=1 - _BETA_MEAN)
        square.mul_(_BETA_SQUARE).addcmul_(gradient, gradient, value=1 - _BETA_SQUARE)
        mean_hat = mean / (1 - _BETA_MEAN**self.updates)
        square_hat = square / (1 - _BETA_SQUARE**self.updates)
        return mean_hat / (square_hat.sqrt() + _ADAM_FLOOR)


@dataclass
class Average:
    """Exponential average of weights, corrected for its start; less noisy than the last ones.

    Attributes:
        decay: 0 keeps the last weights.
        state: Uncorrected averages by parameter name.
        updates: How many weights went in.
    """

    decay: float
    state: dict[str, Tensor] = field(default_factory=dict)
    updates: int = 0

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Take in the weights after an update."""
        self.updates += 1
        if not self.decay:
            return
        for name, parameter in model.named_parameters():
            mean = self.state.setdefault(name, torch.zeros_like(parameter))
            mean.mul_(self.decay).add_(parameter, alpha=1.0 - self.decay)

    @torch.no_grad()
    def write_into(self, model: nn.Module) -> None:
        """Replace the weights of `model` by their average."""
        if not self.decay or not self.updates:
            return
        for name, parameter in model.named_parameters():
            parameter.copy_(self.state[name] / (1.0 - self.decay**self.updates))
