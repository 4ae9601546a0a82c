"""The embedded randhie as three sites' own files, and a study of them."""

from __future__ import annotations

import io
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from sequester.training.study_file import decode

COLUMNS = ["person", "time", "site", "mdvis", "disea", "label"]
POLICY = """
holder = "a test"
units = ["person", "none"]
min_population = 50
[ceiling]
epsilon = 20.0
delta = 1e-4
"""


def write_sites(folder: Path, sites: int = 3) -> list[str]:
    """Files of the first sites, and of all of them together; people sort by site."""
    raw = resources.files("sequester.sequences") / "data" / "randhie.parquet"
    table = parquet.read_table(io.BytesIO(raw.read_bytes())).select(COLUMNS)
    site = table["site"].cast(pa.string())
    person = pc.binary_join_element_wise(site, table["person"].cast(pa.string()), "-")
    table = table.set_column(0, "person", person).set_column(2, "site", site)
    names = sorted(pc.unique(site).to_pylist())[:sites]
    for name in names:
        place = folder / name
        place.mkdir(parents=True)
        csv.write_csv(table.filter(pc.equal(site, name)), place / "people.csv")
        (place / "policy.toml").write_text(POLICY)
        (place / "reading.toml").write_text('[time]\nkind = "step"\n')
    csv.write_csv(table.filter(pc.is_in(site, pa.array(names))), folder / "all.csv")
    return names


def make_study(folder: Path, *, rounds: int, seed: int | None = 7, **federated):
    raw = {
        "name": "randhie-sites",
        "data": {
            "source": str(folder / "all.csv"),
            "population": 2000,
            "features": {
                "mdvis": {"lower": 0, "upper": 77, "log": True},
                "disea": {"lower": 0, "upper": 60},
            },
            "read": {"time": {"kind": "step"}},
            "window": 5,
            "stride": 5,
            "missing_flags": True,
            "group": "site",
        },
        "model": {"kind": "gru", "options": {"hidden": 8}},
        "privacy": {"epsilon": 2.0, "clip": 0.5, "insecure_test_seed": seed},
        "training": {"steps": rounds, "sampling_rate": 0.5},
        "federated": {
            "placement": "cross-silo",
            "algorithm": "fedadam",
            "server_learning_rate": 0.03,
            "tau": 1e-8,
            **federated,
        },
    }
    return decode(raw)
