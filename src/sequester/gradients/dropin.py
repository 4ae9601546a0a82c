"""Private gradients in a training loop that already exists.

    private = PrivateGradients(model, optimiser, release)   # instead of nothing
    for lot in lots:
        private.backward(loss, lot, clip)                   # instead of loss(…).backward()
        private.step()                                      # instead of optimiser.step()

`release` adds the noise and divides by the expected lot size (`mechanism` makes one), so this
room stays free of randomness.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer

from sequester.core.errors import UsageError
from sequester.gradients.clipping import ClippingRule
from sequester.gradients.engine import clipped_sum
from sequester.gradients.lots import Loss, LotLike
from sequester.gradients.result import ClippedSum

Release = Callable[[ClippedSum], dict[str, Tensor]]


class PrivateGradients:
    """Puts released gradients where an optimiser finds them, and nothing else.

    Args:
        model: Left untouched but for `.grad` of its trainable parameters.
        optimiser: The one which will step; it must hold exactly the trainable parameters.
        release: Turns a clipped sum into noised mean gradients, by parameter name.

    Raises:
        UsageError: SQ-407 if the optimiser's parameters are not the model's trainable ones.
    """

    def __init__(self, model: nn.Module, optimiser: Optimizer, release: Release) -> None:
        """Check that model and optimiser belong together."""
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
        self._ready: dict[str, Tensor] | None = None

    def backward(self, loss: Loss, lot: LotLike, clip: float | ClippingRule) -> None:
        """Set each trainable parameter's `.grad` to the released gradient of the lot."""
        released = self._release(clipped_sum(self._model, loss, lot, clip))
        self._ready = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                parameter.grad = self._ready[name] = released[name].to(parameter.dtype)

    def step(self, optimiser: Optimizer | None = None) -> None:
        """Step the optimiser that was given, once for each `backward`.

        Raises:
            UsageError: SQ-407 for another optimiser, without a new backward, or if someone
                replaced a released gradient by a raw one.
        """
        if optimiser is not None and optimiser is not self._optimiser:
            raise UsageError(407, "this is not the optimiser that was given; step that one")
        if self._ready is None:
            raise UsageError(407, "nothing was released since the last step; call backward first")
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and parameter.grad is not self._ready[name]:
                raise UsageError(
                    407,
                    f"the gradient of {name!r} is not the released one; do not call .backward()",
                )
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._ready = None
