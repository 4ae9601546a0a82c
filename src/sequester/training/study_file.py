"""Reads a study from TOML so that every mistake names its file and line, and writes it back."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sequester.core.errors import SequesterError, UsageError
from sequester.training.study import Data, Study

_SIZE_LIMIT = 1 << 20
_HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(#.*)?$")
_FIELD = re.compile(r"`?\$?([a-z_]+(?:\.[A-Za-z0-9_\-]+)*)`?")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-\"'.]+)\s*=")


def read_study(path: Path) -> Study:
    """Decode and check a study.

    Raises:
        UsageError: SQ-260 if the file cannot be read as TOML, SQ-261 for a field that does not
            exist or has the wrong type, SQ-262 and more from `check` for values that do not
            go together; each names the file and the line.
    """
    if not path.is_file():
        raise UsageError(260, "no such study; give the path of a TOML file", where=str(path))
    if path.stat().st_size > _SIZE_LIMIT:
        raise UsageError(260, f"a study has at most {_SIZE_LIMIT} bytes", where=str(path))
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(260, f"this is not TOML: {problem}", where=str(path)) from None
    try:
        return decode(raw)
    except SequesterError as mistake:
        raise _placed(mistake, path, text) from None


@contextmanager
def naming_lines(path: Path) -> Iterator[None]:
    """Let refusals that name a field of the study in `path` name its file and line."""
    try:
        yield
    except SequesterError as mistake:
        if not _FIELD.fullmatch(mistake.where or ""):
            raise
        text = path.read_text(encoding="utf-8", errors="replace")
        raise _placed(mistake, path, text) from mistake


def _placed(mistake: SequesterError, path: Path, text: str) -> SequesterError:
    """The same refusal at the line of the study that sets its field."""
    found = re.search(_FIELD, mistake.where or "")
    line = line_of(text, found.group(1)) if found else None
    place = f"{path.name}, line {line}" if line else str(path)
    return type(mistake)(mistake.code, mistake.message, where=place)


def decode(raw: dict[str, Any]) -> Study:
    """A study from plain values, strictly; `where` of an error is the dotted field.

    Raises:
        UsageError: SQ-261 or what `check` raises.
    """
    try:
        study = msgspec.convert(raw, Study)
    except msgspec.ValidationError as problem:
        message, _, place = str(problem).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        unknown = re.search(r"unknown field `([^`]+)`", message)
        if unknown:
            field = f"{field}.{unknown.group(1)}".lstrip(".")
        elif message.startswith("Object missing"):
            missing = re.search(r"required field `([^`]+)`", message)
            message = f"{message}: a study needs it"
            field = field or (missing.group(1) if missing else "")
        raise UsageError(261, f"{message} in [{field or 'study'}]", where=field or None) from None
    check(study)
    return study


def checked(study: Study) -> Study:
    """A study built in Python, as it will be read back from its run folder.

    Raises:
        UsageError: as for `decode`.
    """
    return decode(tomllib.loads(to_toml(study)))


def check(study: Study) -> None:
    """What types alone cannot say.

    Raises:
        UsageError: SQ-201, 202, 214, 231, 234, 262 to 266, 273 to 275, 278 and 279, `where` naming
            the field.
    """
    data, privacy, training = study.data, study.privacy, study.training
    rules = [
        (data.population >= 1, 262, "data.population", "must be ≥ 1"),
        (bool(data.features or data.categories), 262, "data.features", "must not be empty"),
        (0 < privacy.delta < 1, 201, "privacy.delta", "must lie strictly between 0 and 1"),
        (privacy.epsilon is None or privacy.epsilon > 0, 202, "privacy.epsilon", "must be > 0"),
        (
            privacy.noise_multiplier is None or privacy.noise_multiplier > 0,
            214,
            "privacy.noise_multiplier",
            "must be > 0; larger is more private. 'sequester calibrate' picks one",
        ),
        (privacy.clip > 0, 234, "privacy.clip", "must be > 0"),
        (0 < training.sampling_rate <= 1, 231, "training.sampling_rate", "must lie in (0, 1]"),
        (
            0 <= training.lot_size <= data.population,
            263,
            "training.lot_size",
            "must lie in [0, data.population]",
        ),
        (training.steps >= 1, 263, "training.steps", "must be ≥ 1"),
        (training.learning_rate > 0, 263, "training.learning_rate", "must be > 0"),
        (0 <= training.momentum < 1, 263, "training.momentum", "must lie in [0, 1)"),
        (0 <= training.average < 1, 263, "training.average", "must lie in [0, 1)"),
        (training.checkpoint_every >= 1, 263, "training.checkpoint_every", "must be ≥ 1"),
        (0 < privacy.estimates < 1, 263, "privacy.estimates", "must lie in (0, 1)"),
        (0 < data.holdout.share < 1, 263, "data.holdout.share", "must lie in (0, 1)"),
        (data.window >= 1, 263, "data.window", "must be ≥ 1"),
        (data.stride >= 1, 263, "data.stride", "must be ≥ 1"),
        (all(lag > data.horizon for lag in data.lags), 263, "data.lags", "must exceed horizon"),
        (data.habits >= 0, 263, "data.habits", "must be ≥ 0"),
        (not data.habits or data.horizon == 1, 263, "data.horizon", "must be 1 with data.habits"),
        (data.horizon >= 1, 263, "data.horizon", "must be ≥ 1"),
        (
            data.holdout.column not in (data.person, data.time) or not data.holdout.column,
            279,
            "data.holdout.column",
            "must not be the column of persons or of times: name one that says which part of the "
            "people somebody belongs to, or hold out a share",
        ),
    ]
    for good, code, field, allowed in rules:
        if not good:
            raise UsageError(code, f"{field} {allowed}, got {_value(study, field)}", where=field)
    _check_unit(study)
    _check_holdout(study)
    _check_privacy(study)
    _check_columns(study.data)


def _check_columns(data: Data) -> None:
    """Ranges, centres and vocabularies are there and make sense; no input is the answer."""
    if data.task == "label" and data.label in (*data.features, *data.categories):
        kind = "features" if data.label in data.features else "categories"
        raise UsageError(
            278,
            f"{data.label!r} is the label and an input of the same record: the model would be told "
            f"what it shall predict. Remove [data.{kind}.{data.label}], or predict its next value "
            "(data.task = 'forecast' or 'next')",
            where=f"data.{kind}.{data.label}",
        )
    for name, feature in data.features.items():
        if not feature.lower < feature.upper:
            raise UsageError(
                264,
                f"the range of feature {name!r} must have lower < upper, got {feature.lower} and "
                f"{feature.upper}; state what is publicly known, not what the data hold",
                where=f"data.features.{name}",
            )
        if feature.centre is not None and not feature.lower <= feature.centre <= feature.upper:
            raise UsageError(
                264,
                f"the centre of feature {name!r} must lie in its range, got {feature.centre}",
                where=f"data.features.{name}.centre",
            )
    for name, category in data.categories.items():
        if not category.values and not category.estimate:
            raise UsageError(
                264,
                f"category {name!r} needs `values` (public) or `estimate = true` (found "
                "privately and charged); it is never read silently from the data",
                where=f"data.categories.{name}",
            )


def _check_holdout(study: Study) -> None:
    """A figure that is privatised must be charged to somebody: without a ledger it is not."""
    ledger = study.ledger
    if study.data.holdout.protection == "privatised" and not (ledger and ledger.holdout_budget):
        raise UsageError(
            273,
            "a privatised figure of merit is charged to the held-out people: declare a [ledger] "
            "and name their budget in ledger.holdout_budget ('sequester ledger budget' makes one)",
            where="ledger" if ledger else "data.holdout.protection",
        )


def _check_unit(study: Study) -> None:
    """A record is a unit of its own only where nothing joins it to others."""
    data = study.data
    if study.unit.kind != "step":
        return
    rules = [
        (data.window == data.stride == 1, "data.window", "window = 1 and stride = 1"),
        (data.task == "label" and data.level == "step", "data.task", "a label at every step"),
        (not data.lags, "data.lags", "no lags"),
        (not data.habits, "data.habits", "no habits"),
        (not data.gap, "data.gap", "no gap"),
    ]
    for good, field, needed in rules:
        if not good:
            raise UsageError(
                275,
                f"under unit 'step' each record is alone, which needs {needed}; otherwise one "
                "record would be in the inputs or answers of several. Use unit 'person'",
                where=field,
            )


def _check_privacy(study: Study) -> None:
    privacy = study.privacy
    if privacy.mode == "none":
        return
    estimated = [bool(feature.estimate) for feature in study.data.features.values()]
    estimated += [category.estimate for category in study.data.categories.values()]
    if study.unit.kind != "person" and any(estimated):
        raise UsageError(
            274,
            "ranges, means and vocabularies are estimated with one bounded vote per person, and "
            f"under unit {study.unit.kind!r} its sensitivity is another. Declare them publicly, or "
            "set unit.kind = 'person'",
            where="unit.kind",
        )
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        raise UsageError(
            265,
            "privacy needs epsilon (noise is solved for it) or noise_multiplier; a person-level "
            "ε of 1 to 3 is a usual start",
            where="privacy.epsilon",
        )
    if privacy.delta >= 1.0 / study.units:
        raise UsageError(
            266,
            f"privacy.delta must be below 1/population = {1 / study.units:.3g}, got "
            f"{privacy.delta}: at that δ publishing all of one {study.unit.kind} outright is "
            "allowed. Use 1e-5 or less",
            where="privacy.delta",
        )
    # With few people 1/N is large, and a δ just below it still protects nobody.
    if privacy.delta > 1e-3:
        raise UsageError(
            266,
            f"privacy.delta must be ≤ 1e-3 whatever the population, got {privacy.delta}; a "
            "small population makes 1/N large, not safe. Use 1e-5 or less",
            where="privacy.delta",
        )


def _value(study: Study, field: str) -> object:
    value: Any = study
    for name in field.split("."):
        value = getattr(value, name)
    return value


def line_of(text: str, field: str) -> int | None:
    """The line that sets the dotted `field`, or the nearest table around it; from 1."""
    wanted = field.split(".")
    best: tuple[int, int] | None = None  # how many parts agree, and the line
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _parts(header.group(1))
            here = table
        elif key := _KEY.match(line):
            here = table + _parts(key.group(1))
        else:
            continue
        agree = len(here) if here == wanted[: len(here)] else 0
        if agree and (best is None or agree > best[0]):
            best = (agree, number)
    return best[1] if best else None


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.strip().split(".")]


def to_toml(study: Study) -> str:
    """The study as TOML, defaults filled in, so that it can be run again as it ran."""
    plain = msgspec.to_builtins(study)
    lines: list[str] = []
    _write_table(plain, [], lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(table: dict[str, Any], path: list[str], lines: list[str]) -> None:
    simple = {k: v for k, v in table.items() if v is not None and not isinstance(v, dict)}
    nested = {k: v for k, v in table.items() if isinstance(v, dict)}
    if path and (simple or not nested):
        lines += ["", f"[{'.'.join(_bare(part) for part in path)}]"]
    lines += [f"{_bare(key)} = {_literal(value)}" for key, value in simple.items()]
    for key, value in nested.items():
        if value or path == ["federated"]:  # an empty `[federated.secagg]` asks for it
            _write_table(value, [*path, key], lines)


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _literal(key)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    escaped = msgspec.json.encode(str(value)).decode()
    return escaped.replace("\x7f", "\\u007f")
