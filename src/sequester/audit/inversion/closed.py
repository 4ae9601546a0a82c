"""Rebuilding a window from its gradient by solving equations: no optimisation, milliseconds.

first_linear  a linear layer that reads the window itself      Phong et al. 2018 (IEEE TIFS)
positions     a linear lift plus learned positions             Lu et al. 2022 (CVPR), APRIL
imprint       a linear layer that a malicious server prepared  Fowl et al. 2022 (ICLR)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError

_NOTHING = 1e-14


def first_linear(weight: Tensor, bias: Tensor) -> Tensor:
    """The single input of a linear layer: `∂L/∂W = δ xᵀ` and `∂L/∂b = δ`.

    Args:
        weight: Gradient of the weight, `(outputs, inputs)`.
        bias: Gradient of the bias, `(outputs,)`.

    Returns:
        The input, `(inputs,)`; exact for one window, a mean weighted by δ for several.

    Raises:
        UsageError: SQ-830 if the layer passed no gradient back.
    """
    row = int(bias.abs().argmax())
    if float(bias[row].abs()) < _NOTHING:
        raise UsageError(830, "the first layer's gradient is zero; there is nothing to invert")
    return weight[row] / bias[row]


def positions(lift: Tensor, position: Tensor) -> Tensor:
    """All steps of a window, from a lift `W x_t + p_t`: `∂L/∂W = Δᵀ X` and `∂L/∂p = Δ`.

    Args:
        lift: Gradient of the lift's weight, `(width, features)`.
        position: Gradient of the positions, `(steps, width)`.

    Returns:
        The window, `(steps, features)`; exact where width ≥ steps and Δ has full rank.
    """
    found: Tensor = torch.linalg.lstsq(position.double().T, lift.double(), driver="gelsd").solution
    return found


def imprint(weight: Tensor, bias: Tensor) -> Tensor:
    """Windows caught by a prepared layer whose units open one after the other.

    Neighbouring units differ only in the windows that open one and not the other; a window
    alone in its bin comes out exactly, however many are summed.

    Args:
        weight: Gradient of the layer's weight, `(bins, inputs)`, bins in order of their bias.
        bias: Gradient of its bias, `(bins,)`.

    Returns:
        Candidates, `(found, inputs)`.
    """
    last_weight, last_bias = weight[-1:], bias[-1:]
    weights = torch.cat([weight[:-1] - weight[1:], last_weight])
    biases = torch.cat([bias[:-1] - bias[1:], last_bias])
    caught = biases.abs() > _NOTHING
    return weights[caught] / biases[caught, None]


def prepare_imprint(layer: nn.Linear, direction: Tensor, edges: Tensor) -> None:
    """Turn `layer` into a malicious server's: every unit measures one direction.

    Args:
        layer: Changed in place; `(bins, inputs)`.
        direction: What is measured, `(inputs,)`.
        edges: Ascending, one per unit: unit k opens above `edges[k]`.
    """
    with torch.no_grad():
        layer.weight.copy_(direction.expand_as(layer.weight))
        if layer.bias is not None:
            layer.bias.copy_(-edges)


def refuse_prepared(model: nn.Module) -> None:
    """A client's check before it trains: refuse weights that look made to catch its windows.

    Raises:
        UsageError: SQ-831 naming a linear layer whose rows are (nearly) multiples of one row.
    """
    for path, module in model.named_modules():
        if not isinstance(module, nn.Linear) or module.out_features < 8:
            continue
        rows = module.weight.detach().double()
        lengths = rows.norm(dim=1, keepdim=True)
        rows = rows[(lengths > 0).squeeze(1)] / lengths[lengths.squeeze(1) > 0]
        if len(rows) < 8 or module.in_features < 2:
            continue
        alike = (rows @ rows[0]).abs() > 1 - 1e-6
        if float(alike.double().mean()) > 0.5:
            raise UsageError(
                831,
                f"layer {path!r} has {int(alike.sum())} rows in one direction, as a server would "
                "prepare them to catch single windows; do not train on these weights",
            )
