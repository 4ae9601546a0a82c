"""Which kernels run: the compiled ones where they were built, PyTorch's everywhere else.

Both give the same results to rounding; `describe()` is what `sequester doctor` shows.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sequester.gradients import recurrence
from sequester.gradients.recurrence import Steps


class Kernels(Protocol):
    """What a set of kernels can do; all tensors are float32, contiguous and on the CPU."""

    name: str

    def softmax(self, e: Tensor, target: Tensor, total: Tensor, losses: Tensor) -> None:
        """Exponentiate logits in place.

        Args:
            e: Logits `(rows, classes)`; becomes `exp(logit − max)` minus `total` at the target.
            target: `(rows,)` class indices.
            total: Receives `Σ exp(logit − max)`, `(rows,)`.
            losses: Receives `−log softmax[target]`, `(rows,)`.
        """
        ...

    def recur(
        self, steps: Steps, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, bias: tuple[Tensor, Tensor]
    ) -> None:
        """Run a recurrence forward; `inputs` is `(windows, steps + 1, features + 1)`."""
        ...

    def recur_back(
        self, steps: Steps, w_hh: Tensor, given: tuple[Tensor | None, Tensor | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Run it backward, from gradients of outputs, last state and last cell."""
        ...


class Torch:
    """Plain PyTorch, for any dtype."""

    name = "pytorch"

    def softmax(self, e: Tensor, target: Tensor, total: Tensor, losses: Tensor) -> None:
        """As the protocol says, in four passes."""
        index = target.unsqueeze(1)
        most = e.amax(1, keepdim=True)
        chosen = e.gather(1, index) - most
        e.sub_(most).exp_()
        torch.sum(e, 1, out=total)
        torch.sub(total.log(), chosen.squeeze(1), out=losses)
        e.scatter_add_(1, index, -total.unsqueeze(1))

    def recur(
        self, steps: Steps, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, bias: tuple[Tensor, Tensor]
    ) -> None:
        """See `recurrence.forward`."""
        recurrence.forward(steps, inputs[:, :-1, :-1], w_ih, w_hh, bias)

    def recur_back(
        self, steps: Steps, w_hh: Tensor, given: tuple[Tensor | None, Tensor | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """See `recurrence.backward`."""
        return recurrence.backward(steps, w_hh, *given)


_TORCH = Torch()


def kernels() -> Kernels:
    """The kernels in use."""
    return _TORCH
