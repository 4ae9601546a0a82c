"""`sequester ledger …`: create, show, verify, export and raise the budgets of a ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sequester.accounting import Event, from_json
from sequester.cli.options import Output, output_options
from sequester.core.errors import UsageError, VerificationError
from sequester.core.files import write_atomic
from sequester.core.values import round_up
from sequester.ledger import Grant, Ledger, Policy, PolicyChange, Signed, export
from sequester.ledger.signing import make_key, public_hex, read_key

FILE = click.Path(dir_okay=False, path_type=Path)
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)


class Url(click.ParamType[str]):
    """A ledger's URL; a bare path is an SQLite file."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Complete a bare path."""
        return value if "://" in value else f"sqlite:///{value}"


url_argument = click.argument("url", type=Url())


@click.group()
def command() -> None:
    """Budgets of data sets, and everything ever charged to them.

    URL is a file (budget.db or sqlite:///budget.db) or postgresql://user@host/database.
    """


@command.command()
@url_argument
@click.option("--policy", type=PRESENT, help="The data holder's policy.toml.")
@click.option("--key", type=FILE, help="Where the private key is, or shall be.")
@output_options
def init(url: str, policy: Path | None, key: Path | None, output: Output) -> None:
    """Make a new, empty ledger at URL."""
    held = Policy.read(policy) if policy else None
    with Ledger.create(url, policy=held, key=key) as ledger:
        output.result(
            _standing(ledger, intact=True),
            f"ledger {ledger.id}\npublic key {ledger.public_key}",
        )


@command.command()
@url_argument
@click.argument("name")
@click.option("--dataset", required=True, help="The data set's fingerprint, or its name.")
@click.option("--epsilon", type=float, required=True, help="Ceiling.")
@click.option("--delta", type=float, required=True, help="The ceiling's δ.")
@click.option("--unit", default="person", show_default=True, help="Whose presence it protects.")
@click.option("--adjacency", default="add-or-remove", show_default=True)
@click.option("--parent", help="The budget it is part of.")
@click.option(
    "--share",
    type=click.Choice(("population", "window")),
    help="Disjoint people, or other times of the same people.",
)
@output_options
def budget(
    url: str,
    name: str,
    dataset: str,
    epsilon: float,
    delta: float,
    unit: str,
    adjacency: str,
    parent: str | None,
    share: str | None,
    output: Output,
) -> None:
    """Make the budget NAME in the ledger at URL."""
    with Ledger.open(url) as ledger:
        ledger.create_budget(
            name,
            dataset,
            epsilon,
            delta,
            unit=unit,
            adjacency=adjacency,
            parent=parent,
            share=share,
        )
        output.result(_standing(ledger, intact=None), _table(ledger))


@command.command()
@url_argument
@output_options
def show(url: str, output: Output) -> None:
    """Show every budget: ceiling, spent, remaining."""
    with Ledger.open(url) as ledger:
        try:
            ledger.verify()
            intact = True
        except VerificationError as error:
            output.say(str(error))
            intact = False
        output.result(_standing(ledger, intact=intact), _table(ledger))


@command.command()
@url_argument
@click.option("--checkpoint", "files", type=PRESENT, multiple=True, help="One kept elsewhere.")
@output_options
def verify(url: str, files: tuple[Path, ...], output: Output) -> None:
    """Recompute every row, charge and balance; name the first bad row."""
    with Ledger.open(url) as ledger:
        checkpoints = [Signed.read(file, "checkpoint") for file in files]
        try:
            found = ledger.verify(checkpoints)
        except VerificationError as error:
            if output.as_json:
                problem: dict[str, Any] = {
                    "budgets": [],
                    "entries": None,
                    "intact": False,
                    "problem": str(error),
                }
                output.result(problem, "")
            raise
        agreeing = f", {found.checkpoints} checkpoints agree" if files else ""
        output.result(
            _standing(ledger, intact=True),
            f"intact: {found.entries} rows, head {found.head}{agreeing}",
        )


@command.command()
@url_argument
@click.option("--out", type=FILE, required=True, help="The checkpoint's file; keep it elsewhere.")
@click.option("--key", type=FILE, help="The ledger's private key, if not beside it.")
@output_options
def checkpoint(url: str, out: Path, key: Path | None, output: Output) -> None:
    """Sign how far the ledger has come, so that a later roll-back is seen."""
    with Ledger.open(url, key=key) as ledger:
        signed = ledger.checkpoint()
        signed.write(out)
        output.result(
            _standing(ledger, intact=None) | {"checkpoint": str(out)},
            f"{out}: {signed.document['rows']} rows, head {signed.document['head']}",
        )


@command.command("export")
@url_argument
@click.option(
    "--format", "kind", type=click.Choice(("json", "csv", "board")), default="json",
    show_default=True, help="All rows, a table, or a page for an ethics board.",
)  # fmt: skip
@click.option("--out", type=FILE, help="Write to a file instead of standard output (-).")
@output_options
def export_command(url: str, kind: str, out: Path | None, output: Output) -> None:
    """Write the ledger for other eyes."""
    if out == Path("-"):
        out = None
    with Ledger.open(url) as ledger:
        writers = {"json": export.to_json, "csv": export.to_csv, "board": export.to_board}
        text = writers[kind](ledger)
        if out is None and output.as_json and kind != "json":
            raise UsageError(345, f"--json and --format {kind} need --out FILE")
        if out is None:
            click.echo(text, nl=False)
            return
        write_atomic(out, text)
        output.result(_standing(ledger, intact=None) | {"file": str(out)}, str(out))


@command.command()
@click.argument("out", type=FILE)
@output_options
def key(out: Path, output: Output) -> None:
    """Make a granter's key at OUT and print its public half for a policy."""
    public = public_hex(make_key(out))
    output.result({"key": str(out), "public_key": public}, public)


@command.command()
@url_argument
@click.argument("name", required=False)
@click.option("--epsilon", type=float, help="The new ceiling.")
@click.option("--who", help="Who grants.")
@click.option("--why", help="Why, for the record.")
@click.option("--key", "key_file", type=FILE, help="The granter's private key.")
@click.option("--out", type=FILE, help="Only sign, into this file; apply it elsewhere.")
@click.option("--file", type=PRESENT, help="Apply a grant that was signed elsewhere.")
@output_options
def grant(
    url: str,
    name: str | None,
    epsilon: float | None,
    who: str | None,
    why: str | None,
    key_file: Path | None,
    out: Path | None,
    file: Path | None,
    output: Output,
) -> None:
    """Raise the ceiling of budget NAME by a signed grant."""
    with Ledger.open(url) as ledger:
        if file is not None:
            signed = Signed.read(file, "grant")
        elif name is None or epsilon is None or not who or not why or key_file is None:
            raise UsageError(
                345, "a grant needs NAME, --epsilon, --who, --why and --key; or --file alone"
            )
        else:
            before = {s.budget.name: s.budget.epsilon for s in ledger.budgets()}
            if name not in before:
                raise UsageError(310, f"no budget {name!r} in this ledger")
            signed = Grant(ledger.id, name, before[name], epsilon, who, why).sign(
                read_key(key_file)
            )
        if out is not None:
            signed.write(out)
            output.result(_standing(ledger, intact=None) | {"file": str(out)}, str(out))
            return
        ledger.grant(signed)
        output.result(_standing(ledger, intact=None), _table(ledger))


@command.command()
@url_argument
@click.option("--replace", type=PRESENT, help="Another policy.toml to put in force.")
@click.option("--who", help="Who decides.")
@click.option("--why", help="Why, for the record.")
@click.option("--key", "key_file", type=FILE, help="A granter's private key.")
@output_options
def policy(
    url: str,
    replace: Path | None,
    who: str | None,
    why: str | None,
    key_file: Path | None,
    output: Output,
) -> None:
    """Show the policy in force, or replace it with a granter's signature."""
    with Ledger.open(url) as ledger:
        if replace is not None:
            if not who or not why or key_file is None:
                raise UsageError(345, "another policy needs --who, --why and --key")
            new = Policy.read(replace)
            change = PolicyChange(ledger.id, ledger.policy_row(), new, who, why)
            ledger.change_policy(change.sign(read_key(key_file)))
        fields = ledger.policy().to_fields()
        lines = [f"{name} = {value}" for name, value in fields.items()]
        output.result(_standing(ledger, intact=None) | {"policy": fields}, "\n".join(lines))


@command.command()
@url_argument
@click.argument("row", type=int)
@click.option(
    "--event", "event_file", type=PRESENT, required=True,
    help="What was not charged: an event's JSON, or a claim.json.",
)  # fmt: skip
@click.option("--why", required=True, help="Why, for the record.")
@click.option("--key", required=True, help="Made and kept by you first: repeating it adds nothing.")
@output_options
def correct(url: str, row: int, event_file: Path, why: str, key: str, output: Output) -> None:
    """Add what reservation ROW failed to charge; nothing is ever taken off."""
    missing = _event(event_file)
    with Ledger.open(url) as ledger:
        added = ledger.correct(row, missing, why, key=key)
        output.result(_standing(ledger, intact=None) | {"row": added.seq}, _table(ledger))


def _event(file: Path) -> Event:
    """The event in a file, which may be a claim's."""
    text = file.read_text("utf-8")
    try:
        claimed = json.loads(text)
        events = claimed["events"] if "type" not in claimed else claimed
        return from_json(json.dumps(events))
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            212, "this file holds neither an event nor a claim", where=str(file)
        ) from None


def _standing(ledger: Ledger, *, intact: bool | None) -> dict[str, Any]:
    """What every subcommand reports under `--json`."""
    budgets = [
        {
            "name": s.budget.name,
            "dataset": s.budget.dataset,
            "people": s.budget.people,
            "epsilon": s.budget.epsilon,
            "delta": s.budget.delta,
            "spent": s.spent,
            "remaining": s.remaining,
            "unit": s.budget.unit,
            "adjacency": s.budget.adjacency,
            "parent": s.budget.parent,
            "share": s.budget.share,
        }
        for s in ledger.budgets()
    ]
    return {
        "ledger": ledger.id,
        "budgets": budgets,
        "entries": ledger.entries(),
        "intact": intact,
    }


def _table(ledger: Ledger) -> str:
    standings = ledger.budgets()
    if not standings:
        return "no budget yet; 'sequester ledger budget' makes one"
    width = max(len(s.budget.name) for s in standings)
    lines = [f"{'budget':{width}}  ceiling ε      spent  remaining  δ        unit"]
    lines += [
        f"{s.budget.name:{width}}  {s.budget.epsilon:9.4g}  {round_up(s.spent):9.4g}  "
        f"{s.remaining:9.4g}  {s.budget.delta:<7.2g}  {s.budget.unit}"
        for s in standings
    ]
    return "\n".join(lines)
