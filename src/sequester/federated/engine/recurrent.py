"""Which networks the fast engines know, and their data laid out for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sequester.models.networks import Recurrent
from sequester.models.tasks import Binary, Classes, Task
from sequester.sampling import Lot

POOLS = ("last", "mean", "none")
KINDS: dict[type[nn.Module], str] = {nn.GRU: "gru", nn.LSTM: "lstm"}


@dataclass(frozen=True)
class Cell:
    """A one-layer GRU or LSTM over numeric features with a linear head.

    Attributes:
        kind: "gru" or "lstm".
        features: Numbers per step.
        hidden: Units.
        outputs: Numbers the head gives.
        logistic: One logit against 0/1; otherwise a softmax over classes.
        pool: The head reads the "last" state, their "mean", or ("none") every one.
    """

    kind: str
    features: int
    hidden: int
    outputs: int
    logistic: bool
    pool: str


@dataclass(frozen=True)
class Laid:
    """Windows as plain arrays.

    Attributes:
        x: float32 `(windows, steps, features)`.
        lengths: True steps of each window, int32 `(windows,)`.
        target: Class or 0/1 as float32, `(windows,)` or `(windows, steps)`; −1 for "no label".
        offsets: Where each client's windows begin, int64 `(clients + 1,)`.
    """

    x: NDArray[np.float32]
    lengths: NDArray[np.int32]
    target: NDArray[np.float32]
    offsets: NDArray[np.int64]


def recognise(model: nn.Module, task: Task, lot: Lot) -> Cell | None:
    """The network's description if the fast engines can train it exactly, else None."""
    if type(model) is not Recurrent or type(model.cell) not in KINDS:
        return None
    cell = model.cell
    plain = (
        cell.num_layers == 1
        and cell.bias
        and not cell.bidirectional
        and not cell.proj_size
        and not len(model.inputs.tables)
        and lot.target.dim() == (2 if model.pool == "none" else 1)
        and all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
        and _is_prefix(lot.mask)
    )
    if not plain or model.pool not in POOLS:
        return None
    if not isinstance(task, Binary | Classes):
        return None
    return Cell(
        kind=KINDS[type(cell)],
        features=cell.input_size,
        hidden=cell.hidden_size,
        outputs=model.head.out_features,
        logistic=isinstance(task, Binary),
        pool=model.pool,
    )


def lay(lot: Lot) -> Laid:
    """The lot's windows as the engines read them; nothing is copied that already fits."""
    target = lot.target.to(torch.float32)
    return Laid(
        x=np.ascontiguousarray(lot.x.numpy(), dtype=np.float32),
        lengths=lot.mask.sum(dim=1).to(torch.int32).numpy(),
        target=_known(target, lot.mask).contiguous().numpy(),
        offsets=lot.offsets.numpy(),
    )


def _known(target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Targets with −1 for "no label"; a step outside its window has none."""
    known = ~torch.isnan(target)
    if target.dim() == 2:
        known &= mask
    return torch.where(known, target, -1.0)


def _is_prefix(mask: torch.Tensor) -> bool:
    """Whether true steps come first in every window."""
    return not bool((mask[:, 1:] & ~mask[:, :-1]).any())
