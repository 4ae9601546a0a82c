"""What the tape cannot see by itself: operations which bypass `__torch_function__`.

A scripted or compiled function, a function with a backward pass of its own, `torch.ops` and
`torch.func` reach PyTorch's dispatcher without asking the tape. `Watch` stands there: while no
rule is at work, nothing of people's may arrive. `hidden_function` looks at the finished graph.
Modes belong to a thread, so each thread counts what it starts: under a `Watch`, that is refused.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sequester.gradients.modes import Mode
from sequester.gradients.trees import tensors_in


def memory(tensor: Tensor) -> int:
    """What names a tensor's storage: an alias made behind the tape's back shares it."""
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            return int(tensor.untyped_storage()._cdata)  # noqa: SLF001
    except RuntimeError:  # sparse and nested tensors have several
        return id(tensor)


class Watch(Mode):
    """Asks `refuse` about each operation that came past no rule.

    Args:
        refuse: Called with an operation and its tensors; raises where people's data are in it.
        threads: Called, in the end, when a thread was started.
    """

    def __init__(
        self, refuse: Callable[[Any, list[Tensor]], None], threads: Callable[[], object]
    ) -> None:
        """Keep both."""
        super().__init__()
        self._refuse, self._threads = refuse, threads
        self._started = 0
        self.entered = 0

    def __enter__(self) -> Watch:
        """Open it."""
        _listen()
        self._started = _started()
        self.entered += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.entered -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if _started() != self._started:
            self._threads()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Ask, then run."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001
            self._refuse(func, list(tensors_in(args, kwargs)))
            return func(*args, **kwargs)


_HERE = threading.local()


def _started() -> int:
    """How many threads this one has started since somebody listens."""
    return getattr(_HERE, "started", 0)


@functools.cache
def _listen() -> None:
    """Let each thread count, from now on, how many it starts; nothing else of them changes."""
    start = threading.Thread.start

    @functools.wraps(start)
    def counted(thread: threading.Thread) -> None:
        _HERE.started = _started() + 1
        start(thread)

    threading.Thread.start = counted  # type: ignore[assignment,method-assign]


def makers(tensor: Tensor) -> Iterator[type | None]:
    """The function of a tensor's graph that made each node; None for PyTorch's own."""
    pending, seen = [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield getattr(node, "_forward_cls", None)
            pending.extend(parent for parent, _ in node.next_functions)


def hidden_function(losses: Tensor) -> str | None:
    """The name of a function in the graph of `losses` whose backward pass nobody knows.

    Such a function may add people together when gradients come.
    """
    for maker in makers(losses):
        if maker is not None and not getattr(maker, "sequester_tape", False):
            return maker.__name__
    return None


def saved_tensor_hooks() -> bool:
    """Whether someone packs what backward passes keep, as checkpointing does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # noqa: SLF001
