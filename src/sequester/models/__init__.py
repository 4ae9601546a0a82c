"""Reference networks in plain `torch.nn`, and the tasks they are trained for."""

from sequester.models.build import KINDS, Option, build
from sequester.models.inputs import Shape
from sequester.models.tasks import (
    Binary,
    Classes,
    Evaluation,
    Forecast,
    Routed,
    Rule,
    Task,
    auc,
    predict,
)

__all__ = [
    "KINDS",
    "Binary",
    "Classes",
    "Evaluation",
    "Forecast",
    "Option",
    "Routed",
    "Rule",
    "Shape",
    "Task",
    "auc",
    "build",
    "predict",
]
