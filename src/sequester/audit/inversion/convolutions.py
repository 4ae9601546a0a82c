"""Rebuilding what a causal convolutional network's last step sees: equations alone, layer by layer.

From the head down, what flows back into a layer's outputs is known. Its bias' gradient is their
sum over those that the layer's ReLUs let through: few enough sums to try them all, and only one
fits. Its weight's gradient is then linear in the layer's inputs, with more equations than there
are inputs: least squares finds them, and the flow goes on through the weights. At the bottom the
lift is inverted. Neither the answer nor the scale of a clipped update is needed.
A layer-wise inversion as in Zhu and Blaschko 2021 (ICLR), R-GAP, with all outputs at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sequester.core.errors import UsageError
from sequester.models.networks import Convolutional

_MOST_STEPS = 16  # of a layer's outputs: 2^16 sums a channel are tried


def receptive_field(model: Convolutional, gradient: Mapping[str, Tensor], *, steps: int) -> Tensor:
    """What the last step of a TCN that pools "last" was given, from one window's gradient.

    Args:
        model: At the weights the gradient was taken at.
        gradient: By parameter name; any positive multiple of it does.
        steps: True steps of the window, a public length.

    Returns:
        The last steps of the window as the network reads them, `(field, inputs)` float64, where
        field is at most `steps`; exact for one window where each layer has more channels than
        outputs that count.

    Raises:
        UsageError: SQ-830 if nothing flows back, SQ-834 if the network pools otherwise or is too
            deep to try all sums.
    """
    if model.pool != "last":
        raise UsageError(
            834, "equations find what one step sees: the network must pool its last step"
        )
    weights = {name: value.detach().double() for name, value in model.named_parameters()}
    given = {name: value.double() for name, value in gradient.items()}
    back = weights["head.weight"].T @ given["head.bias"]
    if not bool(back.any()):
        raise UsageError(830, "the head's gradient is zero; there is nothing to invert")
    flow, hidden = {0: back}, torch.empty(0)
    for layer in reversed(range(len(model.convolutions))):
        name = f"convolutions.{layer}"
        weight, gained = weights[f"{name}.weight"], given[f"{name}.weight"]
        through = _let_through(flow, given[f"{name}.bias"])
        read, hidden, back = _below(weight, gained, through, 2**layer, steps)
        # The residual beside the convolution carries the flow on unchanged.
        flow = {lag: flow.get(lag, 0.0) + back[row] for row, lag in enumerate(read)}
    lifted = (hidden - weights["lift.bias"]).T
    found: Tensor = torch.linalg.lstsq(weights["lift.weight"], lifted, driver="gelsd").solution
    return found.T.flip(0)


def _below(
    weight: Tensor, gradient: Tensor, flow: dict[int, Tensor], reach: int, steps: int
) -> tuple[list[int], Tensor, Tensor]:
    """What a convolution read, whose output at lag t reads lags t, t + reach, t + 2 reach, etc.

    Args:
        weight: `(outputs, inputs, taps)`.
        gradient: Of the weight.
        flow: By lag, what flows back through the ReLU there, `(outputs,)`.
        reach: Dilation.
        steps: Lags from here on lie before the window and are padding.

    Returns:
        Lags of the inputs, ascending; the inputs, `(lags, inputs)`; what flows back to them.
    """
    outputs, width, taps = weight.shape
    arrows = [
        (lag, tap, lag + (taps - 1 - tap) * reach)
        for lag in flow
        for tap in range(taps)
        if lag + (taps - 1 - tap) * reach < steps
    ]
    read = sorted({origin for _, _, origin in arrows})
    row = {origin: number for number, origin in enumerate(read)}
    equations = torch.zeros(taps, outputs, len(read), dtype=torch.float64)
    back = torch.zeros(len(read), width, dtype=torch.float64)
    for lag, tap, origin in arrows:
        equations[tap, :, row[origin]] = flow[lag]
        back[row[origin]] += flow[lag] @ weight[:, :, tap]
    known = gradient.permute(2, 0, 1).reshape(-1, width)
    inputs = torch.linalg.lstsq(equations.reshape(-1, len(read)), known, driver="gelsd").solution
    return read, inputs, back


def _let_through(flow: dict[int, Tensor], bias: Tensor) -> dict[int, Tensor]:
    """The part of `flow`, by lag and channel, whose sum over lags is `bias (channels,)`.

    Raises:
        UsageError: SQ-834 if there are too many lags to try all parts.
    """
    lags = len(flow)
    if lags > _MOST_STEPS:
        raise UsageError(
            834, f"a layer has {lags} outputs that count; at most {_MOST_STEPS} can be tried"
        )
    parts = ((torch.arange(2**lags)[:, None] >> torch.arange(lags)) & 1).double()
    best = parts[(parts @ torch.stack(list(flow.values())) - bias).abs().argmin(dim=0)]
    return {lag: value * best[:, row] for row, (lag, value) in enumerate(flow.items())}
