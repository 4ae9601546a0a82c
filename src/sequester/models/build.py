"""From a name and public options to a network with reproducible public initial weights."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.gradients.randomness import kept
from sequester.models.copying import Copying
from sequester.models.inputs import Shape
from sequester.models.networks import Convolutional, Linear, Recurrent, Skip, Transformer

Option = int | float | str | bool

KINDS: dict[str, Callable[..., nn.Module]] = {
    "gru": partial(Recurrent, cell="gru"),
    "lstm": partial(Recurrent, cell="lstm"),
    "gru_skip": Skip,
    "copy": Copying,
    "transformer": Transformer,
    "tcn": Convolutional,
    "linear": Linear,
}


def build(
    kind: str, shape: Shape, options: Mapping[str, Option] | None = None, *, seed: int = 0
) -> nn.Module:
    """A network of `kind`, its first weights drawn from a public seed.

    Args:
        kind: One of `KINDS`, or `package.file:Class` for your own module, which is called as
            `Class(shape, **options)` and then as `module(x, mask, categorical)`.
        shape: Public sizes.
        options: Keyword arguments of the network, such as `hidden` or `layers`.
        seed: Public; initial weights say nothing about people.

    Raises:
        UsageError: SQ-252 for an unknown kind, SQ-253 for options it does not take.
    """
    make = KINDS[kind] if kind in KINDS else _own_class(kind)
    options = dict(options or {})
    try:
        inspect.signature(make).bind(shape, **options)
    except TypeError as mismatch:
        allowed = [
            name
            for name, parameter in inspect.signature(make).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "cell"
        ]
        raise UsageError(
            253,
            f"model.options do not fit {kind!r}: {mismatch}; it takes {', '.join(allowed)}",
        ) from None
    # torch's layers draw from the global generator.
    with kept():
        torch.manual_seed(int(public_generator(seed).integers(2**62)))
        try:
            return make(shape, **options)
        except (TypeError, ValueError, RuntimeError, ArithmeticError) as refusal:
            raise UsageError(
                253, f"model.options make no network of kind {kind!r}: {refusal}"
            ) from refusal


def _own_class(name: str) -> Callable[..., nn.Module]:
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as missing:
        raise UsageError(
            252,
            f"model.kind must be one of {', '.join(KINDS)}, or model.module be "
            f"'package.file:Class', got {name!r} ({missing})",
        ) from None
    # Before it is called: a study may come from elsewhere, and must not run whatever it names.
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UsageError(252, f"model.kind {name!r} is no class of nn.Module")
    return found
