"""`sequester plan`: what a round of secure aggregation needs and what it costs."""

from __future__ import annotations

from typing import Any

import click

from sequester import secagg
from sequester.cli.options import Output, output_options
from sequester.core.values import check_delta, round_up
from sequester.secagg.encoding import NOISES


@click.command()
@click.option("--members", type=int, required=True, help="Members invited to a round.")
@click.option("--length", type=int, required=True, help="Parameters of the model.")
@click.option("--clip", type=float, default=1.0, show_default=True, help="L2 bound of an update.")
@click.option(
    "--noise-multiplier",
    type=float,
    default=0.0,
    show_default=True,
    help="Noise of the fewest honest survivors over the clip; 0 for none.",
)
@click.option("--noise", type=click.Choice(NOISES[:2]), default=NOISES[0], show_default=True)
@click.option("--dropout", type=float, default=0.1, show_default=True, help="Largest fraction.")
@click.option("--corrupt", type=float, default=0.1, show_default=True, help="Largest fraction.")
@click.option("--semi-honest", is_flag=True, help="Assume that the server follows the protocol.")
@click.option("--bits", type=click.Choice(["16", "20", "24", "32"]), help="Width of a word.")
@click.option("--granularity", type=float, help="The grid's step, in units of the update.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rounds to account for.",
)
@click.option("--delta", type=float, default=1e-6, show_default=True)
@output_options
def command(
    output: Output,
    members: int,
    length: int,
    *,
    clip: float,
    noise_multiplier: float,
    noise: str,
    dropout: float,
    corrupt: float,
    semi_honest: bool,
    bits: str | None,
    granularity: float | None,
    rounds: int,
    delta: float,
) -> None:
    """Plan secure aggregation: graph, threshold, word width, bytes, ε; or refuse."""
    plan = secagg.plan(
        members,
        length,
        clip=clip,
        noise_multiplier=noise_multiplier,
        noise=noise,
        dropout=dropout,
        corrupt=corrupt,
        active=not semi_honest,
        bits=int(bits) if bits else None,
        granularity=granularity,
    )
    fields = plan.facts()
    if plan.encoding.is_noisy:
        epsilon = round_up(plan.epsilon(check_delta(delta), rounds))
        fields |= {"epsilon": epsilon, "delta": delta, "rounds": rounds, "unit": plan.unit}
    warning = secagg.hides_little(plan, sparse_rows=False)
    if warning:
        output.say(f"note: {warning}")
    output.result(fields, _text(plan, fields))


def _text(plan: secagg.RoundPlan, fields: dict[str, Any]) -> str:
    encoding = plan.encoding
    graph = "everybody" if plan.degree == 0 else f"{plan.degree} on a ring"
    lines = [
        f"members     {plan.members}, {plan.min_cohort} must start, {plan.min_survivors} survive",
        f"neighbours  {graph}; {plan.threshold} shares open a secret",
        f"words       {encoding.words} of {encoding.bits} bits, grid {encoding.granularity:.3g}",
        f"bytes       {plan.upload_bytes:,} up, {plan.download_bytes:,} down per member",
        f"time        about {plan.client_seconds:.3g} s per member",
    ]
    if encoding.is_noisy:
        lines += [
            f"noise       {encoding.noise}, {encoding.noise_share:.4g} grid units per member",
            f"privacy     ε ≤ {fields['epsilon']} at δ = {fields['delta']} for one {plan.unit} "
            f"over {fields['rounds']} round(s)",
        ]
    return "\n".join([*lines, "", secagg.PairwiseMasks(plan).explain()])
