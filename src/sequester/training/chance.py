"""What a model's own layers draw: dropout masks, noise in a forward pass.

Such layers ask the global generators of PyTorch, NumPy and Python. A run sets these from its own
secret, for each step and each place that trains, and puts them back: a resumed run goes on with
the same numbers, a client's do not depend on who trains beside it, and nothing follows from what
a user seeded. A process has one such generator of each kind, so runs on several of its threads
take turns at their steps. Why drawing them keeps each person's bound: `proofs/layers_that_draw.md`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy import random as global_numpy

from sequester.core.rng import KEY_BYTES, Keystream, zero_bytes
from sequester.gradients.randomness import kept

_WORDS = 624  # of the Mersenne twister's state, each of 32 bits
_OFFSET = 24  # bytes before them in PyTorch's serialised state; see the test of its layout


@dataclass(frozen=True)
class Chance:
    """The numbers that layers draw in one run.

    Attributes:
        source: Of this purpose alone, under the run's key.
    """

    source: Keystream

    @classmethod
    def of(cls, key: bytes, run: str) -> Chance:
        """Under a run's secret."""
        return cls(Keystream(key, run, "module"))

    @classmethod
    def public(cls) -> Chance:
        """Known to everybody: for experiments outside any run."""
        return cls.of(zero_bytes(KEY_BYTES), "public")

    @contextmanager
    def at(self, step: int, place: int = 0) -> Iterator[None]:
        """The numbers of one step at one place; the global generators are as before afterwards."""
        with kept():
            self.set(step, place)
            yield

    def set(self, step: int, place: int = 0) -> None:
        """Begin the numbers of one step at one place; inside `randomness.kept`.

        The whole state is set, 19,968 bits: of a seed PyTorch would use 32, few enough to try.
        """
        raw = self.source.bytes(step, 2 * 4 * _WORDS + KEY_BYTES, rank=place)
        words = np.frombuffer(raw[: 4 * _WORDS], dtype="<u4").astype("<u8")
        state = torch.Generator().manual_seed(0).get_state()
        state[_OFFSET : _OFFSET + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
        torch.set_rng_state(state)
        global_numpy.seed(np.frombuffer(raw[4 * _WORDS : 8 * _WORDS], dtype="<u4"))
        random.seed(raw[8 * _WORDS :])
