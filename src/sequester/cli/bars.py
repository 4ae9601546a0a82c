"""Progress bars of long commands: on a terminal a bar, elsewhere one line for each stage."""

from __future__ import annotations

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from sequester.cli.display import Display, terminal
from sequester.cli.options import Output


class Bars(Display[Progress]):
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
        if console := terminal(output):
            self.moving = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )

    def __call__(self, stage: str, done: int, of: int) -> None:
        """Show how far `stage` is."""
        first = stage not in self._tasks
        if self.moving is None:
            self._tasks[stage] = TaskID(0)
            if first:
                self._output.say(f"{stage} …")
            return
        if first:
            self._tasks[stage] = self.moving.add_task(stage, total=of)
        self.moving.update(self._tasks[stage], completed=done, total=of)
