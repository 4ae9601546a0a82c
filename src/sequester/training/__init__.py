"""The central loop: a study in, released weights with a claim out."""

from sequester.training.run import Run, resume, train
from sequester.training.study import (
    Adaptive,
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
    Unit,
)
from sequester.training.study_file import read_study, to_toml

__all__ = [
    "Adaptive",
    "Baseline",
    "Category",
    "Data",
    "Feature",
    "Holdout",
    "LedgerSection",
    "Model",
    "Privacy",
    "Run",
    "Study",
    "Training",
    "Unit",
    "read_study",
    "resume",
    "to_toml",
    "train",
]
