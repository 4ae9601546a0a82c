"""Private gradients in a training loop that already exists.

    private = PrivateGradients(model, optimiser, release, steps=plan.steps, clip=plan.clip)
    for lot in lots:
        private.backward(loss, lot, clip)  # instead of loss(…).backward()
        optimiser.step()                   # as before, now checked

`release` adds the noise and divides by the expected lot size (`docs/gradients.md` shows it with
`mechanism.release`), so this room stays free of randomness.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sequester.core.errors import UsageError
from sequester.gradients.clipping import ClippingRule, as_rule
from sequester.gradients.engine import clipped_sum
from sequester.gradients.lots import Loss, LotLike
from sequester.gradients.result import ClippedSum

Release = Callable[[ClippedSum], dict[str, Tensor]]


class PrivateGradients:
    """Puts released gradients where an optimiser finds them, and guards its step.

    While this object lives, no optimiser steps the model's parameters but the one that was
    given, and that one only with the gradients of the newest release, bit for bit, once.

    Args:
        model: Left untouched but for `.grad` of its trainable parameters.
        optimiser: The one which will step; it must hold exactly the trainable parameters.
        release: Turns a clipped sum into noised mean gradients, by parameter name.
        steps: How many releases the budget was charged for.
        clip: The sensitivity that the noise of `release` is sized for; no rule may exceed it.

    Raises:
        UsageError: SQ-407 if the optimiser's parameters are not the model's trainable ones.
    """

    def __init__(
        self, model: nn.Module, optimiser: Optimizer, release: Release, *, steps: int, clip: float
    ) -> None:
        """Check that model and optimiser belong together, and watch every step from now on."""
        held = {id(p) for group in optimiser.param_groups for p in group["params"]}
        missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
        known = {id(p) for p in model.parameters() if p.requires_grad}
        if missing or held - known:
            raise UsageError(
                407,
                f"the optimiser must hold exactly the model's trainable parameters; it lacks "
                f"{missing[:3]} and holds {len(held - known)} others; build it from this model",
            )
        self._model, self._optimiser, self._release = model, optimiser, release
        self._left, self._clip = steps, clip
        # The gradients that were handed out and, since a sum may be added to in place, copies.
        self._ready: dict[str, tuple[Tensor, Tensor]] = {}
        watch = register_optimizer_step_pre_hook(_watcher(weakref.ref(self)))
        weakref.finalize(self, watch.remove)
        done = optimiser.register_step_post_hook(_spender(weakref.ref(self)))
        weakref.finalize(self, done.remove)

    def backward(self, loss: Loss, lot: LotLike, clip: float | ClippingRule) -> None:
        """Set each trainable parameter's `.grad` to the released gradient of the lot.

        Raises:
            UsageError: SQ-408 once `steps` releases were made, SQ-407 for a clip beyond the one
                that the noise is sized for.
        """
        rule = as_rule(clip)
        if not rule.sensitivity() <= self._clip * (1.0 + 1e-9):
            raise UsageError(
                407,
                f"one person could move this sum by {rule.sensitivity():g}, and the noise is sized "
                f"for {self._clip:g}; clip to that",
            )
        if self._left < 1:
            raise UsageError(
                408,
                "every step that the budget was charged for has been released; stop here, or "
                "plan and charge more steps before the next one",
            )
        self._ready = {}
        self._left -= 1
        released = self._release(clipped_sum(self._model, loss, lot, rule))
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                parameter.grad = released[name].to(parameter)
                self._ready[name] = (parameter.grad, parameter.grad.clone())

    def step(self) -> None:
        """Step the optimiser that was given and clear its gradients.

        Raises:
            UsageError: SQ-407 without a new `backward`, or if a released gradient was replaced
                or changed.
        """
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def _check(self, optimiser: Optimizer, arguments: Any) -> None:
        mine = {id(p) for p in self._model.parameters()}
        if optimiser is not self._optimiser:
            if any(id(p) in mine for group in optimiser.param_groups for p in group["params"]):
                raise UsageError(
                    407, "this is not the optimiser that was given; step that one, or drop this one"
                )
            return
        if any(callable(value) for value in arguments):
            raise UsageError(407, "a closure would step along raw gradients; step without one")
        if not self._ready:
            raise UsageError(407, "nothing was released since the last step; call backward first")
        for name, parameter in self._model.named_parameters():
            if not parameter.requires_grad:
                continue
            given, copy = self._ready.get(name, (None, None))
            grad = parameter.grad
            if grad is None or grad is not given or copy is None or not torch.equal(grad, copy):
                raise UsageError(
                    407,
                    f"the gradient of {name!r} is not the released one; do not call .backward() "
                    "or change .grad between release and step",
                )


def _watcher(of: weakref.ref[PrivateGradients]) -> Callable[..., None]:
    """Runs before each optimiser's step, whoever calls it."""

    def before(optimiser: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        private = of()
        if private is not None:
            private._check(optimiser, [*args[1:], *kwargs.values()])  # noqa: SLF001

    return before


def _spender(of: weakref.ref[PrivateGradients]) -> Callable[..., None]:
    """Runs after the given optimiser's step: a release is used once."""

    def after(optimiser: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        private = of()
        if private is not None:
            private._ready = {}  # noqa: SLF001

    return after
