"""`sequester federate`: train a study across sites or phones, simulated on this machine."""

from __future__ import annotations

import math
from pathlib import Path

import click

from sequester.cli.options import Output, output_options
from sequester.cli.standing import STAMP, protects, standing_fields
from sequester.core.values import round_up
from sequester.report import write_card


@click.command()
@click.argument("study", type=click.Path(path_type=Path), required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), help="Where runs are kept."
)
@click.option(
    "--resume",
    "resumed",
    type=click.Path(path_type=Path),
    help="Continue the interrupted run in this folder; STUDY, if named, is the one it began with.",
)
@output_options
def command(output: Output, study: Path | None, out: Path, resumed: Path | None) -> None:
    """Train STUDY in federated rounds, without pooling the data (simulated)."""
    from sequester.cli.studies import people_of, study_at
    from sequester.cli.train import leave
    from sequester.core.errors import UsageError
    from sequester.federated.run import federate, resume

    def watch(number: int, outcome: object) -> None:
        # Who answered is private: the terminal shows the round and nothing else.
        output.say(f"round {number + 1}")

    if study is not None:
        with study_at(study) as asked:
            people = people_of(asked, study.parent, output)
            if resumed is None:
                run = federate(asked, out=out, people=people, watch=watch)
            else:
                run = resume(resumed, study=asked, people=people, watch=watch)
    elif resumed is not None:
        run = resume(resumed, watch=watch)
    else:
        raise UsageError(920, "name a study, or --resume RUN")
    utility = run.utility
    private = protects(run.folder, run.claim)
    fields = {
        "run": str(run.folder.path),
        **standing_fields(private=private),
        "epsilon": run.epsilon,
        "delta": run.delta,
        "unit": run.unit,
        "steps": run.steps,
        "rounds": run.rounds,
        "abandoned": run.abandoned,
        "cohort": run.cohort,
        "stopped": run.stopped,
        "metric": None if utility is None else utility.metric,
        "value": None if utility is None else utility.value,
        **({} if run.claim is None else {"person": run.claim.fields["person"]}),
    }
    spent = "not private" if math.isinf(run.epsilon) else f"ε = {round_up(run.epsilon):.4g}"
    lost = f" ({run.abandoned} abandoned)" if run.abandoned else ""
    text = "" if private else f"{STAMP}: no noise, or from a test seed\n"
    text += f"{run.stopped}: {run.rounds} rounds{lost}, {spent} per {run.unit}; {run.folder.path}"
    if utility is not None:
        value = utility.reason or "not defined"
        if utility.value is not None:
            value = f"{utility.value:.4f}"
        text += f"\n{utility.metric} = {value}"
    if run.stopped != "interrupted":
        fields["card"] = str(write_card(run.folder.path))
        text += f"\n{fields['card']}"
    else:
        named = "" if study is None else f"{study} "
        text += f"; go on with\n  sequester federate {named}--resume {run.folder.path}"
    output.result(fields, text)
    leave(run.stopped)
