"""Tasks: what a model predicts, the loss of each window, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sequester.models.inputs import pooled
from sequester.sampling import Lot

IGNORED = -1  # a class that is not there: no label, no next event, padding


class Task(Protocol):
    """A task turns logits into losses and figures; its `metric` is what cards show.

    Attributes:
        outputs: Numbers the network must give per prediction.
        metric: Name of the figure `evaluate` gives.
    """

    @property
    def outputs(self) -> int:
        """Numbers per prediction."""
        ...

    @property
    def metric(self) -> str:
        """Name of the figure."""
        ...

    def loss(self, model: nn.Module, lot: Lot) -> Tensor:
        """Loss of each window, `(windows,)`; 0 for a window without anything to predict."""
        ...

    def evaluate(self, model: nn.Module, lot: Lot) -> Evaluation:
        """Figures on held-out people."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on people it was not trained on.

    Attributes:
        metric: "auc", "accuracy" or "mae".
        value: Its value.
        baseline: The same figure of `baseline_name`, or None.
        baseline_name: The trivial rule to beat.
        predictions: How many predictions were judged.
        scores: Each prediction's correctness per person, for privatising the figure:
            `(people, 2)` sums of hits and of predictions; empty where the metric is no mean.
    """

    metric: str
    value: float
    baseline: float | None
    baseline_name: str | None
    predictions: int
    scores: np.ndarray


@dataclass(frozen=True)
class Rule:
    """A trivial rule for yes/no labels: "yes" where one input is large enough.

    Attributes:
        column: Which numeric input, last axis of `Lot.x`.
        at_least: On the input's scale.
        name: For the card.
    """

    column: int
    at_least: float
    name: str

    def score(self, lot: Lot, *, each_step: bool) -> Tensor:
        """The input at every step, or at each window's last one."""
        last = "none" if each_step else "last"
        return pooled(lot.x, lot.mask, last)[..., self.column]


@dataclass(frozen=True)
class Binary:
    """A yes/no label per person, window or step; targets 0, 1 or NaN for "no label".

    Attributes:
        threshold_free: The figure is the area under the ROC curve; otherwise accuracy.
        rule: What to beat; None for chance, or the commoner answer.
    """

    threshold_free: bool = True
    rule: Rule | None = None
    outputs: int = 1

    @property
    def metric(self) -> str:
        """The figure's name."""
        return "auc" if self.threshold_free else "accuracy"

    def loss(self, model: nn.Module, lot: Lot) -> Tensor:
        """Cross-entropy in nats, averaged over a window's labelled steps."""
        logits = model(lot.x, lot.mask, lot.categorical)[..., 0]
        known = ~torch.isnan(lot.target)
        target = torch.where(known, lot.target, torch.zeros_like(lot.target))
        each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        return mean_per_window(each, known)

    def evaluate(self, model: nn.Module, lot: Lot) -> Evaluation:
        """AUC or accuracy over all labelled predictions."""
        logits = predict(model, lot)[..., 0]
        known = ~torch.isnan(lot.target)
        truth = lot.target[known].numpy() > 0.5
        score = logits[known].numpy()
        hits = (logits > 0) == (lot.target > 0.5)
        baseline, name = self._baseline(lot, known, truth)
        return Evaluation(
            metric=self.metric,
            value=auc(truth, score) if self.threshold_free else float((hits[known]).float().mean()),
            baseline=baseline,
            baseline_name=name,
            predictions=len(truth),
            scores=per_person(hits, known, lot),
        )

    def _baseline(self, lot: Lot, known: Tensor, truth: np.ndarray) -> tuple[float, str]:
        """The rule's figure on the same predictions."""
        if self.rule is None:
            if self.threshold_free:
                return 0.5, "chance"
            return float(max(truth.mean(), 1 - truth.mean())), "the commoner answer always"
        score = self.rule.score(lot, each_step=lot.target.dim() == 2)[known].numpy()
        if self.threshold_free:
            return auc(truth, score), self.rule.name
        # Values that were rounded to float32 on either side of the threshold count as on it.
        return float(((score >= self.rule.at_least - 1e-5) == truth).mean()), self.rule.name


@dataclass(frozen=True)
class Classes:
    """One of several classes per window or step (next event, next place); −1 is ignored.

    Attributes:
        outputs: Number of classes.
        copies: Rules that repeat a class which an input holds: the first of these categorical
            columns, coded from 1, that holds any. The best of the rules may be the baseline.
    """

    outputs: int
    copies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metric: str = "accuracy"

    def loss(self, model: nn.Module, lot: Lot) -> Tensor:
        """Cross-entropy in nats, averaged over a window's events."""
        logits = model(lot.x, lot.mask, lot.categorical)
        known = lot.target != IGNORED
        each = functional.cross_entropy(
            logits.flatten(0, -2), lot.target.clamp_min(0).flatten(), reduction="none"
        )
        return mean_per_window(each.reshape(lot.target.shape), known)

    def evaluate(self, model: nn.Module, lot: Lot) -> Evaluation:
        """Accuracy over all events, beside the best of the trivial rules."""
        known = lot.target != IGNORED
        hits = predict(model, lot).argmax(dim=-1) == lot.target
        truth = lot.target[known]
        common = torch.bincount(truth, minlength=self.outputs).max() if len(truth) else 0
        rules = {"the commonest class always": float(common / max(len(truth), 1))}
        for name, columns in self.copies.items():
            if lot.categorical is not None and len(truth):
                codes = lot.categorical[..., columns[0]]
                for column in columns[1:]:
                    codes = torch.where(codes > 0, codes, lot.categorical[..., column])
                rules[name] = float((codes - 1 == lot.target)[known].float().mean())
        best = max(rules, key=lambda name: rules[name])
        return Evaluation(
            metric=self.metric,
            value=float(hits[known].float().mean()),
            baseline=rules[best],
            baseline_name=best,
            predictions=len(truth),
            scores=per_person(hits, known, lot),
        )


@dataclass(frozen=True)
class Forecast:
    """A number per step, scaled to the declared range; NaN where it is unknown.

    Attributes:
        scale: Width of the declared range, to give errors in the data's own unit.
    """

    scale: float = 1.0
    outputs: int = 1
    metric: str = "mae"

    def loss(self, model: nn.Module, lot: Lot) -> Tensor:
        """Huber loss, averaged over a window's known steps: outliers keep bounded gradients."""
        known = ~torch.isnan(lot.target)
        target = torch.where(known, lot.target, torch.zeros_like(lot.target))
        guess = model(lot.x, lot.mask, lot.categorical)[..., 0]
        each = functional.huber_loss(guess, target, reduction="none")
        return mean_per_window(each, known)

    def evaluate(self, model: nn.Module, lot: Lot) -> Evaluation:
        """Mean absolute error in the data's unit; the baseline guesses the hold-out's median."""
        known = ~torch.isnan(lot.target)
        guess = predict(model, lot)[..., 0]
        truth = lot.target[known]
        trivial = float((truth - truth.median()).abs().mean()) if len(truth) else 0.0
        return Evaluation(
            metric=self.metric,
            value=float((guess[known] - truth).abs().mean()) * self.scale,
            baseline=trivial * self.scale,
            baseline_name="the median always",
            predictions=len(truth),
            scores=np.empty((0, 2)),
        )


def mean_per_window(each: Tensor, known: Tensor) -> Tensor:
    """Mean over a window's known predictions; `each` is `(windows,)` or `(windows, steps)`."""
    weighted = each * known.to(each.dtype)
    if each.dim() == 1:
        return weighted
    return weighted.sum(dim=1) / known.sum(dim=1).clamp_min(1).to(each.dtype)


class Routed(nn.Module):
    """A model of their own for each group of people, as `predict` asks it.

    Attributes:
        models: By group.
        of: The group of each person of the lot that is judged, `(people,)`.
    """

    def __init__(self, models: Mapping[int, nn.Module], of: np.ndarray) -> None:
        """Keep the models; nothing is copied."""
        super().__init__()
        self.models, self.of = dict(models), of

    def answers(self, lot: Lot, people: int) -> Tensor:
        """Each window's logits by its person's model, in the lot's order."""
        group = self.of[lot.owner.numpy()]
        logits: Tensor | None = None
        for key in np.unique(group).tolist():
            own = lot.pick(np.flatnonzero(self.of == key))
            found = predict(self.models[key], own, people=people)
            if logits is None:
                logits = found.new_empty((len(group), *found.shape[1:]))
            logits[torch.from_numpy(np.flatnonzero(group == key))] = found
        return torch.zeros(0) if logits is None else logits


def predict(model: nn.Module, lot: Lot, *, people: int = 512) -> Tensor:
    """Logits of all windows, computed `people` at a time, without gradients."""
    if isinstance(model, Routed):
        return model.answers(lot, people)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = []
        for start in range(0, lot.people, people):
            part = lot.select(start, min(start + people, lot.people))
            parts.append(model(part.x, part.mask, part.categorical))
    model.train(was_training)
    return torch.cat(parts)


def per_person(hits: Tensor, known: Tensor, lot: Lot) -> np.ndarray:
    """Sums of hits and of predictions of each person, float64 `(people, 2)`."""
    right, judged = (flags.reshape(len(known), -1).sum(dim=1) for flags in (hits & known, known))
    flat = torch.stack([right, judged], dim=1)
    sums = torch.zeros(lot.people, 2, dtype=torch.int64).index_add_(0, lot.owner, flat)
    return sums.numpy().astype(np.float64)


def auc(truth: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve by ranks, ties counted half; NaN if one class is missing.

    Args:
        truth: bool `(predictions,)`.
        score: float `(predictions,)`, larger for "yes".

    Source: Mann and Whitney 1947; Hanley and McNeil 1982.
    """
    positive = int(truth.sum())
    negative = len(truth) - positive
    if not positive or not negative:
        return float("nan")
    # Mean ranks of ties; scipy.stats would take a second to import, in every process.
    _, place, ties = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))
