"""Which names of columns an error may quote: a first line that is no header is somebody's record.

A file without a header, and JSON objects keyed by person, put values where names are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MOST = 40
# Begins with a letter, is short, and holds no address, number, date or UUID.
_NAME = re.compile(r"(?!.*[0-9]{4})(?![0-9a-fA-F-]{32,}$)[^\W\d_][\w .()/%-]{0,39}")


def quoted(names: Sequence[str]) -> str:
    """Names of a table that is known to have a header, as text; others are counted."""
    shown = [repr(name) for name in names[:_MOST] if _NAME.fullmatch(name)]
    if hidden := len(names) - len(shown):
        shown.append(f"{hidden} {'more ' if shown else ''}that are not quoted here")
    return ", ".join(shown)


def columns_of(here: Sequence[str], needed: Sequence[str]) -> str:
    """What a source has instead of a column that is needed, as the end of a sentence.

    Names are told only where at least half of what is needed is among them, in any case, and none
    looks like a value.

    Args:
        here: What stands where names belong.
        needed: Names that are declared.
    """
    found = {name.strip().casefold() for name in here}
    known = 2 * sum(name.casefold() in found for name in needed) >= len(needed)
    if known and all(map(_NAME.fullmatch, here)):
        return f"the columns are {quoted(here)}"
    return (
        f"there are {len(here)} columns, and what stands where their names belong may be "
        "somebody's record: is there a header (layout.header, layout.names)?"
    )
