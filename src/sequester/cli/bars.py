"""Progress bars of long commands: on a terminal a bar, elsewhere one line for each stage."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from sequester.cli.options import Output


class Bars:
    """One bar for each stage, on standard error; nothing under `--quiet`.

    Shows public numbers alone: how many of how many steps.
    """

    def __init__(self, output: Output) -> None:
        """Prepare.

        Args:
            output: Whether to be quiet.
        """
        self._output = output
        self._tasks: dict[str, TaskID] = {}
        self._bars: Progress | None = None
        if sys.stderr.isatty() and not output.quiet:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the bars."""
        if self._bars:
            self._bars.stop()

    def __call__(self, stage: str, done: int, of: int) -> None:
        """Show how far `stage` is."""
        first = stage not in self._tasks
        if self._bars is None:
            self._tasks[stage] = TaskID(0)
            if first:
                self._output.say(f"{stage} …")
            return
        if first:
            self._tasks[stage] = self._bars.add_task(stage, total=of)
        self._bars.update(self._tasks[stage], completed=done, total=of)
