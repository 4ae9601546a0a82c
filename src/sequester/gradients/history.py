"""Whether a person's gradient depends on who came before: some people alone, twice.

The loop over people is what is right only if a model keeps nothing from one person for the next.
At the calls at which `verify` is due, a few people are taken alone in one order and then in the
other. No clipping bounds what one of them does to the next one's gradient, so a model that shows
a difference is refused, whatever engine it takes.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.gradients import fast, loop, verify
from sequester.gradients.lots import Loss
from sequester.gradients.randomness import Generators, Quiet
from sequester.gradients.surroundings import Surroundings
from sequester.gradients.trees import Opaque, tensors_of

_CALLS: weakref.WeakKeyDictionary[nn.Module, dict[int, int]] = weakref.WeakKeyDictionary()
_REFUSED: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
_STRETCHES = 32
_BLOCK = 1 << 18  # numbers turned to float64 at once
_PEOPLE = 2  # who are taken in both orders


def _asked(model: nn.Module, loss: Loss) -> int:
    return hash((fast._code(loss), fast._shape(model)))  # noqa: SLF001


def refuse_again(model: nn.Module, loss: Loss) -> None:
    """Refuse a model and a loss that were refused before: what they kept of people is still there.

    Raises:
        UsageError: SQ-406.
    """
    why = _REFUSED.get(model, {}).get(_asked(model, loss))
    if why is not None:
        raise UsageError(
            406,
            f"{why} (it was refused so before, and may hold what it saw of people since: build "
            "the model anew)",
        )


def note_refused(model: nn.Module, loss: Loss, refusal: UsageError) -> None:
    """Let a refusal for what was kept of people stand at every later call."""
    if refusal.code == 406:
        with _LOCK:
            _REFUSED.setdefault(model, {})[_asked(model, loss)] = refusal.message


def due(model: nn.Module, loss: Loss, *, several: bool) -> int | None:
    """Count a call of a model with a loss; another mode or shape counts anew.

    Args:
        model: The user's module.
        loss: One loss for each window.
        several: Whether two people have windows; one alone shows little, and counts apart.

    Returns:
        Which check belongs to it; None if none does.
    """
    asked = hash((_asked(model, loss), several))
    with _LOCK:
        calls = _CALLS.setdefault(model, {})
        calls[asked] = calls.get(asked, 0) + 1
        number = verify.due(calls[asked])
    # Seldomer than people are compared with their chunk: at calls 1, 256, 65,536, …
    return number if number is not None and number % 4 == 0 else None


def kept(
    model: nn.Module,
    loss: Loss,
    parameters: dict[str, nn.Parameter],
    lot: Any,
    counts: Tensor,
    *,
    number: int,
    around: Surroundings,
) -> UsageError | None:
    """Take some people of a lot alone, and again in the opposite order.

    Args:
        model: The user's module.
        loss: One loss for each window.
        parameters: Trainable parameters by name.
        lot: Everybody.
        counts: `(people,)` windows of each.
        number: How many checks there were before.
        around: Whose random generators start anew for everybody.

    Returns:
        SQ-406 if somebody's gradient is another one in the other order, to be raised unless
        something more telling is found.
    """
    people = verify.chosen(counts, number)[:_PEOPLE]
    if not people:
        return None
    before, given = Generators(next(iter(parameters.values())).device), _versions(lot)
    back = list(around.generators())

    def alone(person: int, quiet: Quiet | None) -> list[Tensor]:
        _wind(before, back)
        windows, part = int(counts[person]), lot.select(person, person + 1)
        with quiet or nullcontext():
            gradient = loop.person_gradient(model, loss, part, windows, list(parameters.values()))
        return [_outline(each) for each in gradient]

    try:
        for quiet in (None, Quiet()):
            first = [alone(person, quiet) for person in people]
            second = [alone(person, quiet) for person in reversed(people)][::-1]
            name = _differing(parameters, first, second)
            if name is None:
                return None
    finally:
        _wind(before, back)
    if _versions(lot) != given:
        return UsageError(
            406,
            "the model or the loss writes into the lot, whose numbers are other ones at the next "
            "pass; write into a clone of them",
        )
    return UsageError(
        406,
        f"a person's gradient of {name} depends on who came before: the model or the loss keeps "
        "something of one person for another, which no clipping bounds. Keep nothing between "
        "calls; draw random numbers from PyTorch's generator",
    )


def _versions(lot: Any) -> list[int]:
    """How often each tensor of a lot was written into; a part of a lot may be a view of it."""
    try:
        return [t._version for t in tensors_of(lot) if not t.is_inference()]  # noqa: SLF001
    except Opaque:
        return []


def _outline(part: Tensor | None) -> Tensor:
    """Sums and norms of a gradient's stretches, which any change shows in; small, to be kept."""
    if part is None:
        return torch.zeros(2, _STRETCHES + 1, dtype=torch.float64)
    flat = (part.to_dense() if part.is_sparse else part).detach().reshape(-1)
    each = len(flat) // _STRETCHES
    long, rest = flat[: each * _STRETCHES].view(_STRETCHES, each), flat[each * _STRETCHES :]
    few = max(1, _BLOCK // max(1, each))
    found = []
    for rows in (*(long[k : k + few] for k in range(0, _STRETCHES, few)), rest.view(1, len(rest))):
        exact = rows.double()
        found.append(torch.stack([exact.sum(1), torch.linalg.vector_norm(exact, dim=1)]))
    return torch.cat(found, 1).cpu()


def _differing(
    parameters: dict[str, nn.Parameter], first: list[list[Tensor]], second: list[list[Tensor]]
) -> str | None:
    """The first parameter of which anybody's two gradients differ beyond rounding."""
    for one, other in zip(first, second, strict=True):
        whole = float(torch.stack(one)[:, 1].nan_to_num().norm())
        for (name, parameter), a, b in zip(parameters.items(), one, other, strict=True):
            eps = torch.finfo(parameter.dtype).eps
            if parameter.device.type != "cpu":
                eps = max(eps, 2.0**-10)  # TF32
            most = 4.0 * eps**0.5 * float(a.nan_to_num().norm()) + 1024.0 * eps * whole
            known = torch.equal(a.isfinite(), b.isfinite())
            if not known or float((a - b).nan_to_num().norm()) > most:
                return name
    return None


def _wind(before: Generators, back: list[Any]) -> None:
    before.wind_back()
    for restore in back:
        restore()
