"""`sequester explain`: a guarantee in words and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sequester.accounting import (
    Event,
    Gaussian,
    PoissonSampled,
    SelfComposed,
    Statement,
    from_json,
    statement,
)
from sequester.accounting.checks import ADJACENCIES
from sequester.accounting.explain import sentences
from sequester.accounting.picture import braille, svg
from sequester.cli.options import Output, output_options
from sequester.core.errors import UsageError
from sequester.core.files import write_atomic


@click.command()
@click.argument("claim", required=False, type=click.Path(path_type=Path))
@click.option("--noise-multiplier", type=float, help="Noise over the clip bound.")
@click.option("--sampling-rate", type=float, default=1.0, help="Chance to be in a lot (Poisson).")
@click.option("--steps", type=int, default=1, help="Number of noisy steps.")
@click.option("--delta", type=float, help="1e-5 or less; a claim brings its own.")
@click.option(
    "--adjacency", type=click.Choice(ADJACENCIES), default="add-or-remove", show_default=True
)
@click.option("--svg", "picture", type=click.Path(path_type=Path), help="Also draw to this file.")
@output_options
def command(
    *,
    claim: Path | None,
    noise_multiplier: float | None,
    sampling_rate: float,
    steps: int,
    delta: float | None,
    adjacency: str,
    picture: Path | None,
    output: Output,
) -> None:
    """Say what a CLAIM (a run folder or its claim.json), or numbers, mean for one person."""
    unit = "person"
    if claim is not None:
        event, delta, adjacency, unit = _read(claim, delta)
    elif noise_multiplier is not None and delta is not None:
        event = SelfComposed(PoissonSampled(sampling_rate, Gaussian(noise_multiplier)), steps)
    else:
        raise UsageError(220, "give a claim, or --noise-multiplier and --delta")
    said = statement(event, delta, adjacency=adjacency)
    words = sentences(said, unit=unit)
    if picture is not None:
        title = f"What an attacker can reach (epsilon {said.epsilon:.3g})"
        write_atomic(picture, svg(said.curve, title=title).encode())
        output.say(f"drawn to {picture}")
    output.result(_fields(said, words), "\n".join([*words, "", braille(said.curve)]))


def _read(path: Path, delta: float | None) -> tuple[Event, float, str, str]:
    """The event, δ, adjacency and unit of a claim on disk."""
    file = path / "claim.json" if path.is_dir() else path
    try:
        claim = json.loads(file.read_text(encoding="utf-8"))
        event = from_json(json.dumps(claim["events"]))
        own = float(claim["delta"])
        return event, own if delta is None else delta, claim["adjacency"], claim["unit"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(220, f"no claim can be read here: {error}", where=str(file)) from None


def _fields(said: Statement, words: list[str]) -> dict[str, Any]:
    fpr, tpr = said.curve.points()
    return {
        "epsilon": said.epsilon,
        "delta": said.delta,
        "accountant": said.accountant,
        "mu": said.mu,
        "advantage": said.advantage,
        "posterior_from_half": said.posterior(0.5),
        "tpr_at_fpr": {str(x): said.tpr_at_fpr(x) for x in (1e-4, 1e-3, 0.01, 0.1)},
        "tradeoff": {"fpr": fpr, "tpr": tpr},
        "words": words,
    }
