"""Lots put together and cut down for an audit."""

from __future__ import annotations

import numpy as np
import torch

from sequester.sampling import Lot


def join(first: Lot, second: Lot) -> Lot:
    """Two lots of different people as one, the second one's numbered after the first one's."""
    categorical = None
    if first.categorical is not None and second.categorical is not None:
        categorical = torch.cat([first.categorical, second.categorical])
    return Lot(
        x=torch.cat([first.x, second.x]),
        mask=torch.cat([first.mask, second.mask]),
        target=torch.cat([first.target, second.target]),
        owner=torch.cat([first.owner, second.owner + first.people]),
        people=first.people + second.people,
        categorical=categorical,
    )


def some(lot: Lot, most: int, generator: np.random.Generator) -> Lot:
    """At most `most` people who have a window, chosen at random."""
    present = np.unique(lot.owner.numpy())
    if len(present) > most:
        present = np.sort(generator.choice(present, most, replace=False))
    return lot.pick(present)
