"""What moves on a terminal while a verb works; nothing in a pipe, a log or under `--quiet`."""

from __future__ import annotations

import sys
from typing import Generic, Protocol, Self, TypeVar

from rich.console import Console

from sequester.cli.options import Output


class Moving(Protocol):
    """What rich draws until it is stopped."""

    def start(self) -> None:
        """Begin to draw."""

    def stop(self) -> None:
        """Clear it."""


Kind = TypeVar("Kind", bound=Moving)


class Display(Generic[Kind]):
    """Draws `moving`, if there is any, for as long as it is entered."""

    moving: Kind | None = None

    def __enter__(self) -> Self:
        """Begin to draw."""
        if self.moving:
            self.moving.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Clear it."""
        if self.moving:
            self.moving.stop()


def terminal(output: Output) -> Console | None:
    """Standard error where somebody watches it; None elsewhere."""
    return Console(stderr=True) if sys.stderr.isatty() and not output.quiet else None
