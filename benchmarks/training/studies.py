"""The studies of the utility benchmark: public declarations from general knowledge alone.

Ranges are what textbooks and code books give (a heart rate lies between 20 and 200), rounded;
none was measured on these people.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sequester.sequences import People
from sequester.training import Category, Data, Feature, Holdout, Model, Privacy, Study, Training
from sequester.training.dataset import schema_of

ROOT = Path(__file__).resolve().parents[2]


def shared(*parts: str) -> Path:
    """Where the data lie."""
    base = os.environ.get("SEQUESTER_SHARED")
    folder = Path(base) if base else ROOT.parent / "shared"
    return folder.joinpath(*parts)


def table(name: str) -> pa.Table:
    """The tidy table of one data set."""
    found = pq.read_table(shared("data", "real", name, "data.parquet"))
    if name == "cdnow":
        # Weeks 1 to 39 predict weeks 40 to 78: what comes later must not be seen.
        return found.filter(pc.less(found["time"], datetime(1997, 10, 1)))
    return found


def people_of(name: str, study: Study) -> People:
    """The people of one data set."""
    return People.read(table(name), schema_of(study.data))


def physionet() -> Study:
    """In-hospital death from the first 48 hours; train on set-a, judge on set-b."""
    ranges = {
        "DiasABP": Feature(20, 120),
        "FiO2": Feature(0.2, 1.0),
        "GCS": Feature(3, 15),
        "HR": Feature(40, 160),
        "MAP": Feature(40, 140),
        "NIDiasABP": Feature(20, 120),
        "NIMAP": Feature(40, 140),
        "NISysABP": Feature(60, 200),
        "RespRate": Feature(5, 45),
        "SysABP": Feature(60, 200),
        "Temp": Feature(33, 41),
        "Urine": Feature(0, 500, log=True),
        "Age": Feature(15, 95),
    }
    return Study(
        name="physionet2012",
        title="In-hospital death from 48 hours of intensive care",
        data=Data(
            source="physionet2012_hourly",
            population=3900,
            features=ranges,
            fill="forward",
            label="label",
            level="window",
            window=48,
            stride=48,
            holdout=Holdout(column="set", value="b"),
            read={"time": {"kind": "step"}},
        ),
        model=Model(kind="gru_skip", pool="mean", options={"hidden": 8}),
        privacy=Privacy(epsilon=1.0, delta=1e-5, clip=1.0),
        training=Training(
            steps=40,
            sampling_rate=1.0,
            optimizer="sgd",
            learning_rate=1.0,
            average=0.8,
        ),
    )


def cdnow() -> Study:
    """Buys again in weeks 40 to 78, given weeks 1 to 39."""
    return Study(
        name="cdnow",
        title="Buys again in the second half of the period",
        data=Data(
            source="cdnow",
            population=18_800,
            features={"dollars": Feature(0, 500, log=True), "n_cds": Feature(0, 50, log=True)},
            label="label",
            level="person",
            window=16,
            stride=16,
            max_per_person=1,
            gap=2.0e7,
            span=("1997-01-01", "1997-09-30"),
        ),
        model=Model(kind="gru_skip", pool="mean", options={"hidden": 8}),
        privacy=Privacy(epsilon=1.0, delta=1e-5, clip=1.0),
        training=Training(
            steps=40,
            sampling_rate=0.5,
            optimizer="sgd",
            learning_rate=1.0,
            average=0.8,
        ),
    )


CATEGORIES = (
    "Arts & Entertainment",
    "College & University",
    "Food",
    "Nightlife Spot",
    "Outdoors & Recreation",
    "Professional & Other Places",
    "Residence",
    "Shop & Service",
    "Travel & Transport",
    "Event",
)


def foursquare() -> Study:
    """The category of the next venue, from one's own check-ins."""
    return Study(
        name="foursquare_nyc",
        title="The category of the next venue",
        data=Data(
            source="foursquare_nyc",
            population=155,
            categories={"category": Category(values=CATEGORIES)},
            label="category",
            task="next",
            window=64,
            stride=64,
            max_per_person=8,
            gap=1.0e6,
            clock=True,
        ),
        model=Model(kind="gru", options={"hidden": 16, "embedding": 8}),
        privacy=Privacy(epsilon=8.0, delta=1e-5, clip=1.0),
        training=Training(
            steps=40,
            sampling_rate=1.0,
            optimizer="sgd",
            learning_rate=1.0,
            average=0.8,
        ),
    )


STUDIES = {
    "physionet2012_hourly": physionet,
    "cdnow": cdnow,
    "foursquare_nyc": foursquare,
}
