"""`clipped_sum`: the one door to people's gradients."""

from __future__ import annotations

import torch
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients import checks, fast, history
from sequester.gradients.clipping import ClippingRule, as_rule
from sequester.gradients.lots import Loss, LotLike, person_offsets
from sequester.gradients.result import ClippedSum
from sequester.gradients.surroundings import Surroundings
from sequester.gradients.workers import apart


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    lot: LotLike,
    clip: float | ClippingRule,
    *,
    chunk: int | None = None,
) -> ClippedSum:
    """Sum over people of their gradient, each clipped to the rule's bound.

    A person's objective is the mean of `loss(model, lot)` over that person's windows; a
    person without windows contributes zero, and so does one whose gradient is inf or NaN.

    Args:
        model: Any `nn.Module` without layers that mix people; left exactly as it was.
        loss: `loss(model, lot)` gives one loss for each window, shape `(windows,)`.
        lot: People's windows, sorted by owner; empty and ragged lots are normal.
        clip: The largest L2 norm of one person's contribution, or a rule such as
            `PerLayer` or `Automatic`.
        chunk: People taken at once; chosen by memory and cache when not given. The result
            does not depend on it beyond rounding.

    Returns:
        The sum shaped like the trainable parameters, and each person's norm before clipping.

    Raises:
        UsageError: SQ-401 to SQ-406, each naming what to change.
    """
    rule = as_rule(clip)
    checks.refuse_mixing_layers(model)
    parameters = checks.trainable(model)
    offsets = person_offsets(lot)
    history.refuse_again(model, loss)
    before, held = checks.contents(model), checks.attributes(model)
    around = Surroundings(model, loss)
    starts = torch.tensor(offsets)
    counts = starts[1:] - starts[:-1]
    number = history.due(model, loss, several=int((counts > 0).sum()) > 1)
    kept: UsageError | None = None
    if number is not None:
        with_whom = model, loss, parameters, lot, counts
        kept = apart(lambda: history.kept(*with_whom, number=number, around=around))
    if kept is None:
        accumulator = fast.run(fast.Job(model, loss, parameters, rule), lot, offsets, chunk)
    try:
        checks.refuse_written(model, before)
        checks.refuse_remembering(model, held)
        around.refuse_changed()
        if kept is not None:
            raise kept  # nothing that was looked at changed, which would say more
    except UsageError as refusal:
        history.note_refused(model, loss, refusal)
        raise
    return accumulator.result()
