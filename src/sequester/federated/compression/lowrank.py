"""Low-rank messages in the manner of PowerSGD.

Source: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization" (2019), Algorithm 1: for a matrix M (n × m) and Q (m × r),

    P ← M Q,   P̂ ← orthogonalise(P),   Q ← Mᵀ P̂,   M ≈ P̂ Qᵀ

One power iteration from a Q of a shared seed. The paper averages P between its two products,
which needs a second exchange; here each client sends (P̂, Q), one message. Vectors are sent
as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sequester.core.errors import UsageError
from sequester.core.rng import public_generator
from sequester.federated.compression.codecs import Address, body, floats, header
from sequester.federated.messages import Layout, Vector


@dataclass(frozen=True)
class LowRank:
    """Rank `rank` for each matrix that gets smaller by it."""

    rank: int = 2
    number = 4

    def __post_init__(self) -> None:
        """Check the rank."""
        if self.rank < 1:
            raise UsageError(611, f"the message's rank must be ≥ 1, got {self.rank}")

    def encode(self, vector: Vector, layout: Layout, address: Address) -> bytes:
        """Header, then (P̂, Q) or the numbers of each tensor in order."""
        generator = public_generator(address.seed("low-rank", per_client=False))
        parts = [header(self.number, layout.size)]
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            values = vector[layout.slice(name)]
            if not self.applies(shape):
                parts.append(values.astype("<f4").tobytes())
                continue
            matrix = values.reshape(shape[0], -1).astype(np.float64)
            start = generator.standard_normal((matrix.shape[1], self.rank))
            left, _ = np.linalg.qr(matrix @ start)
            right = matrix.T @ left
            parts += [left.astype("<f4").tobytes(), right.astype("<f4").tobytes()]
        return b"".join(parts)

    def decode(self, data: bytes, layout: Layout, address: Address) -> Vector:
        """P̂ Qᵀ of each matrix."""
        counts = [self.numbers(shape) for shape in layout.shapes]
        numbers = floats(body(data, self.number, layout), sum(counts))
        vector = np.empty(layout.size, dtype=np.float32)
        place = 0
        for name, shape, count in zip(layout.names, layout.shapes, counts, strict=True):
            part = numbers[place : place + count]
            place += count
            if self.applies(shape):
                rows = shape[0]
                left = part[: rows * self.rank].reshape(rows, self.rank)
                right = part[rows * self.rank :].reshape(-1, self.rank)
                with np.errstate(all="ignore"):  # hostile numbers overflow; the gate counts them
                    part = (left @ right.T).reshape(-1)
            vector[layout.slice(name)] = part
        return vector

    def applies(self, shape: tuple[int, ...]) -> bool:
        """Whether two factors are smaller than the matrix (and an orthogonal basis exists)."""
        if len(shape) < 2:
            return False
        rows, columns = shape[0], math.prod(shape[1:])
        return self.rank * (rows + columns) < rows * columns and self.rank <= rows

    def numbers(self, shape: tuple[int, ...]) -> int:
        """Numbers that travel for a tensor of this shape."""
        if not self.applies(shape):
            return math.prod(shape)
        return self.rank * (shape[0] + math.prod(shape[1:]))
