"""`sequester flower`: the Flower app of a study, and the key that a site gives to the others."""

from __future__ import annotations

from pathlib import Path

import click

from sequester.cli.options import Output, output_options


@click.group()
def command() -> None:
    """Run a federated study on real machines with Flower."""


@command.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--sites", type=int, default=3, show_default=True, help="Sites to wait for.")
@click.option(
    "--run",
    "run_folder",
    type=click.Path(path_type=Path),
    help="The run folder on the server's machine; FOLDER-run by default.",
)
@output_options
def new(study: Path, folder: Path, sites: int, run_folder: Path | None, output: Output) -> None:
    """Write the Flower app of STUDY into the new FOLDER."""
    from sequester.federated.flower.new import write_app
    from sequester.training.study_file import read_study

    run = run_folder or folder.with_name(f"{folder.absolute().name}-run")
    files = write_app(read_study(study), folder, run=run, sites=sites)
    output.result(
        {"app": str(folder), "files": [str(file) for file in files], "run": str(run.absolute())},
        f"{folder}: a Flower app of {sites} sites. README.md there and docs/flower.md say how it "
        "runs.",
    )


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@output_options
def key(folder: Path, output: Output) -> None:
    """Print the public key in secure sums of the node that keeps FOLDER; make one if needed."""
    from sequester.federated.network.keys import public_key

    public = public_key(folder)
    output.result({"folder": str(folder), "public_key": public}, public)
