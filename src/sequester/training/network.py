"""The study's network, built and looked at before anything is charged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients.checks import refuse_mixing_layers, trainable
from sequester.models import KINDS, Shape, build
from sequester.training.dataset import shape_of
from sequester.training.settling import rehearse, settle
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
        model = network_of(study, shape)
        if study.privacy.mode == "dp":
            refuse_mixing_layers(model)
        trainable(model)
        if part.kind in KINDS:
            # Our own networks do at any step what they do at the first.
            rehearse(model, replace(shape, steps=min(shape.steps, _LONG)))
        elif not _private(study):
            rehearse(model, shape)
    except UsageError as refusal:
        field = "options" if refusal.code == 253 else ("module" if part.module else "kind")
        raise refusal.at(f"model.{field}") from None
    return model


def network_of(study: Study, shape: Shape, *, seed: int | None = None) -> nn.Module:
    """The study's network as people find it: what a user's own fills at first use is full.

    Args:
        study: Names the network and its options.
        shape: Public sizes.
        seed: Of the first weights; the study's unless given.

    Raises:
        UsageError: SQ-250 to 254 if it cannot be built or run, SQ-401 or 406 if people would meet
            in it.
    """
    part, seed = study.model, study.training.seed if seed is None else seed
    make = partial(build, part.kind, shape, part.options, seed=seed)
    model = make()
    if part.kind not in KINDS and _private(study):
        refuse_mixing_layers(model)
        trainable(model)
        settle(model, make, shape)
    return model


def _private(study: Study) -> bool:
    """Whether people must not meet in the network: everywhere but in the twin of central runs."""
    return study.privacy.mode == "dp" or study.federated is not None
