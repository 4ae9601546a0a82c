"""Which kernels run: the compiled ones where they were built, PyTorch's everywhere else.

Both give the same results to rounding; `describe()` is what `sequester doctor` shows.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from sequester import native
from sequester.gradients import recurrence
from sequester.gradients.recurrence import Steps

_LOG = logging.getLogger("sequester.gradients")

# A float32 sum of squares this long errs by at most 2⁻²⁰ (32 additions in each of 8 lanes): half
# of that in the norm stays within `clipping.MARGIN`. Longer sums may lose what many small
# numbers add to a few large ones.
_BLOCK = 256
_NUMBERS = 1 << 17  # people × columns turned to float64 at once: a core's cache
_SMALL = 60.0  # exp of logits within ±60 neither overflows nor vanishes, whatever is added up

Layer = tuple[Tensor, Tensor | None]
"""A linear layer's weight and bias."""


class Kernels(Protocol):
    """What a set of kernels can do; what C++ cannot read is left to PyTorch."""

    name: str

    def cross_entropy(
        self, x: Tensor, layer: Layer, target: Tensor, e: Tensor, total: Tensor
    ) -> Tensor:
        """Losses `−log softmax(x Wᵀ + b)[target]`, `(rows,)`, and exponentials to go back by.

        Each row of logits is shifted, by its maximum or not at all.

        Args:
            x: `(rows, features)`.
            layer: W, `(classes, features)`, and b, `(classes,)` or None.
            target: `(rows,)` class indices.
            e: `(rows, classes)`; receives `exp(logit − shift)`, minus `total` at the target.
            total: `(rows,)`; receives `Σ exp(logit − shift)`.
        """
        ...

    def square_norms(self, flat: Tensor) -> Tensor:
        """Squared norms of the rows of `(people, numbers)`, float64."""
        ...

    def add_weighted(self, total: Tensor, flat: Tensor, scale: Tensor) -> None:
        """Add `scale @ flat` to `total` in float64; `flat` is `(people, numbers)`."""
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

    def cross_entropy(
        self, x: Tensor, layer: Layer, target: Tensor, e: Tensor, total: Tensor
    ) -> Tensor:
        """As the protocol says, in two passes or four."""
        weight, bias = layer
        if bias is None:
            torch.mm(x, weight.t(), out=e)
        else:
            torch.addmm(bias, x, weight.t(), out=e)
        index = target.unsqueeze(1)
        chosen = e.gather(1, index)
        if not _bound(x, weight, bias) < _SMALL:
            most = e.amax(1, keepdim=True)
            chosen -= most
            e.sub_(most)
        e.exp_()
        torch.sum(e, 1, out=total)
        losses = total.log() - chosen.squeeze(1)
        e.scatter_add_(1, index, -total.unsqueeze(1))
        return losses

    def square_norms(self, flat: Tensor) -> Tensor:
        """Short float32 sums, added in float64."""
        people, size = flat.shape
        whole = size // _BLOCK * _BLOCK
        value = torch.zeros(people, dtype=torch.float64, device=flat.device)
        if whole:
            blocks = flat[:, :whole].view(people, -1, _BLOCK)
            value += torch.linalg.vector_norm(blocks, dim=2).double().square().sum(1)
        if whole < size:
            value += torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square()
        lost = value == 0.0  # squares of small numbers may have vanished
        if bool(lost.any()):
            exact = torch.linalg.vector_norm(flat[lost], dim=1, dtype=torch.float64)
            value[lost] = exact.square()
        return value

    def add_weighted(self, total: Tensor, flat: Tensor, scale: Tensor) -> None:
        """A block of columns at a time, to stay in cache."""
        columns = max(256, _NUMBERS // max(1, len(flat)))
        for start in range(0, flat.shape[1], columns):
            block = flat[:, start : start + columns].double()
            total[start : start + columns].addmv_(block.t(), scale)

    def recur(
        self, steps: Steps, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, bias: tuple[Tensor, Tensor]
    ) -> None:
        """See `recurrence.forward`."""
        recurrence.forward(steps, inputs, w_ih, w_hh, bias)

    def recur_back(
        self, steps: Steps, w_hh: Tensor, given: tuple[Tensor | None, Tensor | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """See `recurrence.backward`."""
        return recurrence.backward(steps, w_hh, *given)


class Compiled(Torch):
    """The C++ kernels, for float32 on the CPU; anything else is left to PyTorch."""

    name = "compiled"

    def __init__(self, library: ctypes.CDLL) -> None:
        """Use an opened library."""
        self._library = library

    def cross_entropy(
        self, x: Tensor, layer: Layer, target: Tensor, e: Tensor, total: Tensor
    ) -> Tensor:
        """As the protocol says, in two passes; a row lies in the cache, so its maximum is free."""
        weight, bias = layer
        plain = _plain(e) and target.is_contiguous() and (bias is None or _plain(bias))
        if not plain or bool(((target < 0) | (target >= e.shape[1])).any()):
            return super().cross_entropy(x, layer, target, e, total)  # which names a bad target
        torch.mm(x, weight.t(), out=e)
        losses = torch.empty_like(total)
        self._library.sequester_softmax(
            *_numbers(*e.shape), *_pointers(e, bias, target, total, losses)
        )
        return losses

    def square_norms(self, flat: Tensor) -> Tensor:
        """Float64 throughout, in one pass."""
        if not _in_rows(flat):
            return super().square_norms(flat)
        squares = torch.empty(len(flat), dtype=torch.float64)
        sizes = _numbers(*flat.shape, flat.stride(0))
        self._library.sequester_square_norms(*sizes, *_pointers(flat, squares))
        return squares

    def add_weighted(self, total: Tensor, flat: Tensor, scale: Tensor) -> None:
        """Float64 in registers, in one pass."""
        if not (_in_rows(flat) and total.is_contiguous() and scale.is_contiguous()):
            super().add_weighted(total, flat, scale)
            return
        sizes = _numbers(*flat.shape, flat.stride(0))
        self._library.sequester_add_weighted(*sizes, *_pointers(flat, scale, total))

    def recur(
        self, steps: Steps, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, bias: tuple[Tensor, Tensor]
    ) -> None:
        """Inputs and time in C++."""
        like = steps.h.dtype, inputs.shape[2] - 1
        if not self._fits(steps) or (w_ih.dtype, w_ih.shape[1]) != like or w_hh.dtype != w_ih.dtype:
            super().recur(steps, inputs, w_ih, w_hh, bias)  # which names what does not go together
            return
        gru, size = steps.kind == "gru", w_hh.shape[1]
        total = bias[0] if gru else bias[0] + bias[1]
        weights = torch.cat([w_ih, total.unsqueeze(1)], 1)
        own = (*_numbers(inputs.shape[2]), *_pointers(inputs, weights))
        sizes = _numbers(steps.h.shape[0], steps.h.shape[1] - 1, size)
        hidden, last, running = w_hh.contiguous(), bias[1].contiguous(), _running(steps)
        if gru:
            held = _pointers(steps.h, steps.gates, hidden, last, running)
            self._library.sequester_gru_forward(*sizes, *held, *own)
        else:
            held = _pointers(steps.h, steps.cells, steps.gates, hidden, running)
            self._library.sequester_lstm_forward(*sizes, *held, *own)

    def recur_back(
        self, steps: Steps, w_hh: Tensor, given: tuple[Tensor | None, Tensor | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Time in C++, backward."""
        if not self._fits(steps):
            return super().recur_back(steps, w_hh, given)
        d_out, dh, dc = _begun(steps, given)
        strides = (0, 0) if d_out is None else (d_out.stride(0), d_out.stride(1))
        sizes = _numbers(steps.h.shape[0], steps.h.shape[1] - 1, w_hh.shape[1])
        hidden, running = w_hh.contiguous(), _running(steps)
        if steps.kind == "gru":
            before = _pointers(steps.h, steps.gates, hidden, d_out)
            self._library.sequester_gru_backward(
                *sizes, *before, *_numbers(*strides), *_pointers(dh, running)
            )
            return dh, None
        before = _pointers(steps.cells, steps.gates, hidden, d_out)
        self._library.sequester_lstm_backward(
            *sizes, *before, *_numbers(*strides), *_pointers(dh, dc, running)
        )
        return dh, dc

    def _fits(self, steps: Steps) -> bool:
        cpu = steps.h.device.type == "cpu"
        return cpu and steps.h.dtype == torch.float32 and steps.kind in ("gru", "lstm")


class Triton(Torch):
    """PyTorch, but for float32 recurrences on a GPU: `gradients.triton_recurrence`.

    Kernels that were not measured on the GPU at hand have to prove themselves: each kind and size
    is first compared with PyTorch's there, and left to PyTorch, with one notice, if it differs.
    """

    name = "triton"

    def __init__(self, module: ModuleType) -> None:
        """Use the imported module."""
        self._module = module
        self._trusted: dict[tuple[object, ...], bool] = {}

    def recur(
        self, steps: Steps, inputs: Tensor, w_ih: Tensor, w_hh: Tensor, bias: tuple[Tensor, Tensor]
    ) -> None:
        """The inputs' part in one product by PyTorch, then time in one kernel."""
        if not self._fits(steps):
            super().recur(steps, inputs, w_ih, w_hh, bias)
            return
        gru = steps.kind == "gru"
        recurrence.enter_inputs(steps, inputs, w_ih, bias[0] if gru else bias[0] + bias[1])
        self._module.forward(steps, w_hh, bias[1])

    def recur_back(
        self, steps: Steps, w_hh: Tensor, given: tuple[Tensor | None, Tensor | None, Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Time in one kernel, backward."""
        if not self._fits(steps):
            return super().recur_back(steps, w_hh, given)
        d_out, dh, dc = _begun(steps, given)
        self._module.backward(steps, w_hh, d_out, dh, dc)
        return dh, dc if steps.kind == "lstm" else None

    def _fits(self, steps: Steps) -> bool:
        if steps.h.dtype != torch.float32 or steps.kind not in ("gru", "lstm"):
            return False
        key = (steps.h.device, steps.kind, steps.h.shape[2], steps.running is None)
        if key not in self._trusted:
            self._trusted[key] = self._proves_itself(steps)
        return self._trusted[key]

    def _proves_itself(self, steps: Steps) -> bool:
        try:
            error = self._module.difference(steps)
        except Exception as failure:  # a compiler may raise anything
            error = f"{type(failure).__name__}: {failure}"
        if isinstance(error, float) and error < 1e-5:
            return True
        _LOG.warning(
            "the Triton kernel of a %s does not give PyTorch's numbers on %s (%s); PyTorch runs it",
            steps.kind, steps.h.device, error,
        )  # fmt: skip
        return False


def _begun(
    steps: Steps, given: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> tuple[Tensor | None, Tensor, Tensor]:
    """What a backward kernel takes: readable output gradients, and copies of the last states'."""
    d_out, *last = given
    dh, dc = (
        steps.h.new_zeros(steps.h.shape[0], steps.h.shape[2])
        if d is None
        else d.clone(memory_format=torch.contiguous_format)
        for d in last
    )
    if d_out is not None and d_out.stride(2) != 1:
        d_out = d_out.contiguous()
    return d_out, dh, dc


def _bound(x: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    """No logit is larger in size than this (Cauchy–Schwarz); NaN where x is not finite."""
    if not len(x):
        return 0.0
    longest = [torch.linalg.vector_norm(part, dim=1).max() for part in (x, weight)]
    most = 0.0 if bias is None else float(bias.abs().max())
    return float(longest[0]) * float(longest[1]) + most


def _plain(tensor: Tensor) -> bool:
    """Whether C++ can read it as it lies."""
    cpu = tensor.device.type == "cpu"
    return cpu and tensor.dtype == torch.float32 and tensor.is_contiguous()


def _in_rows(flat: Tensor) -> bool:
    """Whether C++ can read `(people, numbers)` as it lies, whatever is between people's rows."""
    cpu = flat.device.type == "cpu"
    return cpu and flat.dtype == torch.float32 and flat.stride(1) == 1


def _numbers(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


def _pointers(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors]


def _running(steps: Steps) -> Tensor | None:
    return None if steps.running is None else torch.tensor(steps.running, dtype=torch.int64)


_TORCH = Torch()
_VERSION = 7


@cache
def _compiled(library: ctypes.CDLL | None) -> Kernels:
    if library is None or library.sequester_kernels_version() != _VERSION:
        return _TORCH
    return Compiled(library)


@cache
def _triton() -> Kernels:
    try:
        from sequester.gradients import triton_recurrence
    except ImportError:  # PyTorch's builds for CUDA bring triton along; others may not
        return _TORCH
    return Triton(triton_recurrence)


def kernels(device: torch.device) -> Kernels:
    """The kernels in use for tensors on `device`, PyTorch's if SEQUESTER_NO_NATIVE is set.

    On the CPU compiled ones where they were built, on CUDA Triton's where it is installed.
    """
    if device.type == "cuda":
        return _triton() if native.wanted() else _TORCH
    return _compiled(native.load("kernels"))


def describe() -> str:
    """One word for `sequester doctor`: "compiled" or "pytorch" on the CPU."""
    return kernels(torch.device("cpu")).name


def describe_gpu() -> str:
    """Likewise "triton" or "pytorch" on a GPU, whether there is one or not; imports nothing."""
    return "triton" if native.wanted() and find_spec("triton") is not None else "pytorch"
