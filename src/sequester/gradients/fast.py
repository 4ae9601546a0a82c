"""The fast engine: one forward and one backward pass for each chunk of people.

A chunk is as many whole people as fit the cache and a memory budget. Its forward pass runs
under a `Tape`, its backward pass enters each person's gradient in a `Book`, and the
accumulator clips and adds. Chunks are shared out to worker threads in a fixed order, so equal
inputs give equal sums.
"""

from __future__ import annotations

import logging
import threading
import traceback
import weakref
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
            number = verify.due(self._known.calls if several else self._known.lone)
            self.draws = self._known.draws
        if number is None:
            return None
        several = several or spans
        chunk = several[number % len(several)]
        self.checked = chunk[0], number
        return chunk

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
        failed: str | None = None
        if self.refused() is None:
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
                        raise Unsupported(
                            "a pass draws from NumPy or Python, once for a whole chunk"
                        )
                if checked and before:
                    space.keep_only("grad:")  # a person alone needs room, too
                    self._check(part, counts, checked[1], before, entries)
            except Unsupported as reason:
                self.refuse(str(reason))
            except SequesterError:
                raise
            except Exception as error:
                # If it is the user's, the loop meets it too. Its message may hold people's values.
                frames = [f for f, _ in traceback.walk_tb(error.__traceback__)][::-1]
                where = innermost(self.model, frames)
                failed = f"{where} met a {type(error).__name__} in the fast engine"
            else:
                if into is not None:
                    with turn:
                        into.add_chunk(first, book.people, entries)
                return
            finally:
                workspace.give_back(space)
            if before and self.draws is not False:  # the loop draws what this would have drawn
                before.wind_back()
        if into is not None:
            starts = [0, *torch.cumsum(counts, 0).tolist()]
            with turn:
                loop.add_people(self.model, self.loss, part, starts, into, first=first)
        if failed is not None:
            self.refuse(failed)

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
    threads = torch.get_num_threads() if job.device.type == "cpu" else 1
    room = Room(job.model, job.parameters, lot, offsets, threads)
    if chunk is None:
        spans = cut(offsets, room, workers=threads)
    else:
        spans = chunks(offsets, chunk, max(1, offsets[-1]))
    checked = job.plan_check(spans, counts) if spans else None
    before = None if checked is None else Generators(job.device)

    def add(span: Span, turn: AbstractContextManager[object], into: Accumulator | None) -> None:
        job.add_chunk(lot, span, counts[span[0] : span[1]], into, room.gradients, turn)

    several = min(threads, len(spans)) > 1
    if several and checked is not None and before is not None and job.draws is not True:
        # A comparison takes room: no other chunk, nor its buffers, lie beside it. What is compared
        # is taken once more in its turn, so that sums do not depend on what was compared.
        workspace.release()
        on_threads(1, lambda _: add(checked, nullcontext(), None))
        if job.refused() is None:  # the loop was not tried
            job.draws = before.moved()
        if job.draws:  # all over again, in their order
            before.wind_back()
        else:
            job.checked = None
    # More than one worker would race for a generator's numbers.
    workers = min(threads, len(spans)) if several and job.draws is False else 1
    parts = [Accumulator(job.parameters, job.rule, len(counts)) for _ in range(workers)]
    if several:
        in_turn(workers, len(spans), lambda n, turn: add(spans[n], turn, parts[n % workers]))
    else:
        for span in spans:
            add(span, nullcontext(), parts[0])
    for part in parts[1:]:
        parts[0].merge(part)
    if before is not None:
        job.note_draws(moved=before.moved())
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
