"""`sequester report RUN`: write the card of a finished run again."""

from __future__ import annotations

from pathlib import Path

import click

from sequester.cli.options import Output, output_options
from sequester.report import write_card


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@output_options
def command(run: Path, output: Output) -> None:
    """Write card.html of the finished RUN from its claim, facts and audit."""
    card = write_card(run)
    output.result({"card": str(card), "claim": str(run / "claim.json")}, str(card))
