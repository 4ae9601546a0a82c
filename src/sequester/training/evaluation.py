"""How well the model does on held-out people, and how those people are protected.

A figure computed on people is a release about them. Either they need no protection (a public
hold-out), or each of them adds one bounded vector to a noisy sum, charged to their own budget;
training people are not touched, so the two guarantees stand side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from sequester.mechanism import NoiseStream
from sequester.mechanism.estimate import noisy
from sequester.models import Binary, Classes, Evaluation, Forecast, Task, predict
from sequester.sampling import Lot

_BINS = 64
# A noisy number of people below this many deviations of its noise is noise: no figure is told.
_TELLING = 3.0
FEWEST = 20
"""People with an answer, below whom no figure without noise is told: it would be about each."""


@dataclass(frozen=True)
class Utility:
    """A figure with its protection, as `facts.json` shows it.

    Attributes:
        metric: What is measured.
        value: Its value; None where it is not defined: no answer, an AUC of one class, or (if
            privatised) too few people to tell from the noise; see `reason` too.
        baseline: The trivial rule's, where it may be told.
        baseline_name: That rule.
        protection: "public hold-out" or "privatised".
        people: Held-out people, where the hold-out is public.
        interval: 95 % interval (Wilson's) from people's variation, inside [0, 1]; or None.
        reason: Why nothing is told; "" where there is no more to say.
    """

    metric: str
    value: float | None
    baseline: float | None
    baseline_name: str | None
    protection: str
    people: int | None
    interval: tuple[float, float] | None
    reason: str = ""


def public_figures(task: Task, model: nn.Module, held_out: Lot) -> tuple[Utility, ...]:
    """The figures as they are, for held-out people who need no protection.

    Where a rule to beat is declared, accuracy is told beside the area under the curve.
    """
    tasks = [task]
    if isinstance(task, Binary) and task.rule is not None and task.threshold_free:
        tasks.append(replace(task, threshold_free=False))
    return tuple(_public_figure(each, model, held_out) for each in tasks)


def too_few(task: Task, held_out: Lot) -> Utility | None:
    """What stands in a figure's place where fewer than `FEWEST` people have an answer.

    It says that, and neither a value nor how many they are.
    """
    target = held_out.target
    known = target >= 0 if isinstance(task, Classes) else ~torch.isnan(target)
    answered = known.any(dim=1) if known.ndim > 1 else known
    if len(np.unique(held_out.owner[answered].numpy())) >= FEWEST:
        return None
    reason = f"fewer than {FEWEST} held-out people have an answer; a figure would show each of them"
    return Utility(task.metric, None, None, None, "public hold-out", None, None, reason)


def _public_figure(task: Task, model: nn.Module, held_out: Lot) -> Utility:
    if not len(held_out.owner):  # nobody held out has an answer
        return Utility(task.metric, None, None, None, "public hold-out", held_out.people, None)
    found = task.evaluate(model, held_out)
    return Utility(
        metric=found.metric,
        value=_defined(found.value),
        baseline=_defined(found.baseline),
        baseline_name=found.baseline_name,
        protection="public hold-out",
        people=held_out.people,
        interval=_interval(found, task, model, held_out),
    )


def _defined(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _interval(
    found: Evaluation, task: Task, model: nn.Module, held_out: Lot
) -> tuple[float, float] | None:
    """95 % interval of a share or an area; all predictions of one person vary together."""
    if isinstance(task, Binary) and task.threshold_free:
        each, people = auc_influence(predict(model, held_out)[..., 0], held_out)
    elif len(found.scores):
        hits, judged = found.scores.T
        each = (hits - found.value * judged)[judged > 0] / max(judged.sum(), 1.0)
        people = len(each)
    else:
        return None
    if not math.isfinite(found.value) or not people:
        return None
    return wilson(found.value, float((each**2).sum()), people)


def auc_influence(score: torch.Tensor, lot: Lot) -> tuple[np.ndarray, int]:
    """How each person moves the area under the curve, `(people,)`; people of the rarer answer.

    The squares sum to the area's variance. Source: Obuchowski 1997 (Biometrics 53), whose
    clusters are people; DeLong et al. 1988 for one prediction each.
    """
    known = ~torch.isnan(lot.target).numpy()
    values, yes = score.double().numpy()[known], lot.target.numpy()[known] > 0.5
    owner, _ = _weights(known, lot)
    if not yes.any() or yes.all():
        return np.empty(0), 0
    moves = np.empty(len(values))
    for side, sign in ((yes, 1.0), (~yes, -1.0)):
        # How many predictions of the other class each one beats; ties count half.
        others = np.sort(values[~side])
        below = np.searchsorted(others, values[side], "left")
        beaten = (below + np.searchsorted(others, values[side], "right")) / (2.0 * len(others))
        moves[side] = sign * (beaten - beaten.mean()) / side.sum()
    fewer = min(len(np.unique(owner[yes])), len(np.unique(owner[~yes])))
    return np.bincount(owner, weights=moves), fewer


def wilson(value: float, variance: float, people: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, of as many people as would give this variance.

    It cannot leave [0, 1], and where nobody was judged wrongly it does not shrink to a point: then
    it is that of `people`. Source: Wilson 1927 (JASA 22).

    Args:
        value: The share.
        variance: Its variance, estimated.
        people: Who were judged; of an area, those of the rarer answer, of whom no area tells more
            than of three times as many by chance alone.
    """
    spread = value * (1.0 - value)
    count = min(spread / variance, 3.0 * people) if spread and variance else float(people)
    share = 1.96**2 / count
    middle = (value + share / 2.0) / (1.0 + share)
    half = math.sqrt(share * spread + share**2 / 4.0) / (1.0 + share)
    # Rounding may lift either end over the value or an edge.
    return max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half))


def private_figure(
    task: Task, model: nn.Module, held_out: Lot, *, multiplier: float, stream: NoiseStream
) -> Utility:
    """The figure from one Gaussian release over held-out people; the event is that Gaussian.

    Each person's predictions together weigh 1. For an AUC they fall into a public grid of
    scores by class, and the area is computed from the noisy histogram; otherwise the person's
    mean error, between 0 and 1, and their presence are summed.

    Nobody held out, no answer or answers of one class look like any few people do: noise is
    drawn all the same, and the figure is not defined where it would be made of noise.

    Args:
        task: What is predicted.
        model: Released weights.
        held_out: People.
        multiplier: Noise over sensitivity.
        stream: Noise of the evaluation alone; its step 0 is drawn.
    """
    if len(held_out.owner):
        logits = predict(model, held_out)
    else:
        logits = torch.zeros((*held_out.target.shape, task.outputs))
    value: float | None
    if isinstance(task, Binary) and task.threshold_free:
        value, baseline, name = _private_auc(logits, held_out, multiplier, stream), 0.5, "chance"
    else:
        value, baseline, name = _private_mean(task, logits, held_out, multiplier, stream), None, ""
    return Utility(
        metric=task.metric,
        value=value,
        baseline=baseline,
        baseline_name=name or None,
        protection="privatised",
        people=None,
        interval=None,
    )


def _weights(known: np.ndarray, lot: Lot) -> tuple[np.ndarray, np.ndarray]:
    """Owner and weight of each known prediction; a person's weights sum to 1."""
    owner = lot.owner.numpy()
    if known.ndim == 2:
        owner = np.broadcast_to(owner[:, None], known.shape)
    owner = owner[known]
    return owner, 1.0 / np.bincount(owner, minlength=lot.people)[owner]


def _private_auc(
    logits: torch.Tensor, lot: Lot, multiplier: float, stream: NoiseStream
) -> float | None:
    known = ~torch.isnan(lot.target).numpy()
    # One person's overflow must not become more than that person's share.
    scores = torch.sigmoid(logits[..., 0]).nan_to_num(0.5).double().numpy()[known]
    truth = (lot.target.numpy()[known] > 0.5).astype(np.int64)
    _, weight = _weights(known, lot)
    place = np.minimum((scores * _BINS).astype(np.int64), _BINS - 1)
    flat = np.bincount(truth * _BINS + place, weights=weight, minlength=2 * _BINS)
    negative, positive = noisy(flat, 1.0, multiplier, stream, 0).reshape(2, _BINS)
    total = positive.sum() * negative.sum()
    if min(positive.sum(), negative.sum()) < _TELLING * multiplier * math.sqrt(_BINS):
        return None
    # Sums of noise over bins largely cancel; no clamping, which would bias the area.
    below = np.cumsum(negative) - 0.5 * negative
    return float(min(1.0, max(0.0, (positive * below).sum() / total)))


def _private_mean(
    task: Task, logits: torch.Tensor, lot: Lot, multiplier: float, stream: NoiseStream
) -> float | None:
    if isinstance(task, Forecast):
        known = ~torch.isnan(lot.target).numpy()
        # Scaled targets lie in [-1, 1]: an error above 1 counts as 1.
        error = (logits[..., 0] - torch.nan_to_num(lot.target)).abs().nan_to_num(1.0)
        error = error.clamp(0.0, 1.0)
        scale = task.scale
    elif isinstance(task, Classes):
        known = (lot.target >= 0).numpy()
        error, scale = (logits.argmax(dim=-1) == lot.target).double(), 1.0
    else:
        known = ~torch.isnan(lot.target).numpy()
        error, scale = ((logits[..., 0] > 0) == (lot.target > 0.5)).double(), 1.0
    owner, weight = _weights(known, lot)
    sums = np.array(
        [(error.numpy()[known] * weight).sum(), float(len(np.unique(owner)))], dtype=np.float64
    )
    above, people = noisy(sums, math.sqrt(2.0), multiplier, stream, 0)
    if people < _TELLING * multiplier * math.sqrt(2.0):
        return None
    return float(min(1.0, max(0.0, above / people))) * scale
