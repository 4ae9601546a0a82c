"""What travels between the server and a client.

Models and updates are flat vectors inside the house and named tensors on the wire. A `Layout`
converts one into the other and is the only place that knows where a tensor lies.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError

Vector = NDArray[np.float32]
Sum = NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.generic)


class Reason(StrEnum):
    """Why an update did not enter the sum; counted, never silently dropped."""

    UNKNOWN_CLIENT = "unknown-client"
    WRONG_RUN = "wrong-run"
    WRONG_ROUND = "wrong-round"
    WRONG_VERSION = "wrong-version"
    WRONG_NONCE = "wrong-nonce"
    REPLAYED = "replayed"
    LATE = "late"
    LOST = "lost"
    REFUSED = "refused"
    MALFORMED = "malformed"
    MISSING_TENSOR = "missing-tensor"
    EXTRA_TENSOR = "extra-tensor"
    WRONG_SHAPE = "wrong-shape"
    WRONG_DTYPE = "wrong-dtype"
    NOT_FINITE = "not-finite"
    TOO_LARGE = "too-large"
    ZERO = "zero"
    BAD_STEPS = "bad-steps"
    BAD_WEIGHT = "bad-weight"
    BAD_COUNTS = "bad-counts"


class Rejection(Exception):
    """An update that may not enter the sum; holds the reason and no value of the update."""

    def __init__(self, reason: Reason) -> None:
        """Keep the reason."""
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the flat vector: names in order, shapes beside them.

    Attributes:
        names: In the module's order.
        shapes: Of each.
        dtype: "float32" for models and deltas; "float64" for the exact sums of sites.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Check that names are unique and shapes belong to them."""
        if len(self.names) != len(self.shapes) or len(set(self.names)) != len(self.names):
            raise UsageError(601, "a layout has one shape for each name, and each name once")

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[np.generic]]) -> Layout:
        """The layout of named arrays, in their order."""
        return cls(tuple(tensors), tuple(tuple(array.shape) for array in tensors.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each tensor, and the end of the last."""
        return (0, *np.cumsum(self.sizes).tolist())

    @property
    def size(self) -> int:
        """Numbers in the whole vector."""
        return self.offsets[-1]

    def slice(self, name: str) -> slice:
        """Where the tensor `name` lies."""
        place = self.names.index(name)
        return slice(self.offsets[place], self.offsets[place + 1])

    def mask(self, names: tuple[str, ...]) -> NDArray[np.bool_]:
        """True where a tensor whose name starts with one of `names` lies, `(size,)`."""
        chosen = np.zeros(self.size, dtype=bool)
        for name in self.names:
            if name.startswith(names):
                chosen[self.slice(name)] = True
        return chosen

    def views(self, vector: NDArray[_Number]) -> dict[str, NDArray[_Number]]:
        """Named views of a flat vector: nothing is copied."""
        return {
            name: vector[start : start + size].reshape(shape)
            for name, shape, start, size in zip(
                self.names, self.shapes, self.offsets[:-1], self.sizes, strict=True
            )
        }

    def flatten(self, tensors: Mapping[str, NDArray[np.generic]]) -> Vector:
        """The flat vector of named tensors from outside.

        Raises:
            Rejection: missing or extra tensors, a wrong shape or dtype. Shapes must match
                exactly: a (2, 3) update must never broadcast over a (3,) tensor.
        """
        if missing := set(self.names) - set(tensors):
            raise Rejection(Reason.MISSING_TENSOR) from KeyError(*sorted(missing)[:1])
        if len(tensors) != len(self.names):
            raise Rejection(Reason.EXTRA_TENSOR)
        vector: Vector = np.empty(self.size, dtype=self.dtype)
        for name, shape, start, size in zip(
            self.names, self.shapes, self.offsets[:-1], self.sizes, strict=True
        ):
            array = tensors[name]
            if not isinstance(array, np.ndarray):
                raise Rejection(Reason.MALFORMED)
            if array.dtype != vector.dtype:
                raise Rejection(Reason.WRONG_DTYPE)
            if array.shape != shape:
                raise Rejection(Reason.WRONG_SHAPE)
            vector[start : start + size] = array.reshape(-1)
        return vector

    def digest(self) -> str:
        """What both ends compare before training: names, order and shapes, 16 hex digits."""
        text = ";".join(
            f"{name}{shape}" for name, shape in zip(self.names, self.shapes, strict=True)
        )
        return hashlib.sha256(f"{self.dtype}:{text}".encode()).hexdigest()[:16]


def version_of(layout: Layout, model: Vector) -> str:
    """The version of a model: a hash of its layout and its bytes, 32 hex digits."""
    raw = np.ascontiguousarray(model, dtype="<f4")
    return hashlib.sha256(layout.digest().encode() + raw.tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class Instruction:
    """Server → client: train from this model and answer under this nonce.

    Attributes:
        run: The run's name.
        round: From 0.
        version: `version_of` the model that is sent beside it.
        client: The client's position in the enrolled population.
        nonce: Belongs to this run, round and client alone.
        deadline: Server's clock, seconds; an answer after it is counted as late.
    """

    run: str
    round: int
    version: str
    client: int
    nonce: str
    deadline: float


@dataclass(frozen=True)
class Update:
    """Client → server: what changed (delta, never the model itself).

    Attributes:
        run: As in the instruction; so are `round`, `version`, `client` and `nonce`.
        round: See `run`.
        version: See `run`.
        client: See `run`.
        nonce: See `run`.
        tensors: Named float32 arrays: local model minus global model.
        steps: Local optimiser steps taken (FedNova's τ, SCAFFOLD's K).
        weight: Windows trained on; ignored wherever a guarantee is claimed.
    """

    run: str
    round: int
    version: str
    client: int
    nonce: str
    tensors: Mapping[str, NDArray[np.generic]]
    steps: int = 1
    weight: float = 1.0


def answer(
    instruction: Instruction,
    tensors: Mapping[str, NDArray[np.generic]],
    *,
    steps: int = 1,
    weight: float = 1.0,
) -> Update:
    """The update that answers `instruction`."""
    return Update(
        instruction.run,
        instruction.round,
        instruction.version,
        instruction.client,
        instruction.nonce,
        tensors,
        steps,
        weight,
    )
