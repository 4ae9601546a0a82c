"""Lots of fixed size, drawn without replacement."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from sequester.accounting import Event, FixedSizeSampled
from sequester.core.errors import UsageError
from sequester.core.rng import Keystream


@dataclass(frozen=True)
class FixedSizeSampler:
    """Draws exactly `size` of `people`, every set of that size alike.

    How many people there are is known to whoever knows `size` and the rate, so the guarantee of
    such lots is about exchanging one person's data, not about adding or removing a person.
    Source: Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical
    Moments Accountant" (2019), definition 5 and section 3.1.

    Attributes:
        people: How many people there are to draw from.
        size: People in every lot.
        keystream: Secret choice, addressed by step.
    """

    people: int
    size: int
    keystream: Keystream

    def __post_init__(self) -> None:
        """Check the size.

        Raises:
            UsageError: SQ-244 unless 1 ≤ size ≤ people.
        """
        if not 1 <= self.size <= self.people:
            raise UsageError(
                244,
                f"a lot of fixed size needs 1 ≤ size ≤ people, got {self.size} of {self.people}",
            )

    def draw(self, step: int) -> np.ndarray:
        """Positions of the people in the lot of `step`, int64 `(size,)`, ascending.

        Everybody gets 64 random bits and the smallest `size` numbers win. Equal numbers would
        favour a position, so the whole draw is repeated then: given that all differ, every set
        is equally likely.
        """
        for rank in itertools.count():
            raw = self.keystream.bytes(step, 8 * self.people, rank=rank)
            words = np.frombuffer(raw, dtype="<u8")
            order = np.argsort(words)
            if not (np.diff(words[order]) == 0).any():
                return np.sort(order[: self.size])
        raise AssertionError  # pragma: no cover - the loop has no end

    def event(self, mechanism: Event) -> Event:
        """What `mechanism` amounts to on these lots."""
        return fixed_size_event(self.people, self.size, mechanism)


def fixed_size_event(people: int, size: int, mechanism: Event) -> Event:
    """`mechanism` on lots of `size` of `people`; with everybody in them nothing is amplified."""
    return mechanism if size == people else FixedSizeSampled(people, size, mechanism)
