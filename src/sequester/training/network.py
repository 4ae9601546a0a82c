"""The study's network, looked at before anything is charged."""

from __future__ import annotations

from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients.checks import refuse_mixing_layers, trainable
from sequester.models import build
from sequester.training.dataset import shape_of
from sequester.training.study import Study


def check_network(study: Study) -> nn.Module | None:
    """Build the network from public declarations alone; None while a vocabulary is to be found.

    A misspelt option or a layer that mixes people is so refused before the ledger holds a charge.

    Raises:
        UsageError: SQ-250 to 253 or 268 if it cannot be built, SQ-401 or 405 if people would meet
            in it, or nothing of it could be trained.
    """
    if any(category.estimate for category in study.data.categories.values()):
        return None
    shape, part = shape_of(study), study.model
    try:
        model = build(part.kind, shape, part.options, seed=study.training.seed)
        if study.privacy.mode == "dp":
            refuse_mixing_layers(model)
        trainable(model)
    except UsageError as refusal:
        field = "options" if refusal.code == 253 else ("module" if part.module else "kind")
        raise refusal.at(f"model.{field}") from None
    return model
