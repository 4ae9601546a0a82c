"""What an event costs, in whole numbers: a Rényi filter over a fixed ladder of orders.

A charge is one integer of nano-RDP for each order of the ladder, rounded up, and an integer of
atto-δ for events whose Rényi curve holds only outside a small probability. A ceiling (ε, δ) is
one allowance for each order, rounded down. Charges may be added as long as *some* order stays
within its allowance.

Why that is a valid filter although each charge may be chosen after seeing earlier outputs: at
one fixed order the sum of adaptively chosen RDP charges, stopped before it passes a bound,
satisfies that bound (Feldman & Zrnic 2021, 2008.11193, theorem 3.1; concurrent charges: Haney
et al. 2023, 2309.05901). Which order survives may itself depend on outputs, so δ is shared
equally among the orders and the failures add up to at most δ. The proof note is
`proofs/ledger_filter.md`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from sequester.accounting import Event, renyi
from sequester.accounting.lower import lower

ORDERS = (
    1.5,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    12.0,
    16.0,
    20.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
)
NANO = 10**9
ATTO = 10**18
NEVER = 2**62
"""A charge that no allowance covers; int64 in every store."""

SLACK_SHARE = 0.1
"""Share of a ceiling's δ set aside for events that hold only outside a small probability."""

_ROUNDING = 1e-12
"""Covers the rounding of the few floating-point operations in an allowance."""


@dataclass(frozen=True)
class Charge:
    """A cost or an allowance.

    Attributes:
        rdp: Nano-RDP at each of `ORDERS`; as an allowance, −1 where the order is of no use.
        slack: Atto-δ.
    """

    rdp: tuple[int, ...]
    slack: int = 0

    def __add__(self, other: Charge) -> Charge:
        """Both, one after the other or at once."""
        rdp = tuple(map(operator.add, self.rdp, other.rdp))
        if max(rdp) > NEVER:
            rdp = tuple(min(value, NEVER) for value in rdp)
        slack = self.slack + other.slack
        return _charge(rdp, slack if slack < NEVER else NEVER)

    def __sub__(self, other: Charge) -> Charge:
        """Take back a charge that was added before; what has reached `NEVER` stays there."""
        rdp = tuple(map(operator.sub, self.rdp, other.rdp))
        if max(self.rdp) >= NEVER:
            rdp = tuple(
                NEVER if a >= NEVER else left for a, left in zip(self.rdp, rdp, strict=True)
            )
        return _charge(rdp, NEVER if self.slack >= NEVER else self.slack - other.slack)

    def within(self, allowance: Charge) -> bool:
        """Whether some order, and the slack, stay within `allowance`."""
        return self.slack <= allowance.slack and any(map(operator.le, self.rdp, allowance.rdp))

    def covers(self, other: Charge) -> bool:
        """Whether `other` costs no more at any order."""
        return other.slack <= self.slack and all(map(operator.le, other.rdp, self.rdp))

    def to_json(self) -> list[int]:
        """Slack first, then one integer for each order."""
        return [self.slack, *self.rdp]

    @classmethod
    def from_json(cls, value: list[int]) -> Charge:
        """The inverse of `to_json`.

        Raises:
            ValueError: for anything that is not one integer ≥ 0 for each order and the slack.
        """
        whole = isinstance(value, list) and set(map(type, value)) == {int}
        if not whole or len(value) != len(ORDERS) + 1 or min(value) < 0:
            raise ValueError("a charge is a list of integers, one for the slack and each order")
        return cls(tuple(value[1:]), value[0])


def _charge(rdp: tuple[int, ...], slack: int) -> Charge:
    """`Charge(rdp, slack)`; a frozen dataclass's own way takes three times as long."""
    new = object.__new__(Charge)
    new.__dict__.update(rdp=rdp, slack=slack)
    return new


NOTHING = Charge((0,) * len(ORDERS))


def largest(charges: Iterable[Charge]) -> Charge:
    """The largest cost at each order: what disjoint groups of people bear at most."""
    found = NOTHING
    for charge in charges:
        rdp = tuple(max(a, b) for a, b in zip(found.rdp, charge.rdp, strict=True))
        found = Charge(rdp, max(found.slack, charge.slack))
    return found


@lru_cache(maxsize=4096)
def charge_of(event: Event, adjacency: str) -> Charge:
    """The cost of `event`, every number rounded up.

    Raises:
        UsageError: SQ-210 or 211 for an event that the accountant does not know under this
            adjacency.
    """
    parts = lower(event, adjacency)
    curve = renyi.total([(part.renyi, n) for part, n in parts], ORDERS)
    slack = sum((Fraction(part.slack) * n for part, n in parts), Fraction(0))
    return Charge(tuple(_up(float(v), NANO) for v in curve), _up(float(slack), ATTO))


@lru_cache(maxsize=1024)
def allowance(epsilon: float, delta: float) -> Charge:
    """What a ceiling allows at each order, every number rounded down.

    Source: Canonne, Kamath & Steinke 2020 (2004.00010), proposition 12, solved for the
    divergence, with an equal share of δ for each order.
    """
    allowed = [epsilon - overhead - _ROUNDING for overhead in _overheads(delta)]
    rdp = tuple(min(math.floor(Fraction(a) * NANO), NEVER - 1) if a >= 0 else -1 for a in allowed)
    return Charge(rdp, math.floor(Fraction(delta * SLACK_SHARE) * ATTO))


def epsilon_of(charge: Charge, delta: float) -> float:
    """The ceiling that `charge` just fits under at `delta`; ∞ if its slack is too large."""
    if charge == NOTHING:
        return 0.0
    if charge.slack > allowance(0.0, delta).slack:
        return math.inf
    bounds = [
        spent / NANO + overhead + 2 * _ROUNDING
        for overhead, spent in zip(_overheads(delta), charge.rdp, strict=True)
        if spent < NEVER
    ]
    return max(0.0, min(bounds, default=math.inf))


@lru_cache(maxsize=256)
def _overheads(delta: float) -> tuple[float, ...]:
    """ε minus divergence at each order, with its share of `delta`."""
    share = math.log(delta * (1.0 - SLACK_SHARE) / len(ORDERS))
    return tuple(math.log1p(-1.0 / a) - (share + math.log(a)) / (a - 1.0) for a in ORDERS)


def _up(value: float, unit: int) -> int:
    if not value < NEVER / unit:  # NaN and ∞ land here too
        return NEVER
    return min(math.ceil(Fraction(value) * unit), NEVER)
