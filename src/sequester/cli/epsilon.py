"""`sequester epsilon`: what noise, sampling and steps amount to."""

from __future__ import annotations

from typing import Any

import click

from sequester.accounting import Gaussian, PoissonSampled, SelfComposed, epsilon, group, statement
from sequester.accounting.checks import ACCOUNTANTS, ADJACENCIES
from sequester.cli.options import Output, output_options
from sequester.core.values import check_delta, round_up


@click.command()
@click.option("--noise-multiplier", type=float, required=True, help="Noise over the clip bound.")
@click.option("--sampling-rate", type=float, default=1.0, help="Chance to be in a lot (Poisson).")
@click.option("--steps", type=int, required=True, help="Number of noisy steps.")
@click.option("--delta", type=float, required=True, help="1e-5 or less, below 1/population.")
@click.option("--accountant", type=click.Choice(ACCOUNTANTS), default="pld", show_default=True)
@click.option(
    "--adjacency", type=click.Choice(ADJACENCIES), default="add-or-remove", show_default=True
)
@click.option(
    "--max-per-person",
    type=click.IntRange(min=1),
    default=1,
    help="Windows one person may own, if units are windows.",
)
@output_options
def command(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: str,
    adjacency: str,
    max_per_person: int,
    output: Output,
) -> None:
    """Print a certified upper bound on ε, the Rényi bound, μ and the attacker's advantage."""
    check_delta(delta)
    event = SelfComposed(PoissonSampled(sampling_rate, Gaussian(noise_multiplier)), steps)
    said = statement(event, delta, adjacency=adjacency)
    chosen = epsilon(event, delta, adjacency=adjacency, accountant=accountant)
    fields: dict[str, Any] = {
        "epsilon": chosen,
        "delta": delta,
        "accountant": accountant,
        "epsilon_estimate": said.estimate,
        "epsilon_rdp": said.epsilon_rdp,
        "mu": said.mu,
        "advantage": said.advantage,
        "tpr_at_fpr_1pct": said.tpr_at_fpr(0.01),
        "adjacency": adjacency,
    }
    lines = [
        f"epsilon    {round_up(chosen, 5):<10g} at delta {delta:g}, {adjacency}, certified upper "
        f"bound ({accountant})",
        f"estimate   {said.estimate:<10.5g} extrapolated, for comparison only",
        f"Rényi      {round_up(said.epsilon_rdp, 5):<10g} upper bound",
        f"mu         {round_up(said.mu):<10g} Gaussian-DP down to this delta",
        f"advantage  {round_up(said.advantage):<10g} most that any membership attack gains "
        "over guessing",
    ]
    if max_per_person > 1:
        person = group.person(event, delta, max_per_person, adjacency=adjacency)
        fields["person"] = {
            "epsilon": person.epsilon,
            "max_contribution": person.contributions,
            "method": person.method,
        }
        lines.append(
            f"person     {round_up(person.epsilon, 5):<10g} for one person with up to "
            f"{max_per_person} windows ({person.method})"
        )
    output.result(fields, "\n".join(lines))
