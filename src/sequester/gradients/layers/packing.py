"""`pack_padded_sequence` and `pad_packed_sequence`: windows in order of length, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sequester.gradients.layers import indexing
from sequester.gradients.rows import Owners, Permutation, Rows, Sizes
from sequester.gradients.rules import along_one, named, rule
from sequester.gradients.tape import RULES, Rule, Tape, mixing
from sequester.gradients.trees import tensors_in


def lengths_of(running: list[int], windows: int) -> Tensor:
    """Steps of each window, from how many windows still run at each step."""
    return (torch.tensor(running)[:, None] > torch.arange(windows)).sum(0)


@rule(*named("sort argsort"))
def sorting(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sorting windows by length: the order is a permutation, not content."""
    rows = tape.state(args[0])
    if (
        not isinstance(rows, Rows)
        or args[0].dim() != 1
        or not rows.plain
        or func.__name__ != "sort"
    ):
        return along_one(tape, func, args, kwargs)
    ordered, index = func(*args, **kwargs)
    tape.label(ordered, Rows(0, rows.owners.permuted(index)))
    tape.label(index, Permutation())
    return ordered, index


def _permuted(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`index_select` by a permutation of the windows."""
    tensor, dim, index = args
    rows = tape.state(tensor)
    if isinstance(tape.state(index), Permutation):
        if isinstance(rows, Permutation) or (rows is None and tape.is_weight(tensor)):
            return tape.label(tensor.index_select(dim, index), rows)
        if rows is None and tensor.shape[dim] == len(index) == len(tape.owners):
            # Each entry lies where its window went.
            moved = Rows(dim % tensor.dim(), tape.owners.permuted(index))
            return tape.label(tensor.index_select(dim, index), moved)
        if isinstance(rows, Rows) and rows.plain and rows.axis == dim % tensor.dim():
            owners = rows.owners.permuted(index)
            return tape.label(tensor.index_select(dim, index), Rows(rows.axis, owners))
    return along_one(tape, func, args, kwargs)


RULES[Tensor.index_select] = _permuted
RULES[torch.index_select] = _permuted


@rule(Tensor.scatter_)
def inverting(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`invert_permutation` writes one permutation into another."""
    order = isinstance(tape.state(args[2]), Permutation) and tape.state(args[3]) is None
    if order and not kwargs:
        return tape.label(func(*args), Permutation())
    return mixing(tape, func, args, kwargs)


def pack(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of a packed sequence belong to whoever owned the window."""
    x, lengths, batch_first = args
    rows = tape.state(x)
    theirs = tape.state(lengths)
    if not isinstance(rows, Rows) or not rows.plain or rows.axis != (0 if batch_first else 1):
        return mixing(tape, func, args, kwargs)
    if theirs is not None and not (isinstance(theirs, Rows) and theirs.matches(rows)):
        return mixing(tape, func, args, kwargs)
    data, sizes = func(x, lengths, batch_first)
    person = torch.cat([rows.owners.person[:size] for size in sizes.tolist()])
    each = Owners(person, rows.owners.people)
    tape.label(data, Rows(0, each))
    tape.label(sizes, Sizes())
    tape.packed[id(sizes)] = (rows.owners, each)
    return data, sizes


def unpacked_owners(tape: Tape, data: Tensor, sizes: Tensor) -> Owners | None:
    """Owners of the windows of a packed sequence; None if its rows lie in another order."""
    owners, each = tape.packed.get(id(sizes), (None, None))
    rows = tape.state(data)
    fits = isinstance(rows, Rows) and rows.axis == 0 and rows.plain
    if owners is None or each is None or not fits or not isinstance(rows, Rows):
        return None
    return owners if rows.owners.same(each) else None


def unpack(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Padding back, refused where one person's length would show in another's shape."""
    data, sizes, batch_first, value, total = args
    owners = unpacked_owners(tape, data, sizes)
    if owners is None:
        return mixing(tape, func, args, kwargs)
    lengths = lengths_of(sizes.tolist(), len(owners)).to(owners.person.device)
    longest = lengths.new_zeros(owners.people)
    longest.scatter_reduce_(0, owners.person, lengths, "amax")
    if not _length_was_given() and bool((longest[owners.person] < len(sizes)).any()):
        raise tape.unsupported(
            "pads to the longest window of other people; give pad_packed_sequence total_length="
        )
    out, counts = func(data, sizes, batch_first, value, total)
    tape.label(counts, Rows(0, owners))
    return tape.label(out, Rows(0 if batch_first else 1, owners)), counts


def _length_was_given() -> bool:
    """Whether `pad_packed_sequence` was told a length; by itself it asks for the longest."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is nn.utils.rnn.pad_packed_sequence.__code__:
            return frame.f_locals.get("total_length") is not None
    return False


def _sizes(
    tape: Tape, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Reading a packed sequence's sizes."""
    if isinstance(tape.state(args[0]), Sizes):
        result: Any = func(*args, **kwargs)
        return tape.label(result, Sizes()) if isinstance(result, Tensor) else result
    previous: Rule = _BEFORE.get(func, mixing)
    return previous(tape, func, args, kwargs)


@rule(torch.zeros)
def zeros(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`nn.GRU` makes its first state as long as a packed sequence says."""
    sized = [tape.state(t) for t in tensors_in(args, kwargs)]
    if all(s is None or isinstance(s, Sizes) for s in sized):
        return func(*args, **kwargs)
    return mixing(tape, func, args, kwargs)


_BEFORE: dict[Any, Rule] = {Tensor.__getitem__: indexing.indexing}
for _function in (Tensor.__getitem__, Tensor.__int__):
    RULES[_function] = _sizes
RULES[torch._VF._pack_padded_sequence] = pack  # noqa: SLF001
RULES[torch._VF._pad_packed_sequence] = unpack  # noqa: SLF001
