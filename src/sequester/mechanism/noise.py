"""Gaussian noise from a cryptographic keystream, in double precision.

AES-256-CTR blocks bound to run, purpose and step (`core.rng.Keystream`) become normals by the
Box–Muller transform in float64, whatever the model's dtype. Snapping to the integer grid is
`mechanism.release`. Why and how exactly: `proofs/grid_gaussian.md`.
Source: Box and Muller 1958 (Ann. Math. Stat. 29); Mironov 2012 (CCS) on floating-point leaks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sequester.core.rng import Keystream, fresh_key, key_from_test_seed
from sequester.mechanism.position import Position

_PAIRS_PER_BLOCK = 1 << 14  # the workspace stays inside the second-level cache
_TINY = 2.0**-64


class NoiseStream:
    """Standard normals, one draw per step, no step twice.

    Attributes:
        private: False if the key came from a test seed: the result protects nobody.
        draws: How many draws this object has made; a run charges exactly as many steps.
    """

    def __init__(
        self, key: bytes, run: str, *, position: Position | None = None, private: bool = True
    ) -> None:
        """A stream under `key` for `run`, starting at the stored position."""
        self.private = private
        self.draws = 0
        self._keystream = Keystream(key, run, "noise")
        self._position = position or Position()

    @classmethod
    def from_system(cls, run: str) -> NoiseStream:
        """A stream under a fresh key of the operating system that no one else holds."""
        return cls(fresh_key(), run)

    @classmethod
    def from_test_seed(cls, seed: int, run: str) -> NoiseStream:
        """A reproducible stream for tests: its claim is stamped NOT PRIVATE."""
        return cls(key_from_test_seed(seed), run, private=False)

    @property
    def next_step(self) -> int:
        """The first step whose noise nobody has drawn."""
        return self._position.next

    def prepare(self, step: int) -> None:
        """Begin to write the position of `step`, whose noise will be drawn next.

        Raises:
            SequesterError: SQ-232 if the step was drawn before.
        """
        self._position.prepare(step)

    def draw(self, step: int, count: int, *, meets: bytes) -> Tensor:
        """`count` independent standard normals for `step`, float64 `(count,)`.

        The position is on disk before a single byte is made.

        Args:
            step: Which draw.
            count: How many.
            meets: Digest of what they will be added to (`release.met`): for another sum the same
                step gives independent normals, whatever happened to the position. Nothing to a
                test seed, whose noise protects nobody: runs under one are compared with each other
                up to rounding, and would share no digit.

        Raises:
            SequesterError: SQ-232 if the step was drawn before, SQ-204 in a forked child.
        """
        self._position.advance(step)
        self.draws += 1
        bound = meets if self.private else b""
        pairs = (count + 1) // 2
        out = torch.empty(2 * pairs, dtype=torch.float64)
        workspace = torch.empty(2, min(pairs, _PAIRS_PER_BLOCK), dtype=torch.float64)
        blocks = self._keystream.pieces(step, 16 * pairs, size=16 * _PAIRS_PER_BLOCK, meets=bound)
        for k, block in enumerate(blocks):
            box_muller(block, out[2 * k * _PAIRS_PER_BLOCK :], workspace)
        return out[:count]


def box_muller(raw: bytearray | memoryview, out: Tensor, workspace: Tensor) -> None:
    """Turn uniform bytes into normals: 16 bytes give two.

    The radius uses 63 random bits (|z| ≤ 9.35), the angle 64.

    Args:
        raw: 8 bytes of each radius, then 8 of each angle.
        out: Receives the normals in its first `len(raw) / 8` places, float64.
        workspace: `(2, at least len(raw) / 16)`, float64.
    """
    words = torch.frombuffer(raw, dtype=torch.int64).view(2, -1)
    pairs = words.shape[1]
    radius, angle = workspace[:, :pairs]
    radius.copy_(words[0])
    angle.copy_(words[1])
    # |word|·2⁻⁶³ is uniform on (0, 1] and keeps its relative precision near 0, where it
    # decides the tail.
    radius.abs_().mul_(2.0**-63).clamp_min_(_TINY).log_().mul_(-2.0).sqrt_()
    angle.mul_(math.pi * 2.0**-63)
    torch.cos(angle, out=out[:pairs]).mul_(radius)
    torch.sin(angle, out=out[pairs : 2 * pairs]).mul_(radius)
