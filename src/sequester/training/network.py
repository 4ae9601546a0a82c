"""The study's network, looked at before anything is charged."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.gradients.checks import (
    attributes,
    contents,
    refuse_mixing_layers,
    refuse_remembering,
    refuse_written,
    trainable,
)
from sequester.gradients.surroundings import Surroundings
from sequester.models import KINDS, Shape, build
from sequester.training.dataset import shape_of
from sequester.training.study import Study

_LONG = 256
"""Steps of a window that a known network is rehearsed on, at most."""


def check_network(study: Study) -> nn.Module | None:
    """Build the network from public declarations alone; None while a vocabulary is to be found.

    A misspelt option, a layer that mixes people, or a forward pass that does not fit the study's
    windows is so refused before the ledger holds a charge.

    Raises:
        UsageError: SQ-250 to 254 or 268 if it cannot be built or run, SQ-401 or 405 if people would
            meet in it, or nothing of it could be trained, SQ-406 if it writes into itself or keeps
            what it saw.
    """
    if any(category.estimate for category in study.data.categories.values()):
        return None
    shape, part = shape_of(study), study.model
    try:
        model = build(part.kind, shape, part.options, seed=study.training.seed)
        if study.privacy.mode == "dp":
            refuse_mixing_layers(model)
        trainable(model)
        before, held, around = contents(model), attributes(model), Surroundings(model)
        # Our own networks do at any step what they do at the first; another may not.
        known = part.kind in KINDS
        _rehearse(model, replace(shape, steps=min(shape.steps, _LONG)) if known else shape)
        if study.privacy.mode == "dp":
            refuse_written(model, before)
            refuse_remembering(model, held)
            around.refuse_changed()
    except UsageError as refusal:
        field = "options" if refusal.code == 253 else ("module" if part.module else "kind")
        raise refusal.at(f"model.{field}") from None
    return model


def _rehearse(model: nn.Module, shape: Shape) -> None:
    """One forward pass over two windows of ones, which belong to nobody.

    Raises:
        UsageError: SQ-254 if it fails or gives another shape.
    """
    x = torch.ones(2, shape.steps, shape.features)  # a sum of zeros would leave no trace
    mask = torch.ones(2, shape.steps, dtype=torch.bool)
    columns = len(shape.vocabularies)
    codes = torch.zeros(2, shape.steps, columns, dtype=torch.int64) if columns else None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            answer = model(x, mask, codes)
        except Exception as error:  # whatever a user's module raises; no record is in it
            raise UsageError(
                254, f"the network fails on two windows of ones: {type(error).__name__}: {error}"
            ) from error
    wanted = (2, shape.steps, shape.outputs) if shape.pool == "none" else (2, shape.outputs)
    if not isinstance(answer, Tensor) or tuple(answer.shape) != wanted:
        found = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise UsageError(254, f"the network must answer two windows by {wanted}, got {found}")
