"""Private ranges and vocabularies, found before the first step and written into the study."""

from __future__ import annotations

import msgspec
import numpy as np

from sequester.accounting import Gaussian
from sequester.core.errors import UsageError
from sequester.mechanism import NoiseStream, Plan
from sequester.mechanism.estimate import Column, ranges, vocabulary
from sequester.sequences import People
from sequester.training.dataset import split
from sequester.training.planning import word_failure
from sequester.training.study import Study


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
    owner = train.owner.astype(np.int64)
    step = 0
    features = dict(data.features)
    wanted = {name: f for name, f in features.items() if f.estimate}
    if wanted:
        values, known = train.values(list(wanted))
        values[~known] = np.nan
        columns = {
            name: Column(values[:, k], owner, f.lower, f.upper, f.log)
            for k, (name, f) in enumerate(wanted.items())
        }
        found = ranges(
            columns,
            people=len(train),
            multiplier=noises[step].noise_multiplier,
            stream=stream,
            step=step,
        )
        for name, (lower, upper) in found.items():
            features[name] = msgspec.structs.replace(
                features[name], lower=lower, upper=upper, estimate=False
            )
        step += 1
    categories = dict(data.categories)
    for name, category in data.categories.items():
        if not category.estimate:
            continue
        words = [word or "" for word in train.text(name).to_pylist()]
        found_words = vocabulary(
            words,
            owner,
            multiplier=noises[step].noise_multiplier,
            failure=word_failure(study),
            stream=stream,
            step=step,
        )
        if not found_words and not category.values:
            raise UsageError(
                272,
                f"no word of {name!r} was common enough to be found privately; declare its "
                "vocabulary publicly",
                where=f"data.categories.{name}",
            )
        # Publicly declared words stay; found ones follow.
        extra = tuple(word for word in found_words if word not in category.values)
        categories[name] = msgspec.structs.replace(
            category, values=(*category.values, *extra), estimate=False
        )
        step += 1
    return msgspec.structs.replace(
        study, data=msgspec.structs.replace(data, features=features, categories=categories)
    )
