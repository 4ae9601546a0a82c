"""`sequester train STUDY`: person-level DP-SGD from a study to weights, claim and card."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sequester import training
from sequester.cli.live import LiveLine
from sequester.cli.options import Output, output_options
from sequester.cli.standing import STAMP, protects, standing_fields
from sequester.cli.studies import people_of, study_at
from sequester.core.values import round_up
from sequester.report import write_card
from sequester.training.signals import Interruption


def unit_warning(unit: str) -> str:
    """What is said before a run whose unit is not the person."""
    hidden = "one window of a person's records" if unit == "window" else "one record of a person"
    return (
        f"warning: the unit is a {unit}. The claim hides {hidden}, not the person; what it means "
        "for a person stands beside it."
    )


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"))
@click.option("--resume", type=click.Path(exists=True, file_okay=False, path_type=Path))
@output_options
def command(study: Path, out: Path, resume: Path | None, output: Output) -> None:
    """Train STUDY, a TOML file; Ctrl-C finishes the step and says how to go on (exit 130)."""
    with study_at(study) as asked:
        if asked.unit.kind != "person":
            output.say(unit_warning(asked.unit.kind))
        if not asked.protects:
            why = "privacy.mode = 'none'" if asked.privacy.mode == "none" else "insecure_test_seed"
            output.say(f"warning: {STAMP}: {why}: nobody in the data is protected")
        run = run_with_line(asked, out=out, resume=resume, beside=study.parent, output=output)
    fields = fields_of(run)
    if run.stopped == "interrupted":
        text = (
            f"{stamped(run)}interrupted after step {run.steps}; nothing was released. Go on with\n"
            f"  sequester train {study} --resume {run.folder.path}"
        )
    else:
        fields["card"] = str(write_card(run.folder.path))
        text = summary(run, fields["card"])
    for words in run.advice:
        output.confide(f"advice (private): {words}")
    output.result(fields, text)
    leave(run.stopped)


def leave(stopped: str) -> None:
    """Exit as a shell expects of what a signal stopped, so that nothing follows on half a run."""
    if stopped == "interrupted":
        raise click.exceptions.Exit(Interruption.exit_code)


def run_with_line(
    asked: training.Study, *, out: Path, resume: Path | None, beside: Path | None, output: Output
) -> training.Run:
    """Train or resume under a live line; a run is resumed by the study it started with."""
    people = people_of(asked, beside, output)
    with LiveLine(output, asked) as line:
        if resume is not None:
            return training.resume(resume, study=asked, people=people, watch=line)
        return training.train(asked, out=out, people=people, watch=line)


def fields_of(run: training.Run) -> dict[str, Any]:
    """The JSON fields of a run; the ε of a person and the figures once there is a claim."""
    finished: dict[str, Any] = {}
    if run.claim is not None:
        finished = {
            "person": run.claim.fields["person"],
            "figures": [{**asdict(figure), "name": figure.baseline_name} for figure in run.figures],
        }
    return {
        "run": str(run.folder.path),
        **standing_fields(private=protects(run.folder, run.claim)),
        "epsilon": round_up(run.epsilon),
        "delta": run.delta,
        "unit": run.unit,
        "steps": run.steps,
        "stopped": run.stopped,
        **finished,
    }


def stamped(run: training.Run) -> str:
    """What a text begins with that may be read as a promise; nothing where it is one."""
    return "" if protects(run.folder, run.claim) else f"{STAMP}: no noise, or from a test seed\n"


def summary(run: training.Run, card: str) -> str:
    """What a person reads at the end."""
    lines = [f"{stamped(run)}ε = {round_up(run.epsilon):g} at δ = {run.delta:g} for one {run.unit}"]
    if run.claim is not None and run.unit != "person":
        person = run.claim.fields["person"]
        lines.append(f"for one person: ε = {person['epsilon']} ({person['method']})")
    for told in run.figures:
        if told.reason:
            lines.append(f"no figure of merit: {told.reason}")
            continue
        value = "not defined" if told.value is None else f"{told.value:.3f}"
        line = f"{told.metric} {value} on held-out people ({told.protection}"
        line += f"; {told.baseline_name}: {told.baseline:.3f})" if told.baseline else ")"
        lines.append(line)
    if run.stopped == "budget":
        lines.append(f"stopped at the ceiling after {run.steps} steps")
    return "\n".join([*lines, f"weights, claim: {run.folder.path}", card])
