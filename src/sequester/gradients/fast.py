"""The fast engine: one forward and one backward pass for each chunk of people.

A chunk is as many whole people as fit the cache and a memory budget. Its forward pass runs
under a `Tape`, its backward pass enters each person's gradient in a `Book`, and the
accumulator clips and adds. Whichever worker thread is free takes the next chunk, but each chunk
has its place in a fixed order of adding, so equal inputs give equal sums.
"""

from __future__ import annotations

import logging
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sequester.core.errors import SequesterError
from sequester.gradients import layers, loop, verify, workspace
from sequester.gradients.accumulate import Accumulator, Entry
from sequester.gradients.book import Book
from sequester.gradients.checks import check_losses
from sequester.gradients.clipping import ClippingRule
from sequester.gradients.cutting import Room, Span, chunks, cut
from sequester.gradients.lots import Loss, LotLike, told
from sequester.gradients.modes import Mode
from sequester.gradients.randomness import Generators, Quiet
from sequester.gradients.rows import Owners, Rows
from sequester.gradients.tape import Tape, Unsupported, innermost
from sequester.gradients.workers import in_turn, on_threads

_LOG = logging.getLogger("sequester.gradients")
_RULES = layers.__all__  # importing the layers registered their rules

_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[int, _Known]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


@dataclass
class _Known:
    """What was learned of a model and a loss.

    Attributes:
        shape: What the model was when the calls were counted.
        calls: How often they were used together, for several people in a chunk.
        lone: How often for one person at a time.
        refused: Why they take the loop, if they do.
        draws: Whether a pass asks a global generator, once that was looked at.
    """

    shape: int = 0
    calls: int = 0
    lone: int = 0
    refused: str | None = None
    draws: bool | None = None


class SteppedBack(Exception):
    """The loop takes everybody from now on: what was added in this call does not count."""


class Job:
    """One call of `clipped_sum`: what every chunk of it needs.

    Args:
        model: The user's module.
        loss: One loss for each window.
        parameters: Trainable parameters by name.
        rule: The clipping rule.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: dict[str, nn.Parameter],
        rule: ClippingRule,
    ) -> None:
        """Keep them."""
        self.model, self.loss, self.parameters, self.rule = model, loss, parameters, rule
        self.device = next(iter(parameters.values())).device
        with _LOCK:
            known = _KNOWN.setdefault(model, {})
            self._known = known.setdefault(_code(loss), _Known())
        # The person whose chunk is checked against the loop in this call, and which check it is.
        self.checked: Span | None = None
        # Whether a pass asks a global generator; chunks draw in their order until that is known.
        self.draws: bool | None = None
        self._lone = False
        self.people = 0

    def plan_check(self, spans: list[Span], counts: Tensor) -> Span | None:
        """Count a call over these chunks, and decide which of them is checked, if any."""
        several = [s for s in spans if int((counts[s[0] : s[1]] > 0).sum()) > 1]
        with _LOCK:
            shape = _shape(self.model)
            if shape != self._known.shape:
                self._known.shape, self._known.draws = shape, None
                self._known.calls, self._known.lone = 0, 0
            if several:
                self._known.calls += 1
            else:  # one compared with oneself shows little
                self._known.lone += 1
            self._lone = not several
            number = verify.due(self._known.calls if several else self._known.lone)
            self.draws = self._known.draws
        if number is None:
            return None
        several = several or spans
        chunk = several[number % len(several)]
        self.checked = chunk[0], number
        return chunk

    def forget_call(self) -> None:
        """Count a call that came to no end as if it had not been."""
        with _LOCK:
            if self._lone:
                self._known.lone = max(0, self._known.lone - 1)
            else:
                self._known.calls = max(0, self._known.calls - 1)

    def note_draws(self, *, moved: bool) -> None:
        """Keep whether a call moved a global generator; one that ever did draws."""
        with _LOCK:
            self._known.draws = moved or bool(self._known.draws)

    def refused(self) -> str | None:
        """Why this model and loss take the loop, if they do."""
        return self._known.refused

    def refuse(self, reason: str) -> None:
        """Take the loop from now on, and say so once."""
        with _LOCK:
            if self._known.refused is not None:
                return
            self._known.refused = reason
        _LOG.warning(
            "%s; people are taken one at a time, which gives the same gradients at about the "
            "cost of a non-private step on one thread",
            reason,
        )

    def add_chunk(
        self,
        lot: LotLike,
        span: Span,
        counts: Tensor,
        into: Accumulator | None,
        most: int,
        turn: AbstractContextManager[object],
    ) -> None:
        """Add people `span[0]..span[1]-1`, who have `counts` windows each.

        Args:
            lot: Whose people.
            span: The first, and the one after the last.
            counts: `(people,)` windows of each.
            into: Receives their gradients; None to look at the model and loss only.
            most: Bytes that one weight's gradients of all of them may take.
            turn: Entered to add them.
        """
        first, stop = span
        part = lot.select(first, stop)
        if self.refused() is not None:
            starts = [0, *torch.cumsum(counts, 0).tolist()]
            with turn:
                self._alone(part, starts, into, first)
            return
        space = workspace.borrow()
        try:
            checked = self.checked if self.checked and first <= self.checked[0] < stop else None
            before = Generators(self.device) if checked or self.draws is not False else None
            book = Book(len(counts), self.parameters, space, most)
            entries = self._enter(part, counts, book)
            if before and before.moved_elsewhere():
                # Another thread of the program may have drawn meanwhile: look once more.
                before.wind_back()
                before = Generators(self.device)
                book = Book(len(counts), self.parameters, space, most)
                entries = self._enter(part, counts, book)
                if before.moved_elsewhere():
                    raise Unsupported("a pass draws from NumPy or Python, once for a whole chunk")
            if checked and before:
                space.keep_only("grad:")  # a person alone needs room, too
                self._check(part, counts, checked[1], before, entries)
                self.checked = None
        except Unsupported as reason:
            self.refuse(str(reason))
            raise SteppedBack from None
        except SequesterError:
            raise
        except Exception as error:
            # If it is the user's, the loop meets it too. Its message may hold people's values.
            frames = [f for f, _ in traceback.walk_tb(error.__traceback__)][::-1]
            failed = f"{innermost(self.model, frames)} met a {type(error).__name__}"
        else:
            if into is not None:
                with turn:
                    into.add_chunk(first, book.people, entries)
            return
        finally:
            workspace.give_back(space)
        self._alone(part, [0, *torch.cumsum(counts, 0).tolist()])
        self.refuse(f"{failed} in the fast engine")
        raise SteppedBack

    def _alone(
        self, part: Any, starts: list[int], into: Accumulator | None = None, first: int = 0
    ) -> None:
        """Take a chunk's people one at a time."""
        if into is None:
            into = Accumulator(self.parameters, self.rule, len(starts) - 1)
        loop.add_people(self.model, self.loss, part, starts, into, first=first)

    def _check(
        self, part: Any, counts: Tensor, number: int, before: Generators, done: list[Entry]
    ) -> None:
        """Compare a chunk with its people alone; see `verify`."""

        def again(quiet: Quiet, few: Any, theirs: Tensor) -> list[Entry]:
            # Buffers of its own, that do not stay.
            book = Book(len(theirs), self.parameters, workspace.Workspace(), 0)
            return self._enter(few, theirs, book, quiet)

        verify.check(
            self.model, self.loss, self.parameters, part, counts,
            number=number, before=before, done=done, again=again,
        )  # fmt: skip

    def _enter(
        self, part: Any, counts: Tensor, book: Book, quiet: Quiet | None = None
    ) -> list[Entry]:
        """Enter each person's gradient in the book, and settle it."""
        person = torch.repeat_interleave(torch.arange(book.people), counts).to(self.device)
        owners = Owners(person, book.people)
        tape = Tape(self.model, owners, book)
        tape.label_lot(part)
        try:
            self._follow(part, counts, tape, quiet or tape.watch)
        finally:
            tape.forget()
            del tape.watch  # leads back to the tape, whose buffers would stay until a collection
        return book.settle()

    def _follow(self, part: Any, counts: Tensor, tape: Tape, beside: Mode) -> None:
        """Forward and backward under the tape."""
        owners = tape.owners
        with torch.enable_grad():
            with tape, beside:
                losses = self.loss(self.model, part)
            check_losses(losses, len(owners))
            tape.finish(losses)
            rows = tape.state(losses)
            if not losses.requires_grad:
                return
            if not isinstance(rows, Rows) or not rows.plain or not rows.owners.same(owners):
                raise tape.unsupported("mixes windows on its way to the losses")
            counts = counts.to(self.device)
            share = (1.0 / counts.clamp_min(1).to(losses.dtype))[owners.person]
            # Of one number: given a vector's gradient, PyTorch imports its compiler for a second.
            found = torch.autograd.grad(
                (losses * share).sum(),
                [tape.root, *self.parameters.values()],
                allow_unused=True,
            )
        for name, gradient in zip(self.parameters, found[1:], strict=True):
            if gradient is not None:
                raise Unsupported(f"parameter {name} is used outside the tape")


def run(job: Job, lot: LotLike, offsets: list[int], chunk: int | None) -> Accumulator:
    """Add every person of the lot.

    Args:
        job: Model, loss, parameters and rule.
        lot: The people.
        offsets: `(people + 1,)` starts of their windows.
        chunk: People taken at once, or None to choose.
    """
    _refuse_odd(job)
    counts = torch.tensor(offsets).diff()
    job.people = len(counts)
    threads = torch.get_num_threads() if job.device.type == "cpu" else 1
    room = Room(job.model, job.parameters, lot, offsets, threads)
    if chunk is None:
        spans = cut(offsets, room, workers=threads)
    else:
        spans = chunks(offsets, chunk, max(1, offsets[-1]))
    if not spans:
        return Accumulator(job.parameters, job.rule, len(counts))
    checked = job.plan_check(spans, counts)
    began = Generators(job.device)

    def add(span: Span, turn: AbstractContextManager[object], into: Accumulator | None) -> None:
        job.add_chunk(lot, span, counts[span[0] : span[1]], into, room.gradients, turn)

    try:
        while True:
            try:
                total = _everybody(job, spans, checked, threads, began, add)
                break
            except SteppedBack:
                if job.draws is not False:
                    began.wind_back()
    except BaseException:
        job.forget_call()
        raise
    if checked is not None or job.draws:
        job.note_draws(moved=began.moved())
    return total


def _everybody(
    job: Job,
    spans: list[Span],
    checked: Span | None,
    threads: int,
    began: Generators,
    add: Callable[[Span, AbstractContextManager[object], Accumulator | None], None],
) -> Accumulator:
    """Add all chunks once.

    Raises:
        SteppedBack: if it is all to be done anew, one person at a time or one chunk at a time.
    """
    sums = min(threads, len(spans))  # whoever works, so that rounding does not depend on it
    parts = [Accumulator(job.parameters, job.rule, job.people) for _ in range(sums)]
    if sums == 1:
        for span in spans:
            add(span, nullcontext(), parts[0])
        return parts[0]
    if checked and job.checked and job.draws is not True and job.refused() is None:
        # A comparison takes room: no other chunk, nor its buffers, lie beside it. What is compared
        # is taken once more in its turn.
        workspace.release()
        on_threads(1, lambda _: add(checked, nullcontext(), None))
        job.draws = began.moved()
        if job.draws:
            began.wind_back()
    # More than one worker would race for a generator's numbers.
    workers = sums if job.draws is False else 1
    in_turn(workers, sums, len(spans), lambda k, turn: add(spans[k], turn, parts[k % sums]))
    if workers > 1 and began.moved():  # it did not, when it was looked at last
        job.draws = True
        raise SteppedBack
    for part in parts[1:]:
        parts[0].merge(part)
    return parts[0]


def _refuse_odd(job: Job) -> None:
    """Leave parameters that the fast engine does not serve to the loop."""
    places = {str(p.device) for p in job.parameters.values()}
    if len(places) > 1:
        job.refuse(f"the model lies on several devices ({', '.join(sorted(places))})")
    for name, parameter in job.parameters.items():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001
            job.refuse(f"parameter {name} has a hook on its gradient")


def _code(loss: Loss) -> int:
    """What identifies a loss, so that fresh closures of one kind are known again."""
    return hash(told(loss))


def _shape(model: nn.Module) -> int:
    """What must stay for earlier checks to count."""
    modules = tuple((path, type(m), m.training) for path, m in model.named_modules())
    weights = tuple((name, p.dtype, p.requires_grad) for name, p in model.named_parameters())
    return hash((modules, weights))
