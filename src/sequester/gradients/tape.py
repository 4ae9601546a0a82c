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
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import _pop_mode, _push_mode

from sequester.gradients.binding import by_place
from sequester.gradients.book import Book
from sequester.gradients.reading import Unread, shapes_by_value
from sequester.gradients.rows import MIXED, Owners, Rows, State, sums
from sequester.gradients.trees import Opaque, tensors_in, tensors_of
from sequester.gradients.watch import (
    Watch,
    hidden_function,
    makers,
    memory,
    saved_tensor_hooks,
)

Rule = Callable[["Tape", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
METADATA: set[Any] = set()
# What acts on the backward pass behind the book's back, whoever's tensors are given.
REFUSED: set[Any] = {
    Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.backward,
    torch.autograd.backward, torch.autograd.grad,
}  # fmt: skip
# What makes memory that nothing else has.
MAKERS: set[Any] = {torch.zeros, torch.ones, torch.full, torch.empty}


class Unsupported(Exception):
    """The fast engine does not know this use of a weight; the loop over people does."""


class Tape(TorchFunctionMode):
    """Follows one chunk's forward pass.

    Args:
        model: Only asked for the path of a layer when something is not supported.
        owners: The person of each window of the chunk.
        book: Receives each person's gradients during the backward pass.

    Attributes:
        watch: To be open beside the tape during a forward pass of the user's.
    """

    def __init__(self, model: nn.Module, owners: Owners, book: Book) -> None:
        """Start with no tensor labelled."""
        super().__init__()
        self.watch = Watch(self._refuse_hidden, self._refuse_threads)
        self.owners = owners
        self.book = book
        # Every recorded layer hangs on this leaf, so that the backward pass visits each of them
        # while no gradient flows into a weight itself.
        self.root = torch.zeros((), requires_grad=True)
        self.deferred: dict[int, Any] = {}
        # Batch sizes of packed sequences: owners of the windows, and of the packed rows.
        self.packed: dict[int, tuple[Owners, Owners]] = {}
        self._counts: dict[str, int] = {}
        self._model = model
        # Tensors are kept alive so that an id cannot be used twice.
        self._states: dict[int, tuple[Tensor, State]] = {}
        self._weights: dict[int, tuple[Tensor, bool]] = {}
        self._public: dict[int, Tensor] = {}
        self._made: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._memories: dict[int, bool] = {}  # storages of people's data, False where a weight's
        self._kept: set[int] = set()
        self._failed: str | None = None
        self._following = False

    def forget(self) -> None:
        """Let go of every tensor.

        A labelled tensor's graph leads back to this tape through PyTorch's own nodes, a circle
        that Python's collector cannot see: whoever opens a tape must call this in the end.
        """
        self._states.clear()
        self._weights.clear()
        self._public.clear()
        self._made.clear()
        self.deferred.clear()
        self.packed.clear()

    def label(self, tensor: Tensor, state: State | None) -> Tensor:
        """Remember what is known of `tensor` and return it."""
        if state is not None:
            self._states[id(tensor)] = (tensor, state)
            self._memories.setdefault(memory(tensor), True)
        return tensor

    def label_lot(self, lot: Any) -> None:
        """Label each tensor of the lot that has one entry for each window."""
        try:
            held = tensors_of(lot)
        except Opaque as kind:
            raise Unsupported(
                f"the lot holds a {kind}, of which a loss could make tensors that nobody follows "
                "(give tensors)"
            ) from None
        for value in held:
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
        """The exception to raise, naming the innermost module of the model that is running.

        The first one is raised again by `finish`, should the model catch it.
        """
        found = self._located(what)
        self._failed = self._failed or str(found)
        return found

    def finish(self, losses: Tensor) -> None:
        """Check what only shows at the end of a forward pass.

        Raises:
            Unsupported: if anything was refused on the way, or a function in the losses' graph
                has a backward pass that nobody knows.
        """
        if self._failed is not None:
            raise Unsupported(self._failed)
        hidden = hidden_function(losses)
        if hidden is not None:
            raise Unsupported(f"{hidden} has a backward pass of its own, which nobody follows")

    def _located(self, what: str) -> Unsupported:
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return Unsupported(f"{innermost(self._model, frames)} {what}")

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
        if func in REFUSED:
            raise self.unsupported("takes gradients, or changes them, by itself")
        states = self._states
        given = list(tensors_in(args, kwargs))
        if not any(id(t) in states for t in given):
            result = func(*args, **kwargs)
            return self.made(result) if func in MAKERS and "out" not in kwargs else result
        for tensor in given:
            if id(tensor) not in states and id(tensor) not in self._public:
                if self._memories.get(memory(tensor), False):
                    raise self.unsupported("uses people's data through an alias")
                self._public[id(tensor)] = tensor
        if kwargs.get("out") is not None:
            raise self.unsupported("writes people's values into a buffer with out=")
        return self._follow(func, args, kwargs)

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of people's data by its rule, during which nobody needs to watch."""
        if self._following or self.watch.entered == 0:
            return self._by_rule(func, args, kwargs)
        top = _pop_mode()
        try:
            if top is not self.watch:
                raise self.unsupported("opens a dispatch mode of its own")
            self._following = True
            return self._by_rule(func, args, kwargs)
        finally:
            self._following = False
            _push_mode(top)

    def _by_rule(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = by_place(func, args, kwargs)
        if self.deferred and func not in DEFERRED_RULES:
            args, kwargs = self.materialise(args), self.materialise(kwargs)
        rule = DEFERRED_RULES.get(func) if self.deferred else None
        rule = rule or RULES.get(func, mixing)
        return rule(self, func, args, kwargs)

    def _refuse_hidden(self, func: Any, tensors: list[Tensor]) -> None:
        """Refuse an operation on people's data that came past `__torch_function__`.

        And numbers drawn by no rule: people of a chunk could share them, and so each other.
        """
        if self._following:
            return
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            raise self.unsupported("draws numbers that are not each window's own")
        for tensor in tensors:
            if id(tensor) in self._states or self._memories.get(memory(tensor), False):
                raise self.unsupported("uses people's data through a function PyTorch hides")

    def _refuse_threads(self) -> None:
        self._failed = self._failed or "the forward pass starts a thread, where nobody follows"

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
        self._memories[memory(weight)] = False
        attached: Tensor = record(_Attach, self.root, (weight,), shape, rows.moved(axis), self.book)
        return self.label(attached, rows.moved(len(shape) + axis))

    def made(self, tensor: Tensor) -> Tensor:
        """Note that a tensor was made in this pass, in memory of its own."""
        self._made[id(tensor)] = tensor
        return tensor

    def claim(self, tensor: Tensor, rows: Rows) -> None:
        """Let a tensor that was made in this pass be people's; other names of it tell nothing."""
        here = memory(tensor)
        if id(tensor) not in self._made or not tensor.is_contiguous() or here in self._memories:
            raise self.unsupported("writes people's values in place into something shared")
        self._public = {k: t for k, t in self._public.items() if memory(t) != here}
        self.label(tensor, rows)

    def keep(self, tensor: Tensor) -> Tensor:
        """Note that a backward pass reads this storage without a version to check."""
        self._kept.add(memory(tensor))
        return tensor

    def refuse_kept(self, tensor: Tensor) -> None:
        """Refuse to write into what is kept."""
        if memory(tensor) in self._kept:
            raise self.unsupported("writes in place into what the backward pass still needs")

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


def innermost(model: nn.Module, frames: Iterable[FrameType]) -> str:
    """The module of the model that runs in the first of these frames which runs one."""
    paths = {id(module): path for path, module in model.named_modules()}
    for frame in frames:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in paths:
            path = paths[id(module)] or "the model's own forward"
            return f"{path} ({type(module).__name__})"
    return "the loss"


def record(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Run a function that writes into the book when its gradient comes."""
    if saved_tensor_hooks():
        raise Unsupported("the forward pass packs what backward passes keep (checkpointing)")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise Unsupported("the forward pass runs under autocast")
    return function.apply(*args)  # type: ignore[no-untyped-call]


def mixing(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule for what has none: the result mixes, and weights may not take part."""
    name = resolve_name(func) or getattr(func, "__name__", str(func))
    if any(tape.is_weight(t) for t in tensors_in(args, kwargs) if tape.state(t) is None):
        raise tape.unsupported(f"mixes windows, or uses a weight in {name}")
    short = getattr(func, "__name__", "")
    if shapes_by_value(short, args):
        raise tape.unsupported(f"makes a shape of people's values with {name}")
    if (short.endswith("_") and not short.endswith("__")) or "out" in kwargs:
        raise tape.unsupported(f"writes in place with {name}")

    def refuse(_: Any) -> None:
        raise tape.unsupported(f"reads people's values with {name}")

    with Unread(refuse):
        result = func(*args, **kwargs)
    found = [result] if isinstance(result, Tensor) else result
    if not isinstance(found, list | tuple) or not all(isinstance(t, Tensor) for t in found):
        raise tape.unsupported(f"reads people's values with {name}")
    for tensor in found:
        tape.label(tensor, MIXED)
    return result


def _from_parameters(weight: Tensor, limit: int = 2000) -> bool:
    """Whether a computed weight's graph ends in leaves without passing through a tape."""
    for seen, maker in enumerate(makers(weight), 1):
        if seen > limit or getattr(maker, "sequester_tape", False):
            return False
    return True


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
