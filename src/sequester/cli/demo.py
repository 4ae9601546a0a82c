"""`sequester demo`: the whole main job on data that come with the package, offline."""

from __future__ import annotations

from pathlib import Path

import click

from sequester.cli.options import Output, output_options
from sequester.cli.train import fields_of, leave, run_with_line, summary
from sequester.report import write_card
from sequester.training import demos


@click.command()
@click.argument("name", type=click.Choice(["randhie", "mobility"]), default="randhie")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"))
@output_options
def command(name: str, out: Path, output: Output) -> None:
    """Train on real yearly care of 5,912 people (randhie), or on a simulated town (mobility)."""
    study = demos.randhie() if name == "randhie" else demos.town()
    if study.data.simulated:
        output.say("The people of this demo are simulated: nobody in it exists.")
    study = demos.charged(study, out)
    output.say(f"{study.title}: person-level ε = {study.privacy.epsilon}, training …")
    run = run_with_line(study, out=out, resume=None, beside=None, output=output)
    if run.utility is None:
        again = f"sequester train {run.folder.study} --resume {run.folder.path}"
        output.result(fields_of(run), f"interrupted; nothing was released. Go on with\n  {again}")
        leave(run.stopped)
        return
    card = str(write_card(run.folder.path))
    told = run.utility
    fields = {
        **fields_of(run),
        "metric": told.metric,
        "value": told.value,
        "baseline": told.baseline,
        "baseline_name": told.baseline_name,
        "card": card,
    }
    output.result(fields, summary(run, card))
