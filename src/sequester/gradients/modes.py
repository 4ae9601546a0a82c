"""What stands at PyTorch's dispatcher while a model runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Is given each operation, to `run` it."""

    def __init_subclass__(cls) -> None:
        """As PyTorch has it, with a type."""
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        """Open nothing yet."""
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise PyTorch imports its compiler at the first operation, for a second.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Hand it on."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operation gives."""
        return func(*args, **kwargs)
