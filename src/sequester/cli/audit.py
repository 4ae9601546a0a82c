"""`sequester audit RUN` attacks a finished run; `sequester audit plan` says what that takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click

from sequester.audit.claimed import digests_of
from sequester.audit.mechanism import planning
from sequester.audit.mechanism.battery import smallest_error
from sequester.audit.mechanism.evidence import View
from sequester.audit.report import private_fields, public_fields, refused_fields, text
from sequester.audit.run import Settings, audit_run
from sequester.cli.bars import Bars
from sequester.cli.options import Output, output_options
from sequester.core import canonical
from sequester.core.errors import SequesterError, VerificationError
from sequester.core.files import write_atomic
from sequester.report import write_card
from sequester.training.folder import RunFolder

_WEIGHTS = (100, 10_000, 1_000_000)  # of one tensor: what a plan shows the battery's power for


class _RunOrPlan(click.Group):
    """`audit plan …` is a command of its own; anything else names a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunOrPlan)
def command() -> None:
    """Attack the finished RUN and compare what is found with its claim.

    Usage: sequester audit RUN [OPTIONS], or sequester audit plan [OPTIONS].
    """


@command.command("run")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--canaries", default=200, show_default=True, help="Canary persons.")
@click.option("--steps", default=60, show_default=True, help="Most training steps to audit.")
@click.option("--references", default=8, show_default=True, help="Reference models; 0 for none.")
@click.option("--people", default=200, show_default=True, help="Most people to attack, each side.")
@click.option("--seed", default=0, show_default=True, help="Of canaries and models.")
@click.option(
    "--view",
    type=click.Choice(get_args(View)),
    default="iterates",
    show_default=True,
    help="What the attacker scores canaries by.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Folder that a relative data source starts from.",
)
@output_options
def audit(
    run: Path,
    canaries: int,
    steps: int,
    references: int,
    people: int,
    seed: int,
    view: View,
    data: Path,
    output: Output,
) -> None:
    """Audit RUN; exit code 4 when something contradicts its claim.

    Figures computed on the run's people go to private/audit.json and to this terminal;
    audit.json, which the card shows, holds those from canaries.
    """
    settings = Settings(canaries, steps, references, people, seed, view)
    private = run / "private"
    try:
        with Bars(output) as bars:
            found = audit_run(run, settings, beside=data, watch=bars)
    except VerificationError as refusal:
        refused = refused_fields(digests_of(RunFolder(run)), refusal.code)
        write_atomic(run / "audit.json", _pretty(refused))
        (private / "audit.json").unlink(missing_ok=True)  # the verdict on what was here before
        _card(run)
        raise
    write_atomic(run / "audit.json", _pretty(public_fields(found)))
    private.mkdir(mode=0o700, exist_ok=True)
    fields = private_fields(found)
    write_atomic(private / "audit.json", _pretty(fields), private=True)
    card = _card(run)
    shown = str(card) if isinstance(card, Path) else None
    output.result({**fields, "card": shown}, f"{text(found)}\n{shown or 'no card was written'}")
    if found.contradicted:
        raise VerificationError(
            815,
            "the audit contradicts the claim; treat the run as unprotected and read "
            "private/audit.json",
            where=str(run),
        )
    if isinstance(card, SequesterError):
        raise card


def _card(run: Path) -> Path | SequesterError:
    """The card, or why there is none: that must not hide what the audit found."""
    try:
        return write_card(run)
    except SequesterError as problem:
        (run / "card.html").unlink(missing_ok=True)  # an earlier one shows an earlier verdict
        return problem


@command.command("plan")
@click.option("--epsilon", type=float, required=True, help="Claimed ε.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Its δ.")
@click.option(
    "--sigma-error",
    type=float,
    default=0.7,
    show_default=True,
    help="Noise really there over noise claimed.",
)
@click.option("--power", type=float, default=0.8, show_default=True, help="Chance to find it.")
@click.option("--steps", type=int, default=60, show_default=True, help="Steps to audit.")
@click.option("--sampling-rate", type=float, default=0.2, show_default=True)
@output_options
def plan(
    epsilon: float,
    delta: float,
    sigma_error: float,
    power: float,
    steps: int,
    sampling_rate: float,
    output: Output,
) -> None:
    """How many canaries, and about how many minutes, a question needs in each tier."""
    question = planning.Question(epsilon, delta, sigma_error, power)
    planning.seconds(0, steps=steps, rate=sampling_rate)  # refuses what cannot be before the work
    answers = planning.plan(question)
    rows = [
        {
            "tier": answer.tier,
            "canaries": answer.canaries,
            "minutes": None
            if answer.canaries is None
            else planning.seconds(answer.canaries, steps=steps, rate=sampling_rate) / 60,
        }
        for answer in answers
    ]
    lines = [
        f"to find noise at {sigma_error:g} of what ε = {epsilon:g} claims, with power {power:g}:"
    ]
    for row in rows:
        if row["canaries"] is None:
            need = f"more than {planning.MOST_CANARIES} canaries"
        else:
            need = f"{row['canaries']} canaries, about {row['minutes']:.1f} minutes"
        lines.append(f"  {row['tier']}: {need}")
    errors = {str(weights): smallest_error([weights], steps) for weights in _WEIGHTS}
    found = ", ".join(f"{error:.2g} in {weights} weights" for weights, error in errors.items())
    lines.append(
        f"the noise battery needs no canaries; in {steps} steps it finds noise that is too small "
        f"by this share four times in five: {found}"
    )
    fields = {"tiers": rows, "sigma_error": sigma_error, "power": power}
    output.result({**fields, "smallest_noise_error": errors}, "\n".join(lines))


def _pretty(fields: dict[str, object]) -> str:
    plain = json.loads(canonical.dumps(fields))
    return json.dumps(plain, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
