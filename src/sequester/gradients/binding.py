"""Arguments by place, however they were given.

PyTorch's functions written in C++ take most arguments by place or by name; rules unpack places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Names of the leading arguments, as far as a rule unpacks them. Every other function's first is
# `input`; those of methods are never given by name, nor are those of functions in Python, which
# their rules look up by themselves.
_PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "gather": (("input",), ("dim",), ("index",)),
    "take_along_dim": (("input",), ("indices",), ("dim",)),
    "index_select": (("input",), ("dim",), ("index",)),
    "select": (("input",), ("dim",), ("index",)),
    "narrow": (("input",), ("dim",), ("start",), ("length",)),
    "unbind": (("input",), ("dim",)),
    "chunk": (("input",), ("chunks",), ("dim",)),
    "split": (("tensor", "input"), ("split_size_or_sections", "split_size"), ("dim",)),
    "split_with_sizes": (("input",), ("split_sizes",), ("dim",)),
    "tensor_split": (("input",), ("indices_or_sections", "sections", "indices"), ("dim",)),
    "flip": (("input",), ("dims",)),
    "roll": (("input",), ("shifts",), ("dims",)),
    "repeat_interleave": (("input",), ("repeats",), ("dim",)),
    "unsqueeze": (("input",), ("dim",)),
    "matmul": (("input",), ("other",)),
    "mm": (("input",), ("mat2",)),
    "bmm": (("input",), ("mat2",)),
    "where": (("condition",), ("input", "self"), ("other",)),
    "pad": (("input",), ("pad",)),
    "cat": (("tensors",), ("dim",)),
    "concat": (("tensors",), ("dim",)),
    "concatenate": (("tensors",), ("dim",)),
    "stack": (("tensors",), ("dim",)),
    "hstack": (("tensors",),),
    "one_hot": (("tensor", "input"), ("num_classes",)),
    "normalize": (("input",), ("p",), ("dim",)),
}
_ANY: tuple[tuple[str, ...], ...] = (("input", "self"),)


def by_place(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with its leading arguments in their places."""
    if not kwargs:
        return args, kwargs
    kwargs = dict(kwargs)
    if "axis" in kwargs:  # PyTorch's second name for it, in each function that has one
        kwargs["dim"] = kwargs.pop("axis")
    for names in _PLACES.get(getattr(func, "__name__", ""), _ANY)[len(args) :]:
        name = next((n for n in names if n in kwargs), None)
        if name is None:
            break
        args = (*args, kwargs.pop(name))
    return args, kwargs
