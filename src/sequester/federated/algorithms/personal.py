"""Personalisation: what each client keeps to itself. Three ways, all on top of any engine.

    LocalHead     Arivazhagan et al., "Federated Learning with Personalization Layers" (2019):
                  named tensors (the head) never leave the client; the backbone is shared.
    Adapter       every client adds a matrix of rank r to each shared weight matrix:
                  W_i = W + B_i A_i (the shape of Hu et al., "LoRA", 2021, eq. 3). The client's
                  deviation is trained freely and then projected onto rank r by its truncated
                  singular value decomposition, its best approximation (Eckart and Young, 1936).
    FineTune      Li, Hu, Beirami, Smith, "Ditto" (2021), eq. 1: a personal model v_i with
                  F_i(v) + (λ/2) ‖v − w‖², trained beside the shared w.

Each says where a client starts (`start`), what of its delta is shared (`share`) and what it
keeps (`keep`). The kept part is the client's own data: it is never released, so it needs no
noise, and it must never be averaged either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.federated.messages import Layout, Vector


class Personal(Protocol):
    """What a client adds to the shared model, and what it keeps."""

    def start(self, shared: Vector, kept: Vector | None) -> Vector:
        """The client's own model: the shared one with what the client kept."""
        ...

    def share(self, delta: Vector) -> Vector:
        """The part of the local delta that leaves the client."""
        ...

    def keep(self, shared: Vector, kept: Vector | None, delta: Vector) -> Vector:
        """What the client keeps after this round, `(size,)`."""
        ...

    def part(self, shared: Vector, kept: Vector) -> dict[str, NDArray[np.float32]]:
        """The client's own part as named tensors, to be stored beside the shared model."""
        ...


@dataclass(frozen=True)
class LocalHead:
    """Tensors whose names start with one of `names` stay on the client."""

    layout: Layout
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that the names exist and leave something to share.

        Raises:
            UsageError: SQ-607 otherwise.
        """
        private = self.layout.mask(self.names)
        if not private.any() or private.all():
            raise UsageError(
                607,
                f"local names {list(self.names)} must match some, not all, of the model's tensors "
                f"{list(self.layout.names)}",
            )

    def start(self, shared: Vector, kept: Vector | None) -> Vector:
        """The shared backbone with the client's own head (the shared one at first)."""
        if kept is None:
            return shared
        return np.where(self.layout.mask(self.names), shared + kept, shared).astype(np.float32)

    def share(self, delta: Vector) -> Vector:
        """The backbone's delta; zeros where the head lies."""
        return np.where(self.layout.mask(self.names), np.float32(0), delta)

    def keep(self, shared: Vector, kept: Vector | None, delta: Vector) -> Vector:
        """The head's distance from the shared one, which never moves."""
        own = np.where(self.layout.mask(self.names), delta, np.float32(0))
        return own if kept is None else kept + own

    def part(self, shared: Vector, kept: Vector) -> dict[str, NDArray[np.float32]]:
        """The head."""
        own = self.layout.views(self.start(shared, kept))
        return {name: value for name, value in own.items() if name.startswith(self.names)}

    def shared(self) -> NDArray[np.bool_]:
        """Coordinates that are shared, `(size,)`; nothing moves the others at the server."""
        return ~self.layout.mask(self.names)


@dataclass(frozen=True)
class Adapter:
    """Each client owns a deviation of rank `rank` in every matrix of the layout."""

    layout: Layout
    rank: int = 2

    def __post_init__(self) -> None:
        """Check the rank."""
        if self.rank < 1:
            raise UsageError(608, f"an adapter's rank must be ≥ 1, got {self.rank}")

    def start(self, shared: Vector, kept: Vector | None) -> Vector:
        """W + B_i A_i."""
        return shared if kept is None else shared + kept

    def share(self, delta: Vector) -> Vector:
        """The whole delta: the shared matrix learns from it too."""
        return delta

    def keep(self, shared: Vector, kept: Vector | None, delta: Vector) -> Vector:
        """The nearest deviation of rank r to the old one plus the delta; none for vectors."""
        full = delta if kept is None else kept + delta
        result = np.zeros_like(full)
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if len(shape) == 2:
                place = self.layout.slice(name)
                result[place] = low_rank(full[place].reshape(shape), self.rank).reshape(-1)
        return result

    def part(self, shared: Vector, kept: Vector) -> dict[str, NDArray[np.float32]]:
        """B_i (`<name>.left`) and A_i (`<name>.right`): r (rows + columns) numbers a matrix."""
        factors: dict[str, NDArray[np.float32]] = {}
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if len(shape) == 2:
                left, values, right = np.linalg.svd(
                    kept[self.layout.slice(name)].reshape(shape), full_matrices=False
                )
                left = left[:, : self.rank] * values[: self.rank]
                factors |= {f"{name}.left": left, f"{name}.right": right[: self.rank]}
        return {name: np.ascontiguousarray(value) for name, value in factors.items()}


@dataclass(frozen=True)
class FineTune:
    """Ditto: a personal model pulled towards the shared one with strength `pull` (λ).

    The shared model is trained as if nobody personalised; the personal one takes the same
    number of local steps from where it stood, with the proximal term anchored at the shared
    model. `keep` therefore receives the delta of the *personal* run.
    """

    layout: Layout
    pull: float = 0.1

    def start(self, shared: Vector, kept: Vector | None) -> Vector:
        """v_i; the shared model at first."""
        return shared if kept is None else kept

    def share(self, delta: Vector) -> Vector:
        """The delta of the shared run."""
        return delta

    def keep(self, shared: Vector, kept: Vector | None, delta: Vector) -> Vector:
        """v_i after the personal run. It stays where it is when the shared model moves."""
        return self.start(shared, kept) + delta

    def part(self, shared: Vector, kept: Vector) -> dict[str, NDArray[np.float32]]:
        """All of v_i."""
        return dict(self.layout.views(kept))


def low_rank(matrix: NDArray[np.float32], rank: int) -> NDArray[np.float32]:
    """The nearest matrix of rank `rank` in Frobenius norm."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    product: NDArray[np.float32] = (left[:, :rank] * values[:rank]) @ right[:rank]
    return product.astype(np.float32)
