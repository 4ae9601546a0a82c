"""Private ranges, means and vocabularies, found before the first step, kept in the study."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from sequester.accounting import Gaussian
from sequester.core.errors import UsageError
from sequester.mechanism import NoiseStream, Plan
from sequester.mechanism.estimate import Column, means, ranges, vocabulary
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
    """The study with every `estimate` replaced by what was found, privately.

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
    if any(f.wants_range for f in features.values()):
        draw = _Draw(noises[step].noise_multiplier, stream, step)
        features = _with_ranges(features, train, draw)
        step += 1
    if any(f.wants_mean for f in features.values()):
        draw = _Draw(noises[step].noise_multiplier, stream, step)
        features = _with_means(features, train, draw, data.population)
        step += 1
    for name, category in data.categories.items():
        if category.estimate:
            draw = _Draw(noises[step].noise_multiplier, stream, step)
            categories[name] = _with_words(name, category, train, draw, word_failure(study))
            step += 1
    return msgspec.structs.replace(
        study, data=msgspec.structs.replace(data, features=features, categories=categories)
    )


@dataclass(frozen=True)
class _Draw:
    """Noise of one release: its multiplier, where it comes from, and that stream's step."""

    multiplier: float
    stream: NoiseStream
    step: int


def _columns(features: dict[str, Feature], train: People) -> dict[str, Column]:
    """The training people's values of `features`; private."""
    values, known = train.values(list(features))
    values[~known] = np.nan
    owner = train.owner.astype(np.int64)
    return {
        name: Column(values[:, k], owner, f.lower, f.upper, f.log)
        for k, (name, f) in enumerate(features.items())
    }


def _with_ranges(features: dict[str, Feature], train: People, draw: _Draw) -> dict[str, Feature]:
    """Features with the ranges found."""
    found = ranges(
        _columns({name: f for name, f in features.items() if f.wants_range}, train),
        people=len(train),
        multiplier=draw.multiplier,
        stream=draw.stream,
        step=draw.step,
    )
    narrowed = {
        name: msgspec.structs.replace(features[name], lower=lower, upper=upper, estimate=False)
        for name, (lower, upper) in found.items()
    }
    return {**features, **narrowed}


def _with_means(
    features: dict[str, Feature], train: People, draw: _Draw, population: int
) -> dict[str, Feature]:
    """Features with the centres found: the mean over people of each one's own mean."""
    found = means(
        _columns({name: f for name, f in features.items() if f.wants_mean}, train),
        people=len(train),
        multiplier=draw.multiplier,
        stream=draw.stream,
        step=draw.step,
        population=population,
    )
    centred = {
        name: msgspec.structs.replace(features[name], centre=centre, estimate=False)
        for name, centre in found.items()
    }
    return {**features, **centred}


def _with_words(
    name: str, category: Category, train: People, draw: _Draw, failure: float
) -> Category:
    """The category with the words found; publicly declared ones stay and come first."""
    words = [word or "" for word in train.text(name).to_pylist()]
    found = vocabulary(
        words,
        train.owner.astype(np.int64),
        multiplier=draw.multiplier,
        failure=failure,
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
