"""Membership attacks on a person: all windows together, or one window.

Signals are log-likelihoods of people under a model, `−mean loss of the windows`: the same for
classifiers, forecasters and next-event models, and for any iterate of a federated run.

    loss   threshold on the target's loss              Yeom et al. 2018 (CSF)
    lira   likelihood ratio, references in and out     Carlini et al. 2022 (S&P), algorithm 1
    rmia   pairwise likelihood ratio against others    Zarifzadeh et al. 2024 (ICML), section 3
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.models import Task
from sequester.sampling import Lot

Floats = NDArray[np.float64]
_SMALLEST_DEVIATION = 1e-3


def signals(
    model: nn.Module, task: Task, lot: Lot, *, by: str = "person", people: int = 256
) -> Floats:
    """Log-likelihood of each person (mean over windows) or of each window.

    Args:
        model: The target, or a reference.
        task: Gives each window's loss in nats.
        lot: People to judge.
        by: "person" or "window".
        people: Taken at once.

    Returns:
        `(people,)` or `(windows,)` float64; a person without windows gets 0.
    """
    if by not in ("person", "window"):
        raise UsageError(821, f"membership is of a 'person' or a 'window', got {by!r}")
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = [
            task.loss(model, lot.select(start, min(start + people, lot.people))).double()
            for start in range(0, lot.people, people)
        ]
    model.train(was_training)
    losses = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    return -(_per_person(losses, lot) if by == "person" else losses).numpy()


def signals_of_iterates(
    iterates: Iterable[nn.Module], task: Task, lot: Lot, *, by: str = "person"
) -> Floats:
    """Mean signal over the models that a member of a federated run, or its server, was shown."""
    found: Floats = np.mean([signals(model, task, lot, by=by) for model in iterates], axis=0)
    return found


def loss(target: Floats) -> Floats:
    """The simplest attack: members are remembered better."""
    return target


def lira(target: Floats, references: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Gaussian likelihood ratio of the target's signal, per person.

    Per-person means; one variance for all people on each side, which is what few references
    allow (the paper's own advice below 64).

    Args:
        target: Signals under the target, `(people,)`.
        references: Signals under each reference, `(models, people)`.
        inside: Whether each reference was trained on each person, `(models, people)`.

    Raises:
        UsageError: SQ-822 if somebody is always in or always out.
    """
    _check_references(references, inside)
    held = np.where(inside, references, np.nan)
    out = np.where(inside, np.nan, references)
    mean_in, mean_out = np.nanmean(held, axis=0), np.nanmean(out, axis=0)
    # n − 1 summed over people: each person's own mean was fitted.
    spread_in, spread_out = _pooled(held), _pooled(out)
    log_in = -0.5 * np.square((target - mean_in) / spread_in) - np.log(spread_in)
    log_out = -0.5 * np.square((target - mean_out) / spread_out) - np.log(spread_out)
    ratio: Floats = log_in - log_out
    return ratio


def rmia(target: Floats, references: Floats, *, population: NDArray[np.bool_]) -> Floats:
    """Share of other people whose likelihood rose less than this one's.

    `LR(x, z) = [p(x)/p̄(x)] / [p(z)/p̄(z)] ≥ 1`, p̄ the mean over references of which about half
    were trained on x.

    Args:
        target: Signals under the target, `(people,)`.
        references: Signals under each reference, `(models, people)`.
        population: Who serves as z: people known not to be members, `(people,)`.

    Raises:
        UsageError: SQ-822 without references or without others.
    """
    if not len(references) or not population.any():
        raise UsageError(822, "RMIA needs at least one reference model and one known non-member")
    highest = references.max(axis=0)
    mean = highest + np.log(np.exp(references - highest).mean(axis=0))
    ratio = target - mean
    others = np.sort(ratio[population])
    # A small slope breaks ties among those above every other person.
    share = np.searchsorted(others, ratio, side="right") / len(others)
    found: Floats = share + 1e-6 * np.tanh(ratio)
    return found


def _per_person(losses: Tensor, lot: Lot) -> Tensor:
    total = torch.zeros(lot.people, dtype=torch.float64).index_add_(0, lot.owner, losses)
    count = torch.bincount(lot.owner, minlength=lot.people).clamp_min(1)
    return total / count


def _pooled(values: Floats) -> float:
    known = np.isfinite(values)
    excess = np.where(known, values - np.nanmean(values, axis=0), 0.0)
    freedom = max(1, int((known.sum(axis=0) - 1).sum()))
    return max(_SMALLEST_DEVIATION, float(np.sqrt(np.square(excess).sum() / freedom)))


def _check_references(references: Floats, inside: NDArray[np.bool_]) -> None:
    if references.shape != inside.shape or not len(references):
        raise UsageError(822, "every reference needs to say on whom it was trained")
    seen = inside.sum(axis=0)
    if (seen == 0).any() or (seen == len(inside)).any():
        raise UsageError(
            822,
            "LiRA needs each person in some references and out of others; train on halves and "
            "their complements",
        )
