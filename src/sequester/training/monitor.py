"""What the operator may see of a private run, and advice in words.

Everything here is computed on people and stays in `private/` or on the operator's terminal:
an exact clip fraction of a small region gives one person away.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from torch import Tensor

CLIPPED_TOO_MANY = 0.70
CLIPPED_TOO_FEW = 0.02
_QUANTILES = (0.1, 0.5, 0.9)


class Measure(msgspec.Struct, frozen=True):
    """One step as the operator sees it; private.

    Attributes:
        step: The step's number.
        people: People in the lot.
        loss: Mean loss of the lot's people; None for an empty lot.
        clip: The bound in force.
        clipped: Share of people above it.
        norms: Quantiles 0.1, 0.5, 0.9 of the norms before clipping.
        signal_to_noise: ‖clipped mean‖ over the noise's expected norm.
        nonfinite: People whose gradient was inf or NaN and counted as zero.
        groups: Clip fraction by group, where groups were declared.
        clipped_released: The noisy clip fraction that adaptive clipping paid for; this one is
            no secret.
    """

    step: int
    people: int
    loss: float | None
    clip: float
    clipped: float
    norms: list[float]
    signal_to_noise: float
    nonfinite: int
    groups: dict[str, float]
    clipped_released: float | None = None


def measure(
    step: int, norms: Tensor, *, clip: float, loss: float | None, groups: np.ndarray | None
) -> Measure:
    """Figures of one lot.

    Args:
        step: The step's number.
        norms: `(people,)` before clipping.
        clip: The bound in force.
        loss: Mean loss.
        groups: Group name of each person in the lot, `(people,)`, or None.
    """
    values = norms.numpy()
    finite = values[np.isfinite(values)]
    above = ~(values <= clip)
    shares = {}
    if groups is not None:
        shares = {str(g): float(above[groups == g].mean()) for g in np.unique(groups)}
    return Measure(
        step=step,
        people=len(values),
        loss=loss,
        clip=clip,
        clipped=float(above.mean()) if len(values) else 0.0,
        norms=[float(q) for q in np.quantile(finite, _QUANTILES)] if len(finite) else [],
        signal_to_noise=0.0,
        nonfinite=len(values) - len(finite),
        groups=shares,
    )


@dataclass
class Monitor:
    """Appends measures to `private/metrics.jsonl` and turns them into advice.

    Attributes:
        folder: The run's private folder.
        measures: All of the run's so far, newest last; a resumed run reads the earlier ones.
    """

    folder: Path
    measures: list[Measure] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read what an interrupted part of the run left; a line cut off by a crash is skipped."""
        file = self.folder / "metrics.jsonl"
        for line in file.read_bytes().splitlines() if file.exists() else ():
            try:
                self.measures.append(msgspec.json.decode(line, type=Measure))
            except msgspec.MsgspecError:
                continue

    def add(self, measured: Measure) -> None:
        """Keep and write one step."""
        self.measures.append(measured)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        handle = os.open(self.folder / "metrics.jsonl", flags, 0o600)
        try:
            os.write(handle, msgspec.json.encode(measured) + b"\n")
        finally:
            os.close(handle)

    def advice(self) -> list[str]:
        """What an experienced operator would say about the run so far; private."""
        if not self.measures:
            return []
        recent = self.measures[-max(1, len(self.measures) // 4) :]
        clipped = float(np.mean([m.clipped for m in recent]))
        signal = float(np.median([m.signal_to_noise for m in recent]))
        words = []
        if clipped > CLIPPED_TOO_MANY:
            words.append(
                f"{clipped:.0%} of people are clipped (more than {CLIPPED_TOO_MANY:.0%}): the "
                "bound is low and large gradients are flattened; raise privacy.clip, or lower the "
                "learning rate if training is unstable"
            )
        elif clipped < CLIPPED_TOO_FEW:
            words.append(
                f"only {clipped:.1%} of people are clipped: the bound, and with it the noise, is "
                "larger than it need be; lower privacy.clip or set privacy.adaptive"
            )
        for group, share in _worst_groups(recent).items():
            words.append(
                f"in group {group} {share:.0%} of people are clipped: the model will fit them "
                "worse than others"
            )
        if signal < 0.1:
            words.append(
                f"the update's signal is {signal:.2f} of its noise: use larger lots and fewer "
                "steps, a smaller model, or averaging (training.average)"
            )
        if (slope := self._loss_slope()) is not None and slope < -0.01:
            words.append(
                "the loss is still falling: the budget ended, or will end, before convergence; "
                "raise the learning rate or use fewer, larger lots"
            )
        if broken := sum(m.nonfinite for m in self.measures):
            words.append(f"{broken} gradients were inf or NaN and counted as zero; check the data")
        return words

    def _loss_slope(self) -> float | None:
        """Relative change of the loss over the last quarter of the steps."""
        losses = [m.loss for m in self.measures if m.loss is not None]
        if len(losses) < 16:
            return None
        part = len(losses) // 8
        before, after = np.mean(losses[-2 * part : -part]), np.mean(losses[-part:])
        return float((after - before) / abs(before)) if before else None


def _worst_groups(recent: list[Measure]) -> Mapping[str, float]:
    shares: dict[str, list[float]] = {}
    for measured in recent:
        for group, share in measured.groups.items():
            shares.setdefault(group, []).append(share)
    means = {group: float(np.mean(values)) for group, values in shares.items()}
    return {group: share for group, share in means.items() if share > CLIPPED_TOO_MANY}
