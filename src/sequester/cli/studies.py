"""A study as a verb uses it: errors name its line, and modules beside it can be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sequester.cli.options import Output
from sequester.sequences import People
from sequester.training import Study, read_study
from sequester.training.dataset import split
from sequester.training.sources import read_people
from sequester.training.study_file import naming_lines


@contextmanager
def study_at(path: Path) -> Iterator[Study]:
    """The study in the file `path`, for as long as it is used.

    Raises:
        UsageError: as for `read_study`; what is refused later names the file and line too.
    """
    folder = str(path.resolve().parent)
    # `model.module` may name a file beside the study, as `data.source` does.
    sys.path.insert(0, folder)
    try:
        with naming_lines(path):
            yield read_study(path)
    finally:
        sys.path.remove(folder)


def people_of(study: Study, beside: Path | None, output: Output) -> People:
    """Read the study's people, and tell the terminal what reading left out or blanked.

    A wrong date format or a word column taken for numbers shows nowhere else before a charge.
    """
    people = read_people(study.data, beside=beside)
    for reason, rows in people.facts.dropped.most_common():
        output.confide(f"reading (private): {rows:,} rows left out: {reason}")
    for place, values in people.facts.masked.most_common():
        output.confide(f"reading (private): {values:,} values taken as missing: {place}")
    if sys.stderr.isatty() and (words := crowd(study, people)):
        output.confide(f"reading (private): {words}")
    return people


_FAR = 0.1
"""Share of the declared population by which the people who are there may differ unremarked."""


def crowd(study: Study, people: People) -> str:
    """What is wrong with the declared population, for whoever holds the data; "" if nothing."""
    declared, here = study.data.population, len(split(people, study.data)[0])
    remedy = "Declare a round figure that is public, not this count"
    if here > (1.0 + _FAR) * declared:
        return (
            f"WARNING: {here:,} people to train on, where data.population declares {declared:,}: "
            f"δ must be far below 1/{here:,}, and updates are divided by too small a number. "
            f"{remedy}"
        )
    if here < (1.0 - _FAR) * declared:
        return (
            f"warning: {here:,} people to train on, where data.population declares {declared:,}: "
            f"lots are smaller than planned, and noise weighs more. {remedy}"
        )
    return ""
