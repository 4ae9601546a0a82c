"""A forward pass that writes down who used which weight.

`Tape` is a `TorchFunctionMode`: while it is open, each PyTorch function the model calls passes
through `__torch_function__`, whatever module, closure or plain expression it comes from. The
model itself is not touched. Four kinds of tensors are told apart:

- public: constants, positions, frozen weights; nothing to follow;
- weights: require a gradient and carry no rows: parameters, or what was computed from them;
- rows: depend on people's data, one window axis known (`rows.Rows`);
- mixed: depend on several people at once.

A function of rows is followed by a rule; a function of rows *and* weights is either a layer
that enters each person's gradient in the book, or the weight is first given a window axis
(`attach`). Anything else raises `Unsupported`, and those people are taken one at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from sequester.gradients.book import Book
from sequester.gradients.rows import MIXED, Owners, Rows, State, sums

Rule = Callable[["Tape", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
METADATA: set[Any] = set()


class Unsupported(Exception):
    """The fast engine does not know this use of a weight; the loop over people does."""


class Tape(TorchFunctionMode):
    """Follows one chunk's forward pass.

    Args:
        model: Only asked for the path of a layer when something is not supported.
        owners: The person of each window of the chunk.
        book: Receives each person's gradients during the backward pass.
    """

    def __init__(self, model: nn.Module, owners: Owners, book: Book) -> None:
        """Start with no tensor labelled."""
        super().__init__()
        self.owners = owners
        self.book = book
        # Every recorded layer hangs on this leaf, so that the backward pass visits each of them
        # while no gradient flows into a weight itself.
        self.root = torch.zeros((), requires_grad=True)
        self.deferred: dict[int, Any] = {}
        self.packed: dict[int, Owners] = {}
        self._counts: dict[str, int] = {}
        self._model = model
        # Tensors are kept alive so that an id cannot be used twice.
        self._states: dict[int, tuple[Tensor, State]] = {}
        self._weights: dict[int, tuple[Tensor, bool]] = {}

    def forget(self) -> None:
        """Let go of every tensor.

        A labelled tensor's graph leads back to this tape through PyTorch's own nodes, a circle
        that Python's collector cannot see: whoever opens a tape must call this in the end.
        """
        self._states.clear()
        self._weights.clear()
        self.deferred.clear()
        self.packed.clear()

    def label(self, tensor: Tensor, state: State | None) -> Tensor:
        """Remember what is known of `tensor` and return it."""
        if state is not None:
            self._states[id(tensor)] = (tensor, state)
        return tensor

    def label_lot(self, lot: Any) -> None:
        """Label each tensor of the lot that has one entry for each window."""
        for value in _tensors_of(lot):
            if value.dim() and value.shape[0] == len(self.owners):
                self.label(value, Rows(0, self.owners))
            else:
                self.label(value, MIXED)

    def state(self, value: Any) -> State | None:
        """What is known of a value; None if it is public or a weight."""
        held = self._states.get(id(value))
        return held[1] if held is not None else None

    def count(self, what: str) -> int:
        """How often this was asked before: names the buffers of repeated layers."""
        self._counts[what] = self._counts.get(what, -1) + 1
        return self._counts[what]

    def rows(self, value: Any) -> Rows | None:
        """The window axis of `value`, None if it is public or a weight.

        Raises:
            Unsupported: if it is mixed.
        """
        state = self.state(value)
        if state is None or isinstance(state, Rows):
            return state
        raise self.unsupported("mixes windows before a layer with weights")

    def is_weight(self, value: Any) -> bool:
        """Whether `value` is a parameter to train, or computed from parameters alone."""
        if not isinstance(value, Tensor) or not value.requires_grad or id(value) in self._states:
            return False
        held = self._weights.get(id(value))
        if held is None:
            held = (value, value.is_leaf or _from_parameters(value))
            self._weights[id(value)] = held
        if not held[1]:
            raise self.unsupported("uses people's data through a function PyTorch hides")
        return True

    def unsupported(self, what: str) -> Unsupported:
        """The exception to raise, naming the innermost module of the model that is running."""
        paths = {id(module): path for path, module in self._model.named_modules()}
        frame = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and id(module) in paths:
                path = paths[id(module)] or "the model's own forward"
                return Unsupported(f"{path} ({type(module).__name__}) {what}")
            if frame.f_back is None:
                break
            frame = frame.f_back
        return Unsupported(f"the loss {what}")

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func`, following windows through it."""
        kwargs = kwargs or {}
        if func in METADATA:
            return func(*args, **kwargs)
        states = self._states
        if not any(id(t) in states for t in tensors_in(args, kwargs)):
            return func(*args, **kwargs)
        if kwargs.get("out") is not None:
            raise self.unsupported("writes people's values into a buffer with out=")
        if self.deferred and func not in DEFERRED_RULES:
            args, kwargs = self.materialise(args), self.materialise(kwargs)
        rule = DEFERRED_RULES.get(func) if self.deferred else None
        rule = rule or RULES.get(func, mixing)
        return rule(self, func, args, kwargs)

    def attach(self, weight: Tensor, axis: int, rows: Rows) -> Tensor:
        """Give a weight a window axis, so that plain autograd keeps its people apart.

        Args:
            weight: A weight of any shape that broadcasts against the rows.
            axis: The window axis, counted from the end (negative).
            rows: Which windows it will meet.
        """
        shape = [1] * max(0, -axis - weight.dim()) + list(weight.shape)
        if shape[axis] not in (1, rows.size):
            raise self.unsupported("broadcasts a weight along people")
        shape[axis] = rows.size
        attached: Tensor = record(_Attach, self.root, (weight,), shape, rows.moved(axis), self.book)
        return self.label(attached, rows.moved(len(shape) + axis))

    def materialise(self, value: Any) -> Any:
        """`value` with each deferred tensor in it computed."""
        if isinstance(value, Tensor):
            held = self.deferred.get(id(value))
            return value if held is None else held.materialise(self)
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(self.materialise(item) for item in value)
        if isinstance(value, dict):
            return {key: self.materialise(item) for key, item in value.items()}
        return value


DEFERRED_RULES: dict[Any, Rule] = {}


def record(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Run a function that writes into the book when its gradient comes."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among arguments, those in lists and tuples included."""
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(tuple(value), {})
    for value in kwargs.values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(tuple(value), {})


def mixing(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule for what has none: the result mixes, and weights may not take part."""
    name = resolve_name(func) or getattr(func, "__name__", str(func))
    if any(tape.is_weight(t) for t in tensors_in(args, kwargs) if tape.state(t) is None):
        raise tape.unsupported(f"mixes windows, or uses a weight in {name}")
    short = getattr(func, "__name__", "")
    if (short.endswith("_") and not short.endswith("__")) or "out" in kwargs:
        raise tape.unsupported(f"writes in place with {name}")
    result = func(*args, **kwargs)
    found = [result] if isinstance(result, Tensor) else result
    if not isinstance(found, list | tuple) or not all(isinstance(t, Tensor) for t in found):
        raise tape.unsupported(f"reads people's values with {name}")
    for tensor in found:
        tape.label(tensor, MIXED)
    return result


def _from_parameters(weight: Tensor, limit: int = 2000) -> bool:
    """Whether a computed weight's graph ends in leaves without passing through a tape."""
    pending, seen = [weight.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        made_by = getattr(node, "_forward_cls", None)
        if len(seen) > limit or getattr(made_by, "sequester_tape", False):
            return False
        pending.extend(parent for parent, _ in node.next_functions)
    return True


def _tensors_of(lot: Any) -> Iterator[Tensor]:
    """Tensors held by the lot, also in its dictionaries, lists and nested values."""
    values: list[Any] = [getattr(lot, "__dict__", lot)]
    values.extend(getattr(lot, name, None) for name in getattr(type(lot), "__slots__", ()))
    while values:
        value = values.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list | tuple):
            values.extend(value)


class _Attach(torch.autograd.Function):
    """A weight repeated along windows; backward enters each person's share of its gradient."""

    sequester_tape = True

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, weight: tuple[Tensor], shape: list[int], rows: Rows, book: Book
    ) -> Tensor:
        """Expand the weight to `shape`."""
        ctx.weight, ctx.rows, ctx.book = weight[0], rows, book
        return weight[0].detach().expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Sum over each person's windows."""
        gradient, weight, rows, book = gradients[0], ctx.weight, ctx.rows, ctx.book
        axis = gradient.dim() + rows.axis
        full = weight.dim() >= -rows.axis and weight.shape[rows.axis] == rows.size > 1
        moved = gradient.movedim(axis, 0)
        rest = moved.shape[1:]
        if full:
            person = rows.entries.person
            whole = gradient.new_zeros(book.people, rows.size, *rest)
            whole[person, torch.arange(rows.size, device=person.device)] = moved
            book.add(weight, whole.movedim(1, axis + 1).reshape(book.people, *weight.shape))
        else:
            windows = len(rows.owners)
            each = moved.reshape(rows.outer, windows, rows.inner, *rest).sum((0, 2))
            order = rows.owners.order
            each = each if order is None else each[order]
            whole = sums(each, rows.owners)
            book.add(weight, whole.reshape(book.people, *weight.shape).contiguous())
        return None, None, None, None, None
