"""Private ranges and vocabularies, found before the first step and written into the study."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from sequester.accounting import Gaussian
from sequester.core.errors import UsageError
from sequester.mechanism import NoiseStream, Plan
from sequester.mechanism.estimate import Column, ranges, vocabulary
from sequester.sequences import People
from sequester.training.dataset import split
from sequester.training.planning import word_failure
from sequester.training.study import Category, Feature, Study


def estimated(study: Study) -> bool:
    """Whether anything is to be found privately."""
    data = study.data
    return any(f.estimate for f in data.features.values()) or any(
        c.estimate for c in data.categories.values()
    )


def resolve(study: Study, people: People, plan: Plan, stream: NoiseStream) -> Study:
    """The study with every `estimate = true` replaced by what was found, privately.

    Uses training people only; each release is one of `plan.setup`'s Gaussians, in order.

    Args:
        study: With estimates to make.
        people: Everybody who was read.
        plan: Already reserved in the ledger, set-up included.
        stream: Noise of the set-up alone, separate from the steps'.
    """
    data = study.data
    train, _ = split(people, data)
    noises = [event for event in plan.setup if isinstance(event, Gaussian)]
    features, categories = dict(data.features), dict(data.categories)
    step = 0
    if any(f.estimate for f in features.values()):
        features = _with_ranges(features, train, noises[step].noise_multiplier, stream)
        step += 1
    for name, category in data.categories.items():
        if category.estimate:
            draw = _Draw(noises[step].noise_multiplier, word_failure(study), stream, step)
            categories[name] = _with_words(name, category, train, draw)
            step += 1
    return msgspec.structs.replace(
        study, data=msgspec.structs.replace(data, features=features, categories=categories)
    )


def _with_ranges(
    features: dict[str, Feature], train: People, multiplier: float, stream: NoiseStream
) -> dict[str, Feature]:
    """Features with the ranges found; the stream's step 0 is drawn."""
    wanted = {name: f for name, f in features.items() if f.estimate}
    values, known = train.values(list(wanted))
    values[~known] = np.nan
    owner = train.owner.astype(np.int64)
    columns = {
        name: Column(values[:, k], owner, f.lower, f.upper, f.log)
        for k, (name, f) in enumerate(wanted.items())
    }
    found = ranges(columns, people=len(train), multiplier=multiplier, stream=stream, step=0)
    narrowed = {
        name: msgspec.structs.replace(features[name], lower=lower, upper=upper, estimate=False)
        for name, (lower, upper) in found.items()
    }
    return {**features, **narrowed}


@dataclass(frozen=True)
class _Draw:
    """Noise of one vocabulary: its multiplier, its added δ, and where it comes from."""

    multiplier: float
    failure: float
    stream: NoiseStream
    step: int


def _with_words(name: str, category: Category, train: People, draw: _Draw) -> Category:
    """The category with the words found; publicly declared ones stay and come first."""
    words = [word or "" for word in train.text(name).to_pylist()]
    found = vocabulary(
        words,
        train.owner.astype(np.int64),
        multiplier=draw.multiplier,
        failure=draw.failure,
        stream=draw.stream,
        step=draw.step,
    )
    if not found and not category.values:
        raise UsageError(
            272,
            f"no word of {name!r} was common enough to be found privately; declare its "
            "vocabulary publicly",
            where=f"data.categories.{name}",
        )
    extra = tuple(word for word in found if word not in category.values)
    return msgspec.structs.replace(category, values=(*category.values, *extra), estimate=False)
