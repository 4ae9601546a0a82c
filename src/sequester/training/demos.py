"""The studies of `sequester demo`: one on real people, one on an invented town."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sequester.ledger import Ledger
from sequester.sequences import Range, datasets, mobility
from sequester.training.sources import BUILTIN, STAYS
from sequester.training.study import (
    Baseline,
    Category,
    Data,
    Feature,
    Holdout,
    LedgerSection,
    Model,
    Privacy,
    Study,
    Training,
)

CEILING = 8.0
"""ε that all demos of one output folder may spend together on one data set."""


def charged(study: Study, out: Path) -> Study:
    """The study, charged to a ledger `demo.db` in `out`, which the first demo there makes.

    Raises:
        LedgerRefusal: where the file cannot be used.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out.resolve() / "demo.db"
    url = f"sqlite:///{file}"
    with Ledger.open(url) if file.exists() else Ledger.create(url) as ledger:
        ledger.create_budget(study.name, study.name, CEILING, study.privacy.delta)
    return msgspec.structs.replace(study, ledger=LedgerSection(url, study.name))


def randhie() -> Study:
    """Three or more doctor visits next year, from the RAND Health Insurance Experiment."""
    return Study(
        name="randhie",
        title="Three or more doctor visits next year",
        data=Data(
            source=BUILTIN,
            population=4700,
            features={name: _feature(r) for name, r in datasets.RANDHIE_RANGES.items()},
            label="label",
            task="label",
            level="step",
            window=5,
            stride=5,
            group="site",
            baseline=Baseline(feature="mdvis", at_least=3),
            holdout=Holdout(share=0.2),
            description="Yearly records of care of people at six sites in the USA, 1974 to 1982 "
            "(RAND Health Insurance Experiment); a real, de-identified data set in the public "
            "domain. The hold-out is public for the same reason.",
            licence="public domain",
        ),
        model=Model(kind="gru", options={"hidden": 8}),
        privacy=Privacy(epsilon=1.0, delta=1e-5, clip=1.0, tuned_on="public"),
        training=Training(
            steps=50,
            sampling_rate=1.0,
            optimizer="sgd",
            momentum=0.9,
            learning_rate=1.0,
            average=0.8,
        ),
    )


def town() -> Study:
    """Where simulated residents go next, from the stays of four weeks."""
    return Study(
        name="mobility",
        title="Where a resident goes next (simulated)",
        data=Data(
            source=STAYS,
            population=4000,
            features={"hour": Feature(0, 23), "weekday": Feature(0, 6)},
            categories={"place": Category(values=mobility.VOCABULARY)},
            clock=True,
            label="place",
            task="next",
            window=32,
            stride=32,
            max_per_person=2,
            lags=(2, 3, 4),
            habits=6,
            holdout=Holdout(share=0.2),
            description="Stays (place, hour of arrival) of invented residents of an invented town; "
            "simulated, nobody in it exists.",
            simulated=True,
        ),
        model=Model(kind="copy", options={"hidden": 24}),
        privacy=Privacy(epsilon=1.0, delta=1e-5, clip=1.0, tuned_on="public"),
        training=Training(
            steps=40, sampling_rate=0.25, optimizer="adam", learning_rate=0.05, average=0.8
        ),
    )


def _feature(declared: Range) -> Feature:
    return Feature(declared.lower, declared.upper, declared.log)
