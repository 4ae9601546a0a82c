"""`sequester explain`: a guarantee in words and a picture."""

from __future__ import annotations

import json
import math
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
from sequester.cli.standing import STAMP, standing_fields
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
    unit, private = "person", True
    if claim is not None:
        event, delta, adjacency, unit, private = _read(claim, delta)
    elif noise_multiplier is not None and delta is not None:
        event = SelfComposed(PoissonSampled(sampling_rate, Gaussian(noise_multiplier)), steps)
    else:
        raise UsageError(220, "give a claim, or --noise-multiplier and --delta")
    standing = {} if claim is None else standing_fields(private=private)
    if event is None:
        output.result(standing | _nothing(delta), "\n".join(_NO_NOISE))
        return
    said = statement(event, delta, adjacency=adjacency)
    words = sentences(said, unit=unit)
    title = f"What an attacker can reach (epsilon {said.epsilon:.3g})"
    if not private:
        words, title = [_TEST_SEED, *words], f"{STAMP}. Were the noise secret: {title}"
    if picture is not None:
        write_atomic(picture, svg(said.curve, title=title).encode())
        output.say(f"drawn to {picture}")
    output.result(standing | _fields(said, words), "\n".join([*words, "", braille(said.curve)]))


_TEST_SEED = (
    f"{STAMP}: the noise came from a test seed, and anybody can take it off; nobody is protected. "
    "What follows would hold if the noise were secret, and does not hold of this run."
)
_NO_NOISE = [
    f"{STAMP}: this run was trained without noise; epsilon is infinite. An attacker may learn for "
    "certain whether one person was in the data, and more."
]


def _read(path: Path, delta: float | None) -> tuple[Event | None, float, str, str, bool]:
    """A claim's event (None without noise), δ, adjacency and unit, and whether it protects."""
    file = path / "claim.json" if path.is_dir() else path
    try:
        claim = json.loads(file.read_text(encoding="utf-8"))
        events, private = claim["events"], claim["status"] == "private"
        event = from_json(json.dumps(events)) if events or private else None
        own = float(claim["delta"]) if delta is None else delta
        return event, own, claim["adjacency"], claim["unit"], private
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(220, f"no claim can be read here: {error}", where=str(file)) from None


_RATES = (1e-4, 1e-3, 0.01, 0.1)


def _nothing(delta: float) -> dict[str, Any]:
    """The fields of `_fields` where nobody is protected."""
    return {
        "epsilon": math.inf,
        "delta": delta,
        "accountant": "none",
        "mu": None,
        "advantage": 1.0,
        "posterior_from_half": 1.0,
        "tpr_at_fpr": {str(x): 1.0 for x in _RATES},
        "tradeoff": {"fpr": [0.0, 1.0], "tpr": [1.0, 1.0]},
        "words": _NO_NOISE,
    }


def _fields(said: Statement, words: list[str]) -> dict[str, Any]:
    fpr, tpr = said.curve.points()
    return {
        "epsilon": said.epsilon,
        "delta": said.delta,
        "accountant": said.accountant,
        "mu": said.mu,
        "advantage": said.advantage,
        "posterior_from_half": said.posterior(0.5),
        "tpr_at_fpr": {str(x): said.tpr_at_fpr(x) for x in _RATES},
        "tradeoff": {"fpr": fpr, "tpr": tpr},
        "words": words,
    }
