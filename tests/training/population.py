"""A small invented population and a study of it, for tests."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sequester.sequences import People, Schema, Time
from sequester.training import (
    Data,
    Feature,
    Holdout,
    Model,
    Privacy,
    Study,
    Training,
)

SCHEMA = Schema(
    person="person",
    time=Time(column="time", kind="step"),
    numeric=("signal", "other", "label"),
    categorical=("town", "part"),
)


def table(people: int = 90, *, seed: int = 0, name: str = "person") -> pa.Table:
    """`people` people of 1 to 6 records whose label follows `signal`."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 7, people)
    owner = np.repeat(np.arange(people), counts)
    signal = generator.normal(size=len(owner))
    label = (signal + 0.3 * generator.normal(size=len(owner)) > 0).astype(float)
    towns = np.array(["north", "south", "east"])
    return pa.table(
        {
            "person": [f"{name}-{i:04d}" for i in owner],
            "time": np.concatenate([np.arange(n) for n in counts]),
            "signal": signal,
            "other": generator.normal(size=len(owner)),
            "label": label,
            "town": towns[owner % 3],
            "part": np.where(owner % 5 == 0, "test", "train"),
        }
    )


def people(count: int = 90, *, seed: int = 0) -> People:
    """The same as `People`."""
    return People.read(table(count, seed=seed), SCHEMA)


def study(**changes: Any) -> Study:
    """A small study; `section__field=value` changes one field."""
    made = Study(
        name="tiny",
        data=Data(
            source="unused",
            population=80,
            features={"signal": Feature(-3, 3), "other": Feature(-3, 3)},
            label="label",
            level="step",
            window=6,
            stride=6,
            holdout=Holdout(column="part", value="test"),
        ),
        model=Model(kind="gru", options={"hidden": 4}),
        privacy=Privacy(epsilon=8.0, delta=1e-3, clip=0.5, insecure_test_seed=7),
        training=Training(
            steps=12,
            sampling_rate=0.5,
            learning_rate=0.05,
            average=0.5,
            checkpoint_every=5,
        ),
    )
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            inner = msgspec.structs.replace(getattr(made, section), **{field: value})
            made = msgspec.structs.replace(made, **{section: inner})
        else:
            made = msgspec.structs.replace(made, **{section: value})
    return made
