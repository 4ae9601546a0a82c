"""How a site's file is read: its holder's word alone, in a `reading.toml` beside the data.

Whoever says how a file is read says who is a person and which rows there are, and can make the
reading fail or not by what one record holds. So a study, which comes from the server, says none
of it: it names features, ranges, vocabularies and windows, and which values of its own features
mean that nothing was measured. What else it says of the reading must be what the holder says.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from sequester.core.errors import UsageError
from sequester.sequences import Schema
from sequester.sequences.schema import Layout, Repeats, Time, Wide
from sequester.training.dataset import schema_of
from sequester.training.study import Data

_LOG = logging.getLogger("sequester.node")
READING = "reading.toml"
_ASKED_TIME = "time"
"""The time column of a study that names none."""
_STUDYS = "missing"
"""What a study may say of the values of its own features."""


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a `reading.toml` may say: fields of `sequences.Schema` that name no feature.

    `bad_values` is never "refuse" on a node: a file that one value makes unreadable would answer
    any study that declares a column of words as numbers.
    """

    time: Time = Time()
    static: tuple[str, ...] = ()
    site: str = ""
    parameter: str = ""
    value: str = ""
    wide: Wide | None = None
    ignore: tuple[str, ...] = ("*",)
    missing: dict[str, tuple[str, ...]] = {}
    replace: dict[str, dict[str, float]] = {}
    layout: Layout = Layout()
    bad_values: Literal["mask", "drop-row", "drop-person"] = "mask"
    repeats: Repeats = "keep"
    fold_case: bool = False


@dataclass(frozen=True)
class Holder:
    """What only the data's holder says about them, whatever a study says.

    Attributes:
        source: The file; `reading.toml` lies beside it, if it is not read as every default says.
        person: The column that names the person: under another one, a person would be many.
        erased: Register of people who must not be read again; empty for none.
        erased_key: File of its key.
    """

    source: Path
    person: str = "person"
    erased: str = ""
    erased_key: str = ""

    def reading(self, data: Data) -> Data:
        """The study's declarations, on the holder's own file, people and way to read them.

        Raises:
            UsageError: SQ-653 for columns that cannot be what the study declares, SQ-655 for a
                study that says otherwise how the file is read, SQ-656 for a `reading.toml` that is
                none.
        """
        read = self._read()
        column = read["time"]["column"]
        ours = msgspec.structs.replace(data, person=self.person, time=column, read=read)
        try:
            held, asked = _fields(ours), _fields(data)
        except UsageError as problem:
            _LOG.warning("SQ-%d: %s", problem.code, problem.message)
            raise UsageError(
                653,
                f"the study's columns do not fit how this node's file is read (SQ-{problem.code}); "
                "the node's own log says why",
            ) from None
        differing = [
            name
            for name in _said(data.read)
            if not name.startswith(f"{_STUDYS}.")
            and (name not in asked or asked[name] != held.get(name))
        ]
        if data.time not in (_ASKED_TIME, column):
            differing.append("time.column")
        own = {*data.features, *data.categories, data.label}
        theirs = data.read.get(_STUDYS, {})
        differing += [f"{_STUDYS}.{name}" for name in theirs if name not in own]
        if differing:
            raise UsageError(
                655,
                f"the study says otherwise than this node's holder how the file is read: "
                f"{', '.join(sorted(set(differing)))}; leave it out of data.read and data.time, or "
                f"let each holder say it in {READING}",
            )
        missing = {name: tuple(words) for name, words in read.get(_STUDYS, {}).items()}
        for name, words in theirs.items():
            missing[name] = (*missing.get(name, ()), *words)
        erased = {"erased": self.erased, "erased_key": self.erased_key} if self.erased else {}
        return msgspec.structs.replace(
            ours, source=str(self.source), read=read | {_STUDYS: missing} | erased
        )

    def _read(self) -> dict[str, Any]:
        """`[data.read]` as the holder says it; what is not said is as `Reading` has it."""
        file = self.source.parent / READING
        try:
            said = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            reading = msgspec.convert(said, Reading)
            read = {name: _plain(getattr(reading, name)) for name in reading.__struct_fields__}
            known = _said(read)
            if typos := [name for name in _said(said) if name not in known]:
                raise ValueError(f"there is no setting {typos[0]!r}")
        except (OSError, ValueError, UsageError) as problem:
            _LOG.error("%s: %s", file, problem)
            raise UsageError(
                656, f"this node's {READING} cannot be read; its own log says why"
            ) from None
        return read


def _said(read: Mapping[str, Any]) -> list[str]:
    """Names of settings, `section.name` inside a section."""
    names = []
    for name, value in read.items():
        inner = value if isinstance(value, Mapping) and value else {"": None}
        names += [f"{name}.{key}".rstrip(".") for key in inner]
    return names


def _fields(data: Data) -> dict[str, Any]:
    """What each setting comes to, by its name in `_said`."""
    schema: Schema = schema_of(data)
    found: dict[str, Any] = {}
    for field in fields(Schema):
        value = getattr(schema, field.name)
        found[field.name] = value
        inner = _plain(value) if isinstance(value, Mapping | Layout | Time | Wide) else {}
        found |= {f"{field.name}.{key}": each for key, each in inner.items()}
    return found


def _plain(value: Any) -> Any:
    """A section as a table, defaults included; anything else as it is."""
    return asdict(value) if isinstance(value, Layout | Time | Wide) else value
