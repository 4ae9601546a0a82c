"""`sequester inspect DATA`: look at people's records before training."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec

from sequester.cli.options import Output, output_options
from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.sequences import People, Query, Schema
from sequester.sequences.figure import inspection_png, inspection_svg
from sequester.sequences.inspection import Inspection, inspect
from sequester.sequences.pictures import inspection_html, inspection_text
from sequester.sequences.points import CLOCKS, Points, in_words
from sequester.sequences.singling import singled_out

BUILTIN = {"builtin:randhie", "simulated:mobility"}


@click.command()
@click.argument("data")
@click.option("--person", default="person", show_default=True, help="Column that names the person.")
@click.option("--time", default="time", show_default=True, help='Time column; "" for none.')
@click.option(
    "--point",
    "points",
    multiple=True,
    metavar="C[=WIDTH]",
    help="Column of what an outsider may know, in cells of WIDTH; repeat for more.",
)
@click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    default="hour-of-week",
    show_default=True,
    help="How time enters a point.",
)
@click.option("--time-format", "formats", multiple=True, help="strptime format; repeat for more.")
@click.option(
    "--time-kind",
    default=None,
    type=click.Choice(["absolute", "elapsed", "clock", "step"]),
    help="What time means.",
)
@click.option("--time-unit", default=None, help="Unit of numbers: ns us ms s min h d.")
@click.option("--zone", default=None, help="IANA zone of times without an offset.")
@click.option("--site", default=None, help="Column that names the site.")
@click.option("--delimiter", default=None, help="Of text files.")
@click.option(
    "--bad-values",
    default=None,
    type=click.Choice(["refuse", "mask", "drop-row", "drop-person"]),
    help="What values that cannot be read do.",
)
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(exists=True, dir_okay=False),
    help="TOML file with the whole schema.",
)
@click.option("--query", is_flag=True, help="DATA is SQL; --url says of which database.")
@click.option("--url", default="duckdb:", help="duckdb:FILE or postgresql://… for --query.")
@click.option(
    "--draws",
    default=100,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Draws of points a person.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the pictures to FILE.html, .svg or .png.",
)
@click.option(
    "--label", default="", help="Column of the answer: look for columns that give it away."
)
@click.option(
    "--memory",
    type=click.IntRange(min=256),
    help="MiB to read with, for data larger than memory; columns must be declared.",
)
@output_options
def command(*, output: Output, data: str, out: Path | None, **options: Any) -> None:
    """Look at people's records: counts, skew, gaps, missing values, how identifying they are.

    DATA is a CSV, Parquet, Arrow or JSON-lines file, a folder, a path with {person} or *,
    builtin:randhie or simulated:mobility. What is shown is private: it is for whoever holds the
    data.
    """
    people = _people(data, options)
    cells = dict(_cell(point) for point in options["points"])
    cells = cells or dict.fromkeys(people.columns[:1], 0.0)
    shares = singled_out(Points(people, cells, options["clock"]), draws=options["draws"])
    found = inspect(people, shares, in_words(people, cells, options["clock"]))
    if options["label"]:
        found.warnings.extend(_leaks(people, options["label"]))
    if out is not None:
        write_atomic(out, _drawn(found, out.suffix.lower(), Path(data).name), private=True)
        output.say(f"wrote {out}")
    output.result(dataclasses.asdict(found), inspection_text(found))


def _drawn(found: Inspection, suffix: str, name: str) -> str | bytes:
    """The file to write.

    Raises:
        UsageError: SQ-129 for another suffix.
    """
    title = f"Inspection of {name}"
    if suffix == ".html":
        return inspection_html(found, title)
    if suffix == ".svg":
        return inspection_svg(found, title)
    if suffix == ".png":
        return inspection_png(found, title)
    raise UsageError(129, f"pictures are written as .html, .svg or .png, got {suffix!r}")


def _leaks(people: People, label: str) -> list[str]:
    """Columns that give the label away, and what the verdict cost."""
    from sequester.audit.leakage import leakage  # torch, only where it is asked for

    found = leakage(people, label)
    cost = f"a noisy verdict: ε = {found.epsilon:g}, δ = {found.delta:g} if it is shown to others"
    if not found.told:
        return [f"too few people to tell whether a column gives {label!r} away ({cost})"]
    return [
        f"column {name!r} gives {label!r} away: it is the answer, or known only afterwards ({cost})"
        for name in found.columns
    ]


def _people(data: str, options: dict[str, Any]) -> People:
    if data in BUILTIN:
        from sequester.sequences import datasets, mobility

        return datasets.randhie() if data == "builtin:randhie" else mobility.simulate()
    source = Query(data, options["url"]) if options["query"] else data
    memory = options["memory"]
    return People.read(source, _schema(options), memory=memory << 20 if memory else None)


def _schema(options: dict[str, Any]) -> Schema:
    """The schema file, with what the options say on top.

    Raises:
        UsageError: SQ-124 for a file that is no schema.
    """
    declared: dict[str, Any] = {}
    if options["schema_file"]:
        try:
            declared = tomllib.loads(Path(options["schema_file"]).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(124, f"the schema is no TOML: {error}") from None
    else:
        declared = {"person": options["person"], "time": {"column": options["time"]}}
    time = {
        "formats": list(options["formats"]) or None,
        "kind": options["time_kind"],
        "unit": options["time_unit"],
        "zone": options["zone"],
    }
    declared["time"] = declared.get("time", {}) | {k: v for k, v in time.items() if v is not None}
    if options["site"]:
        declared["site"] = options["site"]
    if options["bad_values"]:
        declared["bad_values"] = options["bad_values"]
    if options["delimiter"]:
        delimiter = options["delimiter"].replace("\\t", "\t")
        declared["layout"] = declared.get("layout", {}) | {"delimiter": delimiter}
    return schema_of(declared)


def schema_of(declared: dict[str, Any]) -> Schema:
    """A schema from plain values; unknown fields are refused.

    Raises:
        UsageError: SQ-124.
    """
    known = {field.name for field in dataclasses.fields(Schema)}
    if unknown := sorted(set(declared) - known):
        raise UsageError(
            124, f"a schema has no field {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    try:
        return msgspec.convert(declared, Schema)
    except msgspec.ValidationError as error:
        raise UsageError(124, f"schema: {error}") from None


def _cell(point: str) -> tuple[str, float]:
    """`lat=0.01` as a column and the width of its cells."""
    name, _, width = point.rpartition("=")
    if not name:
        return point, 0.0
    try:
        return name, float(width)
    except ValueError:
        return point, 0.0
