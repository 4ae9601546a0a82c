"""`sequester calibrate`: the knob that meets a target ε, from the safe side."""

from __future__ import annotations

from typing import Any

import click

from sequester.accounting import Gaussian, PoissonSampled, SelfComposed, calibrate, epsilon
from sequester.accounting.checks import ADJACENCIES
from sequester.cli.options import Output, output_options
from sequester.core.errors import UsageError
from sequester.core.values import round_up


@click.command()
@click.option("--epsilon", "target", type=float, required=True, help="The ε to stay at or below.")
@click.option("--delta", type=float, required=True, help="1e-5 or less, below 1/population.")
@click.option("--sampling-rate", type=float, help="Chance to be in a lot; left out: solved for.")
@click.option("--steps", type=int, help="Number of noisy steps; left out: solved for.")
@click.option("--noise-multiplier", type=float, help="Noise over the clip; left out: solved for.")
@click.option(
    "--adjacency", type=click.Choice(ADJACENCIES), default="add-or-remove", show_default=True
)
@output_options
def command(
    *,
    target: float,
    delta: float,
    sampling_rate: float | None,
    steps: int | None,
    noise_multiplier: float | None,
    adjacency: str,
    output: Output,
) -> None:
    """Solve for the one of noise multiplier, steps and sampling rate that is not given."""
    if sampling_rate is not None and steps is not None and noise_multiplier is None:
        solved = "noise_multiplier"
        noise_multiplier = calibrate.noise_multiplier(
            target, delta, sampling_rate, steps, adjacency=adjacency
        )
    elif sampling_rate is not None and noise_multiplier is not None and steps is None:
        solved = "steps"
        steps = calibrate.steps(target, delta, sampling_rate, noise_multiplier, adjacency=adjacency)
    elif noise_multiplier is not None and steps is not None and sampling_rate is None:
        solved = "sampling_rate"
        sampling_rate = calibrate.sampling_rate(
            target, delta, noise_multiplier, steps, adjacency=adjacency
        )
    else:
        raise UsageError(
            215,
            "give exactly two of --noise-multiplier, --sampling-rate and --steps; the third is "
            "solved for",
        )
    event = SelfComposed(PoissonSampled(sampling_rate, Gaussian(noise_multiplier)), steps)
    reached = epsilon(event, delta, adjacency=adjacency)
    fields: dict[str, Any] = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "epsilon": reached,
        "delta": delta,
        "solved": solved,
        "adjacency": adjacency,
    }
    text = (
        f"{solved} {fields[solved]:.6g} gives epsilon {round_up(reached, 5):g} at delta {delta:g}"
    )
    output.result(fields, text)
