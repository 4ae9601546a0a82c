"""The gradients of a chunk's people, by weight, until they are clipped and added.

A weight is a trainable parameter or a tensor computed from parameters alone (a slice, a
transpose, a low-rank product). Layers enter each person's gradient of the weight they used;
`settle` pulls those of computed weights back to the parameters, person by person.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sequester.gradients.accumulate import Accumulator
from sequester.gradients.workspace import Workspace


class SparseRows:
    """Per-person gradients of an embedding: only the rows that a person looked up.

    Args:
        person: `(pairs,)` person of each row.
        row: `(pairs,)` row of the table.
        values: `(pairs, width)`; each (person, row) occurs once.
    """

    def __init__(self, person: Tensor, row: Tensor, values: Tensor) -> None:
        """Keep the three."""
        self.person = person
        self.row = row
        self.values = values


class Book:
    """Per-person gradients of one chunk.

    Args:
        people: People in the chunk.
        parameters: Trainable parameters by name.
        workspace: Buffers which outlive the chunk.
    """

    def __init__(
        self, people: int, parameters: dict[str, nn.Parameter], workspace: Workspace
    ) -> None:
        """Start empty."""
        self.people = people
        self.workspace = workspace
        self._parameters = parameters
        self._known = {id(p) for p in parameters.values()}
        self._weights: dict[int, Tensor] = {}
        self._dense: dict[int, Tensor] = {}
        self._sparse: dict[int, list[SparseRows]] = {}

    def target(self, weight: Tensor, key: str = "") -> tuple[Tensor, bool]:
        """A `(people, *weight.shape)` buffer for one use of `weight`, and whether it is fresh.

        A fresh buffer already belongs to the weight; otherwise pass it to `add` when filled.
        """
        fresh = id(weight) not in self._dense
        name = f"{'grad' if fresh else 'again'}:{self._slot(weight)}{key}"
        buffer = self.workspace.take(name, (self.people, *weight.shape), weight)
        if fresh:
            self._weights[id(weight)] = weight
            self._dense[id(weight)] = buffer
        return buffer, fresh

    def add(self, weight: Tensor, gradient: Tensor) -> None:
        """Enter `(people, *weight.shape)` for one use of `weight`; uses add up."""
        held = self._dense.get(id(weight))
        if held is None:
            self._weights[id(weight)] = weight
            self._dense[id(weight)] = gradient
        elif held is not gradient:
            held.add_(gradient)

    def add_rows(self, weight: Tensor, rows: SparseRows) -> None:
        """Enter an embedding's gradient."""
        self._weights[id(weight)] = weight
        self._sparse.setdefault(id(weight), []).append(rows)

    def settle(self) -> tuple[list[Tensor | None], list[SparseRows | None]]:
        """Gradients of the parameters, dense and sparse, in their order."""
        for key, weight in list(self._weights.items()):
            if key not in self._known:
                self._pull_back(key, weight)
        dense: list[Tensor | None] = []
        sparse: list[SparseRows | None] = []
        for parameter in self._parameters.values():
            parts = self._sparse.get(id(parameter), [])
            whole = self._dense.get(id(parameter))
            if whole is None and len(parts) > 1:
                whole = parameter.new_zeros(self.people, *parameter.shape)
            if whole is not None:
                for rows in parts:
                    whole.index_put_((rows.person, rows.row), rows.values, accumulate=True)
                parts = []
            dense.append(whole)
            sparse.append(parts[0] if parts else None)
        return dense, sparse

    def _slot(self, weight: Tensor) -> str:
        return f"{len(self._dense)}:{tuple(weight.shape)}"

    def _pull_back(self, key: int, weight: Tensor) -> None:
        whole = self._dense.pop(key, None)
        if whole is None:
            whole = weight.new_zeros(self.people, *weight.shape).detach()
        for rows in self._sparse.pop(key, []):
            whole.index_put_((rows.person, rows.row), rows.values, accumulate=True)
        del self._weights[key]
        parameters = list(self._parameters.values())
        pulled: list[list[Tensor | None]] = []
        for person in range(self.people):
            # A computed weight's graph is a few views or one small product: a loop is enough.
            pulled.append(
                list(
                    torch.autograd.grad(
                        weight, parameters, whole[person], retain_graph=True, allow_unused=True
                    )
                )
            )
        for index, parameter in enumerate(parameters):
            parts = [row[index] for row in pulled]
            if parts and parts[0] is not None:
                stacked = torch.stack([p for p in parts if p is not None])
                self.add(parameter, stacked)


def add_book(book: Book, accumulator: Accumulator, first: int) -> None:
    """Clip the book's people, numbered from `first` in the lot, and add them."""
    dense, sparse = book.settle()
    accumulator.add_chunk(first, book.people, dense, sparse)
