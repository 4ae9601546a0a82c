"""What every verb shares: `--json`, `--quiet`, and where messages go."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from sequester.core import canonical


@dataclass(frozen=True)
class Output:
    """Where a verb's words go: the result to standard output, all else to standard error."""

    as_json: bool
    quiet: bool

    def say(self, message: str) -> None:
        """A message for the person at the terminal; nothing under `--quiet`."""
        if not self.quiet:
            click.echo(message, err=True)

    def confide(self, message: str) -> None:
        """What was computed on people: on a terminal alone, because a log can leave."""
        if sys.stderr.isatty():
            self.say(message)

    def result(self, fields: dict[str, Any], text: str) -> None:
        """The verb's result: one JSON object under `--json`, otherwise `text`."""
        if self.as_json:
            plain = json.loads(canonical.dumps(fields))
            click.echo(json.dumps(plain, ensure_ascii=False))
        else:
            click.echo(text)


def output_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--json` and `--quiet`; the verb receives them as `output: Output`."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
    @click.option("--quiet", is_flag=True, help="No progress and no messages.")
    @functools.wraps(function)
    def wrapper(*, as_json: bool, quiet: bool, **arguments: Any) -> None:
        function(output=Output(as_json, quiet), **arguments)

    return wrapper
