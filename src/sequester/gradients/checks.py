"""Refusals before the first gradient: layers through which people would meet.

A person's gradient must depend on that person's windows and the public weights only. Layers
with batch statistics break this silently, and so do layers which keep what they saw.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrizations import _SpectralNorm

from sequester.core.errors import UsageError
from sequester.gradients.trees import Picture, changed, digest, held_by, pictured


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name, a tied one once.

    Raises:
        UsageError: SQ-405 if there is none.
    """
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise UsageError(
            405,
            f"{type(model).__name__} has no trainable parameter; set requires_grad on those to "
            "train",
        )
    return found


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuse each layer that lets people meet or remembers their data.

    Raises:
        UsageError: SQ-401, naming the layer's path and what to put there.
    """
    for path, module in model.named_modules():
        _refuse_mixing(path or "the model itself", module)


def _refuse_mixing(where: str, module: nn.Module) -> None:
    reason = _reason(module)
    if reason:
        raise UsageError(401, f"layer {where!r} ({type(module).__name__}) {reason}")


def _reason(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return (
            "normalises over the batch, so one person's gradient would depend on the others; "
            "use nn.GroupNorm(groups, channels) or nn.LayerNorm instead"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return (
            "keeps running statistics of people's data, which would leave with the model without "
            "noise; set track_running_stats=False"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return (
            "rescales the rows it looks up in place, which changes the weights without noise; "
            "set max_norm=None"
        )
    if isinstance(module, _SpectralNorm) and module.training:
        return (
            "moves its vectors at each pass, so a person's gradient would depend on how many "
            "passes came before; use nn.utils.parametrizations.weight_norm, or .eval() this part"
        )
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "has no shape yet; run the model once on public input first"
    return None


def contents(model: nn.Module, *, trainable: bool = True) -> dict[str, bytes]:
    """A digest of each buffer and parameter; only of what no step moves unless `trainable`."""
    kept = {name: p for name, p in model.named_parameters() if trainable or not p.requires_grad}
    return {name: digest(tensor) for name, tensor in (*kept.items(), *model.named_buffers())}


def attributes(model: nn.Module, *, identity: bool = True) -> dict[str, Picture]:
    """Every module's plain attributes and extra state by path, and what is inside them.

    So are attributes and gradients that hang on its parameters and buffers.

    Args:
        model: The module.
        identity: Whether equal values that are other objects count as changed.

    Raises:
        UsageError: SQ-401 for a layer kept in a list or object that mixes people, SQ-406 for more
            than can be looked at.
    """
    own = {id(module): module for module in model.modules()}
    found: dict[str, Picture] = {}

    def take(name: str, value: Any) -> None:
        found[name] = picture = pictured(name, value, identity=identity, own=own)
        for module in picture.modules:  # PyTorch's lists do not have them
            if module.training or not isinstance(module, _BatchNorm):
                _refuse_mixing(name, module)

    for path, module in model.named_modules():
        prefix, members = f"{path}." if path else "", vars(module)
        for name, value in held_by(module):
            take(prefix + name, value)
        # `contents` has the numbers of these; torch's RNNs note their own weights once more.
        for kind in ("_parameters", "_buffers"):
            for name, tensor in members.get(kind, {}).items():
                if tensor is not None and vars(tensor):
                    take(f"{prefix}{name}.__dict__", vars(tensor))
                if tensor is not None and tensor.is_leaf and tensor.grad is not None:
                    take(f"{prefix}{name}.grad", tensor.grad)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            extra = Picture(module.get_extra_state(), identity=False)
            found[f"{prefix}get_extra_state()"] = extra
    return found


def refuse_remembering(model: nn.Module, before: dict[str, Picture]) -> None:
    """Refuse a model whose forward pass changed an attribute: it would carry people's data along.

    Worker threads share the module, and the next lot meets it again: through such an attribute
    one person's gradient could depend on another's data, which no clipping bounds.

    Raises:
        UsageError: SQ-406, naming the attribute.
    """
    for name in changed(before, attributes(model)):
        raise UsageError(
            406,
            f"the attribute {name!r} changed during the forward pass, so people could meet in it; "
            "keep it in a local variable instead, or, if it is a constant that is made at first "
            "use, run the model once on public input before",
        )


def refuse_written(model: nn.Module, before: dict[str, bytes], *, trainable: bool = True) -> None:
    """Refuse a model whose forward pass wrote into what leaves with it: people's data would too.

    Raises:
        UsageError: SQ-406, naming the parameter or buffer.
    """
    now = contents(model, trainable=trainable)
    for name in sorted(now.keys() | before.keys()):
        if before.get(name) != now.get(name):
            raise UsageError(
                406,
                f"{name!r} changed during the forward pass, so it keeps what it saw of people and "
                "would leave with the model without noise; make it a constant, or compute it per "
                "window",
            )


def check_losses(losses: Tensor, windows: int) -> Tensor:
    """Return the losses if there is one for each window.

    Raises:
        UsageError: SQ-404 otherwise.
    """
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (windows,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise UsageError(
            404,
            f"loss(model, lot) must return one loss for each window, shape ({windows},), got "
            f"{shape}; use reduction='none' and average over steps only",
        )
    return losses
