"""From a study's declarations to lots: the whole of training, and the people held out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import torch

from sequester.core.errors import UsageError
from sequester.models import Binary, Classes, Forecast, Rule, Shape, Task
from sequester.sampling import Lot
from sequester.sequences import Features, People, Range, Schema, Target, Time, Windows
from sequester.training.habits import followers
from sequester.training.study import Data, Feature, Study

_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class Prepared:
    """What training works on.

    Attributes:
        train: Everybody who may be in a lot.
        held_out: People for evaluation only.
        task: What is predicted.
        shape: Public sizes for the network.
        groups: Group name of each training person, `(people,)`, or None; private.
    """

    train: Lot
    held_out: Lot
    task: Task
    shape: Shape
    groups: np.ndarray | None


def schema_of(data: Data) -> Schema:
    """How the source is read: the study's columns, and what `[data.read]` adds.

    Raises:
        UsageError: SQ-267 for a field of `[data.read]` that does not exist.
    """
    numeric = list(data.features)
    categorical = list(data.categories)
    if data.label not in (*numeric, *categorical):
        (categorical if data.task == "next" else numeric).append(data.label)
    for extra in (data.group, data.holdout.column):
        if extra and extra not in (*numeric, *categorical, data.read.get("site", "")):
            categorical.append(extra)
    declared: dict[str, Any] = {
        "person": data.person,
        "time": {"column": data.time},
        "numeric": numeric,
        "categorical": categorical,
        "ignore": ["*"],
    }
    extra_time = data.read.get("time", {})
    merged = {**declared, **data.read, "time": {**declared["time"], **extra_time}}
    for kind, given in ((Schema, merged), (Time, merged["time"])):
        names = {field.name for field in dataclasses.fields(kind)}
        if unknown := sorted(set(given) - names):
            raise UsageError(
                267,
                f"data.read has no field {unknown[0]!r}; it takes {', '.join(sorted(names))}",
                where="data.read",
            )
    try:
        return msgspec.convert(merged, Schema)
    except msgspec.ValidationError as problem:
        raise UsageError(267, f"data.read: {problem}", where="data.read") from None


def split(people: People, data: Data) -> tuple[People, People]:
    """Training people and held-out people; no person is on both sides."""
    if not data.holdout.column:
        return people.split("person", held_out=data.holdout.share)
    chosen = in_holdout(people, data)
    return people.select(np.flatnonzero(~chosen)), people.select(np.flatnonzero(chosen))


def in_holdout(people: People, data: Data) -> np.ndarray:
    """Who has the declared value: as their site, or in their last record; bool `(people,)`."""
    held = data.holdout
    if is_site(people, held.column, data.read.get("site", "site")):
        here: np.ndarray = people.site == _place(held.value, people.site_names)
        return here
    last = people.offsets[1:] - 1
    has_records = people.counts > 0
    words = people.codes(held.column, (held.value,))
    chosen = np.zeros(len(people), dtype=bool)
    chosen[has_records] = words[last[has_records]] == 1
    return chosen


def is_site(people: People, column: str, site: str) -> bool:
    """Whether a column's name means the people's sites."""
    return bool(people.site_names) and column in (site, "")


def _place(name: str, names: tuple[str, ...]) -> int:
    """Position of a name; -1 if nobody has it."""
    return names.index(name) if name in names else -1


def prepare(study: Study, people: People, *, key: bytes) -> Prepared:
    """Split people, cut windows and code features by the study's public declarations.

    Args:
        study: Every range and vocabulary in it is public or already estimated privately.
        people: Who was read.
        key: Secret of the choice of windows where contribution is bounded.
    """
    data = study.data
    train, held_out = split(people, data)
    parts = [lot_of(part, data, key=key) for part in (train, held_out)]
    return Prepared(
        train=parts[0],
        held_out=parts[1],
        task=task_of(data),
        shape=shape_of(study),
        groups=group_of(train, data.group, data.read.get("site", "site")) if data.group else None,
    )


def shape_of(study: Study) -> Shape:
    """The network's public sizes, from declarations alone."""
    data = study.data
    width = len(data.features) * (2 if data.missing_flags else 1)
    width += bool(data.gap) + 4 * data.clock + (data.span is not None)
    return Shape(
        features=width,
        vocabularies=vocabularies_of(data),
        steps=data.window,
        outputs=task_of(data).outputs,
        pool="none" if each_step(data) else study.model.pool,
    )


def vocabularies_of(data: Data) -> tuple[int, ...]:
    """Sizes of the categorical columns' vocabularies: plain ones, then lags, then habits."""
    sizes = [len(category.values) for category in data.categories.values()]
    lagged = [size for size in sizes for _ in data.lags]
    return (*sizes, *lagged, *(size for size in sizes for _ in range(data.habits)))


def each_step(data: Data) -> bool:
    """Whether the model answers at every step."""
    return data.task == "next" or (data.task == "label" and data.level == "step")


def task_of(data: Data) -> Task:
    """The task with its public sizes.

    Raises:
        UsageError: SQ-268 if "next" predicts a column without a vocabulary.
    """
    if data.task == "label":
        return Binary(rule=_rule(data))
    if data.task == "next":
        if data.label not in data.categories:
            raise UsageError(
                268,
                f"task 'next' predicts a category: declare [data.categories.{data.label}] with "
                "its public values",
                where="data.label",
            )
        return Classes(outputs=len(data.categories[data.label].values), copies=_copies(data))
    if data.label not in data.features:
        raise UsageError(
            268,
            f"task 'forecast' predicts a number: declare [data.features.{data.label}] with its "
            "public range",
            where="data.label",
        )
    feature = data.features[data.label]
    return Forecast(scale=(feature.upper - feature.lower) / 2.0)


def _rule(data: Data) -> Rule | None:
    """The declared rule to beat, on scaled features.

    Raises:
        UsageError: SQ-268 if it names no feature.
    """
    if data.baseline is None:
        return None
    if data.baseline.feature not in data.features:
        raise UsageError(
            268,
            f"data.baseline.feature must be one of the study's features, got "
            f"{data.baseline.feature!r}",
            where="data.baseline.feature",
        )
    feature = data.features[data.baseline.feature]
    at_least = _scaled(feature, data.baseline.at_least) - _centre(feature)
    column = list(data.features).index(data.baseline.feature)
    return Rule(column=column, at_least=at_least, name=data.baseline.name)


def _copies(data: Data) -> dict[str, tuple[int, ...]]:
    """Rules that repeat an earlier class of the label, and the columns that hold it."""
    place, count = list(data.categories).index(data.label), len(data.categories)
    first = count + place * len(data.lags)
    rules: dict[str, tuple[int, ...]] = {"the same class again": (place,)}
    rules |= {f"the class {lag} records before": (first + i,) for i, lag in enumerate(data.lags)}
    if data.habits:
        habit = count + count * len(data.lags) + place * data.habits
        rules["the person's own Markov chain"] = (habit, first) if data.lags else (habit,)
    return rules


def _scaled(feature: Feature, value: float) -> float:
    """A value in the feature's unit, on [-1, 1]."""
    scale = Range(feature.lower, feature.upper, feature.log).scale
    return float(scale(np.array([value], dtype=np.float64))[0])


def _centre(feature: Feature) -> float:
    """Where the feature's zero lies on [-1, 1]."""
    return 0.0 if feature.centre is None else _scaled(feature, feature.centre)


def lot_of(people: People, data: Data, *, key: bytes) -> Lot:
    """All windows of `people` as one lot."""
    features = features_of(data)
    target = Target(
        column=data.label,
        kind="word" if data.task == "next" else "number",
        ahead=0 if data.task == "label" else data.horizon,
        each_step=each_step(data),
        vocabulary=data.categories[data.label].values if data.task == "next" else (),
    )
    cut = people.windows(
        data.window,
        data.stride,
        data.max_per_person or None,
        features=features,
        target=target,
        key=key,
    )
    numbers = _numbers(cut.x, data) if _needs_flags(data) else cut.x
    x = np.concatenate([numbers, *_calendar(people, cut, data)], axis=2)
    past = [*_lagged(people, cut, data), *_habits(people, cut, data)]
    codes = np.concatenate([cut.categorical, *past], axis=2)
    categorical = torch.from_numpy(codes) if data.categories else None
    return Lot(
        x=torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)),
        mask=torch.from_numpy(cut.mask),
        target=_target(cut, data),
        owner=torch.from_numpy(cut.owner.astype(np.int64)),
        people=cut.person_count,
        categorical=categorical,
    )


def features_of(data: Data) -> Features:
    """What a window carries of each record, with the study's declarations."""
    return Features(
        numeric={n: Range(f.lower, f.upper, f.log) for n, f in data.features.items()},
        categorical={name: c.values for name, c in data.categories.items()},
        missing_flags=_needs_flags(data),
        gap=Range(0.0, data.gap, log=True) if data.gap else None,
    )


def _needs_flags(data: Data) -> bool:
    """Whether it matters where a number was measured."""
    centred = any(feature.centre is not None for feature in data.features.values())
    return data.missing_flags or data.fill == "forward" or centred


def _numbers(x: np.ndarray, data: Data) -> np.ndarray:
    """Numbers moved to their centres, the missing ones filled.

    Args:
        x: Numbers, their measured flags, then the rest: float32 `(windows, steps, features)`.
        data: Says how many there are, how they are filled, and whether the flags stay.
    """
    count = len(data.features)
    values, measured, rest = np.split(x, [count, 2 * count], axis=2)
    centres = np.array([_centre(f) for f in data.features.values()], dtype=np.float32)
    values = np.where(measured > 0, values - centres, np.float32(0))
    if data.fill == "forward":
        steps = np.arange(x.shape[1])[None, :, None]
        seen = np.maximum.accumulate(np.where(measured > 0, steps, -1), axis=1)
        carried = np.take_along_axis(values, np.maximum(seen, 0), axis=1)
        values = np.where(seen >= 0, carried, np.float32(0))
    kept = [values, measured, rest] if data.missing_flags else [values, rest]
    return np.concatenate(kept, axis=2)


def _target(cut: Windows, data: Data) -> torch.Tensor:
    if cut.target is None or cut.target_mask is None:
        raise UsageError(268, "the study predicts nothing; set data.label", where="data.label")
    if data.task == "next":
        return torch.from_numpy(np.where(cut.target_mask, cut.target, -1))
    values = cut.target.astype(np.float32)
    if data.task == "forecast":
        feature = data.features[data.label]
        values = Range(feature.lower, feature.upper).scale(values).astype(np.float32)
    return torch.from_numpy(np.where(cut.target_mask, values, np.float32("nan")))


def _rows(cut: Windows) -> np.ndarray:
    """The record of every step, int64 `(windows, steps)`; the last one where masked."""
    taken = cut.mask.sum(axis=1)
    rows = (cut.end - taken + 1)[:, None] + np.arange(cut.mask.shape[1])
    found: np.ndarray = np.minimum(rows, cut.end[:, None])
    return found


def _lagged(people: People, cut: Windows, data: Data) -> list[np.ndarray]:
    """Each category as it was some records before the predicted one, `(windows, steps, k)`.

    The window's own person's earlier records only; 0 (missing) before their first.
    """
    if not data.lags or not data.categories:
        return []
    rows = _rows(cut)
    first = people.offsets[:-1][cut.owner][:, None]
    columns = []
    for name, category in data.categories.items():
        codes = people.codes(name, category.values)
        for lag in data.lags:
            at = rows + data.horizon - lag
            inside = (at >= first) & cut.mask
            columns.append(np.where(inside, codes[np.maximum(at, first)], 0))
    return [np.stack(columns, axis=2).astype(np.int64)]


def _habits(people: People, cut: Windows, data: Data) -> list[np.ndarray]:
    """What followed the present category in the person's own past, `(windows, steps, k)`."""
    if not data.habits or not data.categories:
        return []
    rows = _rows(cut)
    columns = []
    for name, category in data.categories.items():
        codes = people.codes(name, category.values).astype(np.int64)
        columns.append(followers(codes, people.owner, data.habits)[rows] * cut.mask[..., None])
    return [np.concatenate(columns, axis=2)]


def _calendar(people: People, cut: Windows, data: Data) -> list[np.ndarray]:
    """Features of the clock and of the public span, each `(windows, steps, k)` float32."""
    if not (data.clock or data.span):
        return []
    if people.time_kind != "absolute":
        raise UsageError(
            269,
            f"data.clock and data.span need calendar times, but times here are {people.time_kind}",
            where="data.clock" if data.clock else "data.span",
        )
    rows = _rows(cut)
    time = people.time[rows] if len(cut) else np.zeros(rows.shape)
    parts = []
    if data.clock:
        for period in (_DAY, 7 * _DAY):
            angle = (time % period) * (2.0 * np.pi / period)
            parts += [np.sin(angle), np.cos(angle)]
    if data.span:
        start, end = (datetime.fromisoformat(day) for day in data.span)
        first, last = ((m - datetime(1970, 1, 1)).total_seconds() * 1e6 for m in (start, end))
        parts.append(np.clip(2.0 * (time - first) / (last - first) - 1.0, -1.0, 1.0))
    stacked = np.stack(parts, axis=2) * cut.mask[..., None]
    return [stacked.astype(np.float32)]


def group_of(people: People, column: str, site: str = "site") -> np.ndarray:
    """The declared group of each person, as text; private, for the operator's metrics.

    Args:
        people: Whose.
        column: The study's name for it; "" for their sites.
        site: What the source calls the site.
    """
    if is_site(people, column, site):
        sites: np.ndarray = np.array(people.site_names)[people.site]
        return sites
    if people.is_static(column):
        return np.array([str(v) for v in people.per_person(column).to_pylist()])
    words = people.text(column).to_pylist()
    first = people.offsets[:-1]
    groups: np.ndarray = np.array(
        [str(words[i]) if n else "" for i, n in zip(first, people.counts, strict=True)]
    )
    return groups
