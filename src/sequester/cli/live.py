"""The live line of a running training: for the operator's terminal only, never for a file."""

from __future__ import annotations

from rich.status import Status

from sequester.cli.display import Display, terminal
from sequester.cli.options import Output
from sequester.cli.standing import STAMP
from sequester.training import Study
from sequester.training.monitor import Measure
from sequester.training.planning import spent_by_step


class LiveLine(Display[Status]):
    """Shows step, people, clip fraction and loss while a run goes on.

    These figures are computed on people. Without a terminal (a pipe, a log, `--quiet`) nothing
    is shown, because whatever is written down can leave.
    """

    def __init__(self, output: Output, study: Study) -> None:
        """Prepare.

        Args:
            output: Whether to be quiet.
            study: Whose run is shown.
        """
        self._spent: list[float] = []
        self._steps = study.training.steps
        self._stamp = "" if study.protects else f"[bold red]{STAMP}[/bold red]  "
        if console := terminal(output):
            self.moving = console.status("reading")
            self._spent = spent_by_step(study)

    def __call__(self, measured: Measure) -> None:
        """Show one step."""
        if not self.moving:
            return
        loss = "–" if measured.loss is None else f"{measured.loss:.4f}"
        epsilon = ""
        if self._spent:
            now = self._spent[min(measured.step, len(self._spent) - 1)]
            epsilon = f"  ε {now:.3f} of {self._spent[-1]:.3f}"
        self.moving.update(
            f"{self._stamp}step {measured.step + 1}/{self._steps}{epsilon}  "
            f"clipped {measured.clipped:.0%}  loss {loss}  [dim](private: for your eyes)[/dim]"
        )
