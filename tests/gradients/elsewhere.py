"""A device that is not the CPU, on a machine that has none: CPU numbers behind a fence.

Tensors in here say they lie on `meta`, hold their numbers on the CPU, and refuse, as CUDA does,
whatever would mix them with tensors of the CPU: that is how engines which assume the CPU fail.
"""

from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
PACKING = (
    torch.ops.aten._pack_padded_sequence.default,
    torch.ops.aten._pad_packed_sequence.default,
)


class Fenced(Tensor):
    """A tensor of the other device; `inside` holds its numbers."""

    @staticmethod
    def __new__(cls, inside):
        return Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(),
            dtype=inside.dtype, device=DEVICE, requires_grad=False,
        )  # fmt: skip

    def __init__(self, inside):
        self.inside = inside

    def __repr__(self):
        return f"Fenced({self.inside})"

    def tolist(self):
        return self.inside.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """One operation, on whichever side of the fence its tensors lie."""
    given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
    fenced = [t for t in given if isinstance(t, Fenced)]
    device = kwargs.get("device")
    there = bool(fenced) if device is None else torch.device(device) == DEVICE
    moves = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if fenced and not moves:
        # As on CUDA: lone numbers of the CPU may take part, and lengths lie there.
        strangers = [t for t in given if not isinstance(t, Fenced) and t.dim()]
        if strangers and func not in PACKING:
            raise RuntimeError(f"{func}: tensors of two devices, {[t.shape for t in strangers]}")
    if not there and not fenced:
        return func(*args, **kwargs)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    bare = tree_map(lambda t: t.inside if isinstance(t, Fenced) else t, (args, kwargs))
    found = func(*bare[0], **bare[1])
    if func in PACKING:  # sizes and lengths stay on the CPU
        return Fenced(found[0]), found[1]
    if there:
        found = tree_map(lambda t: Fenced(t) if isinstance(t, Tensor) else t, found)
        return return_and_correct_aliasing(func, args, kwargs, found) if fenced else found
    return found


class _Factories(TorchDispatchMode):
    """Also tensors which are made there from nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


@contextmanager
def elsewhere(model):
    """`model` on the other device, in place, until the block ends."""
    held = [(m, n, p) for m in model.modules() for n, p in m._parameters.items() if p is not None]
    twins = {id(p): nn.Parameter(Fenced(p.detach()), p.requires_grad) for _, _, p in held}
    try:
        for module, name, parameter in held:
            module._parameters[name] = twins[id(parameter)]
        with _Factories():
            yield model
    finally:
        for module, name, parameter in held:
            module._parameters[name] = parameter


def back(tensor):
    """A tensor's numbers, on the CPU."""
    return tensor.inside if isinstance(tensor, Fenced) else tensor
