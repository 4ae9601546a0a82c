"""A thousand people whose identifiers and values cannot be mistaken for anything else.

Whatever carries the marks of one of them into a file or onto a terminal gives a person away.
"""

import re
import struct
from pathlib import Path

PEOPLE, RECORDS = 1000, 4
ID, WORD = "zqxjk", "wvkqz"
_VALUE = "0.91736"
MARKS = {
    "an identifier": re.compile(rb"(?i)zqxjk"),
    "a word from a cell": re.compile(rb"(?i)wvkqz"),
    "a value": re.compile(rb"0?\.91736\d|9\.1736\d*e-0?1"),
    # All values share the upper bytes of their binary forms.
    "a float64 value": re.compile(re.escape(struct.pack("<d", 0.917361)[5:])),
}


def identifier(person: int) -> str:
    return f"{ID}{person:04d}{person * 7919 % 9973:04d}"


def value(person: int, record: int) -> str:
    """Seven digits after the shared ones say whose it is."""
    return f"{_VALUE}1{person:04d}{record}{person % 7}"


def write_table(path: Path, *, spoilt: str = "", order: int = 1) -> Path:
    """The canaries' records as CSV: one cell of the first person's replaced by `spoilt`."""
    lines = ["person,time,site,reading,second,kind,label"]
    for person in range(PEOPLE)[::order]:
        for record in range(RECORDS):
            cell = spoilt if spoilt and not (person or record) else value(person, record)
            kind = "ab"[(person + record) % 2]
            lines.append(
                f"{identifier(person)},{record},s{person % 3},{cell},"
                f"{value(person, record + RECORDS)},{kind},{(person + record) % 2}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def marks_in(data: bytes) -> list[str]:
    """Which marks `data` carries, each with where."""
    found = []
    for what, pattern in MARKS.items():
        if hit := pattern.search(data):
            around = data[max(0, hit.start() - 120) : hit.end() + 60]
            found.append(f"{what}: …{around!r}…")
    return found
