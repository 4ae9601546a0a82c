"""`sequester doctor STUDY`: check a study against the known pitfalls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from sequester.cli.options import Output, output_options
from sequester.cli.studies import study_at
from sequester.training.doctor import examine

_MARKS = {"critical": "✗", "warning": "!", "note": "·"}


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@output_options
def command(study: Path, output: Output) -> None:
    """Check STUDY, a TOML file, against the known pitfalls; exit 4 if a critical one is there.

    Under --quiet only what failed is printed.
    """
    with study_at(study) as asked:
        checks = examine(asked)
    lines = []
    for check in sorted(checks, key=lambda c: (c.passed, list(_MARKS).index(c.severity))):
        if output.quiet and check.passed:
            continue
        mark = "✓" if check.passed else _MARKS[check.severity]
        severity = "" if check.passed else f"{check.severity}: "
        lines.append(f"{mark} {check.name:22} {severity}{check.detail}")
    if lines or output.as_json:
        output.result({"checks": [asdict(check) for check in checks]}, "\n".join(lines))
    if any(check.severity == "critical" and not check.passed for check in checks):
        raise click.exceptions.Exit(4)
