"""What would still fit, for a refusal that helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

from sequester import accounting
from sequester.accounting import (
    Composed,
    DiscreteGaussian,
    Event,
    PoissonSampled,
    SelfComposed,
)
from sequester.core.errors import LedgerRefusal
from sequester.core.values import round_up
from sequester.ledger.budgets import Tree
from sequester.ledger.charges import charge_of, epsilon_of


def certifier(event: Event, adjacency: str) -> Callable[[float], float]:
    """ε of `event` at a δ, by the accountant's best bound."""
    return lambda delta: accounting.epsilon(event, delta, adjacency=adjacency)


def stays_within(tree: Tree, name: str, ran: Event, reserved: Event) -> bool:
    """Whether `ran` costs no more than `reserved`, which was admitted by its certified ε.

    The orders of a charge cannot say so: another event may cost less at each of them and have a
    larger ε, because their bound is loose. A part of what was reserved needs no arithmetic.
    """
    if _is_part(ran, reserved):
        return True
    adjacency = tree.get(name).adjacency
    most, now = certifier(reserved, adjacency), certifier(ran, adjacency)
    return all(now(held.delta) <= most(held.delta) for held, _ in tree.borne(name))


def _is_part(ran: Event, reserved: Event) -> bool:
    """Whether `ran` is what is left of `reserved` when some of its events do not happen.

    Or when more shares of noise arrive than were reserved for: that only adds noise.
    """
    if ran == reserved:
        return True
    if isinstance(reserved, DiscreteGaussian) and isinstance(ran, DiscreteGaussian):
        fewer = min(ran.clients, reserved.clients)
        return replace(ran, clients=fewer) == reserved
    if isinstance(reserved, PoissonSampled) and isinstance(ran, PoissonSampled):
        return ran.sampling_rate == reserved.sampling_rate and _is_part(ran.event, reserved.event)
    if isinstance(reserved, SelfComposed):
        parts = ran.events if isinstance(ran, Composed) else (ran,)
        counts = [part.count for part in parts if _repeats(part, reserved.event)]
        return len(counts) == len(parts) and sum(counts) <= reserved.count
    if isinstance(reserved, Composed) and isinstance(ran, Composed):
        return len(ran.events) <= len(reserved.events) and all(
            map(_is_part, ran.events, reserved.events)
        )
    return False


def _repeats(ran: Event, reserved: Event) -> TypeGuard[SelfComposed]:
    return isinstance(ran, SelfComposed) and _is_part(ran.event, reserved)


def refusal(tree: Tree, name: str, event: Event) -> LedgerRefusal:
    """The refusal of `event`: requested, remaining and what would fit."""
    budget = tree.get(name)
    narrowest, borne = min(
        tree.borne(name), key=lambda at: at[0].epsilon - epsilon_of(at[1], at[0].delta)
    )
    requested = accounting.epsilon(event, budget.delta, adjacency=budget.adjacency)
    spent = min(epsilon_of(borne, narrowest.delta), tree.spent(narrowest.name))
    remaining = max(0.0, narrowest.epsilon - spent)
    most = most_steps(tree, name, event)
    if most is None:
        fits = "it has no steps to shorten"
    elif most == 0:
        fits = "not even one step would fit"
    else:
        fits = f"{most} more step{'s' if most > 1 else ''} would fit"
    return LedgerRefusal(
        312,
        f"budget {narrowest.name!r} would pass its ceiling: requested epsilon "
        f"{round_up(requested):g}, remaining {remaining:.4g} of {narrowest.epsilon:g} at delta "
        f"{narrowest.delta:g}; {fits}. Nothing was charged. Shorten the run, add noise, or ask the "
        "data holder for a grant",
    )


def most_steps(tree: Tree, name: str, event: Event) -> int | None:
    """How many steps of `event` would be admitted now; None if it has none and does not fit."""
    adjacency, fresh = tree.get(name).adjacency, tree.is_fresh(name)
    steps = _longest(event)

    def admitted(shorter: Event) -> bool:
        certified = certifier(shorter, adjacency) if fresh else None
        return tree.admit(name, charge_of(shorter, adjacency), certified) is not None

    if admitted(event):
        return steps.count if steps else 1
    if steps is None:
        return None
    low, high = 0, steps.count  # more than `low` steps may fit, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if admitted(with_steps(event, middle)):
            low = middle
        else:
            high = middle
    return low


def with_steps(event: Event, count: int) -> Event:
    """`event` with its longest run of equal steps cut to `count`."""
    if isinstance(event, SelfComposed):
        return SelfComposed(event.event, count)
    if isinstance(event, Composed):
        longest = _longest(event)
        parts = (with_steps(part, count) if part is longest else part for part in event.events)
        return Composed(tuple(parts))
    return event


def _longest(event: Event) -> SelfComposed | None:
    if isinstance(event, SelfComposed):
        return event
    if isinstance(event, Composed):
        runs = [part for part in event.events if isinstance(part, SelfComposed)]
        return max(runs, key=lambda part: part.count, default=None)
    return None
