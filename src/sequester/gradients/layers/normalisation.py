"""Layer, group, instance and root-mean-square norms: normalise, then scale by attached weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.rows import Rows
from sequester.gradients.rules import rule
from sequester.gradients.tape import Tape, mixing


def _scaled(
    tape: Tape, x: Tensor, rows: Rows, parts: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """`x · weight + bias`, the parts shaped to broadcast against x."""
    axis = rows.axis - x.dim()
    weight, bias = (
        tape.attach(p, axis, rows) if p is not None and tape.is_weight(p) else p for p in parts
    )
    x = x if weight is None else x * weight
    return tape.label(x if bias is None else x + bias, rows)


def _usable(tape: Tape, given: dict[str, Any], last: int) -> Rows | None:
    x = given["input"]
    rows = tape.state(x)
    fits = isinstance(rows, Rows) and rows.axis < x.dim() - last and _own(tape, given)
    return rows if fits and isinstance(rows, Rows) else None


def _own(tape: Tape, given: dict[str, Any]) -> bool:
    """Whether only the input depends on people; scales of people's data would lie elsewhere."""
    return all(tape.state(value) is None for name, value in given.items() if name != "input")


@rule(F.layer_norm)
def layer_norm(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Normalises each row by itself."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, shape = given["input"], given["normalized_shape"]
    rows = _usable(tape, given, len(shape))
    if rows is None:
        out: Tensor = mixing(tape, func, args, kwargs)
        return out
    plain = F.layer_norm(x, shape, eps=given.get("eps", 1e-5))
    return _scaled(tape, plain, rows, (given.get("weight"), given.get("bias")))


@rule(F.rms_norm, torch.rms_norm)
def rms_norm(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Scales each row by itself."""
    names = ("input", "normalized_shape", "weight", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, shape = given["input"], given["normalized_shape"]
    rows = _usable(tape, given, len(shape))
    if rows is None:
        out: Tensor = mixing(tape, func, args, kwargs)
        return out
    plain = F.rms_norm(x, shape, eps=given.get("eps"))
    return _scaled(tape, plain, rows, (given.get("weight"), None))


@rule(F.group_norm, F.instance_norm)
def group_norm(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Normalises groups of channels of one window."""
    instance = func is F.instance_norm
    names = ("input", "num_groups", "weight", "bias", "eps")
    if instance:
        names = (  # type: ignore[assignment]
            "input", "running_mean", "running_var", "weight", "bias", "use_input_stats",
            "momentum", "eps",
        )  # fmt: skip
    given = dict(zip(names, args, strict=False)) | kwargs
    x = given["input"]
    rows = tape.state(x)
    whole = (
        isinstance(rows, Rows) and rows.axis == 0 and rows.plain and x.dim() > 2 - (not instance)
    )
    whole = whole and _own(tape, given)
    if not whole or given.get("running_mean") is not None or not isinstance(rows, Rows):
        out: Tensor = mixing(tape, func, args, kwargs)
        return out
    eps = given.get("eps", 1e-5)
    groups = x.shape[1] if instance else given["num_groups"]
    plain = F.group_norm(x, groups, eps=eps)
    column = (-1, *[1] * (x.dim() - 2))
    parts = [given.get("weight"), given.get("bias")]
    parts = [None if p is None else p.reshape(column) for p in parts]
    return _scaled(tape, plain, rows, (parts[0], parts[1]))


@rule(F.prelu, torch.prelu)
def prelu(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A slope for each channel."""
    given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
    x, weight = given["input"], given["weight"]
    rows = tape.state(x)
    if (
        not isinstance(rows, Rows)
        or not _own(tape, given)
        or (rows.axis != 0 and weight.numel() > 1)
    ):
        out: Tensor = mixing(tape, func, args, kwargs)
        return out
    column = (-1, *[1] * max(0, x.dim() - 2)) if weight.numel() > 1 else (1,) * x.dim()
    shaped = weight.reshape(column)
    slope = tape.attach(shaped, rows.axis - x.dim(), rows) if tape.is_weight(shaped) else shaped
    return tape.label(torch.where(x > 0, x, x * slope), rows)
