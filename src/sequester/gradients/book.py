"""The gradients of a chunk's people, by weight, until they are clipped and added.

A weight is a trainable parameter or a tensor computed from parameters alone (a slice, a
transpose, a low-rank product). Layers enter each person's gradient of the weight they used;
`settle` pulls those of computed weights back to the parameters, person by person.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sequester.gradients import ghost
from sequester.gradients.accumulate import Entry
from sequester.gradients.ghost import Factored
from sequester.gradients.layout import shaped
from sequester.gradients.rows import Owners
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

    @staticmethod
    def merged(keys: Tensor, values: Tensor, count: int) -> SparseRows:
        """Add up equal (person, place) pairs, `keys = person · count + place`."""
        unique, inverse = torch.unique(keys, return_inverse=True)
        total = values.new_zeros(len(unique), values.shape[1]).index_add_(0, inverse, values)
        person = torch.div(unique, count, rounding_mode="floor")
        return SparseRows(person, unique - person * count, total)


class Book:
    """Per-person gradients of one chunk.

    Args:
        people: People in the chunk.
        parameters: Trainable parameters by name.
        workspace: Buffers which outlive the chunk.
        most: Bytes that one weight's gradients of all people may take.
    """

    def __init__(
        self, people: int, parameters: dict[str, nn.Parameter], workspace: Workspace, most: int
    ) -> None:
        """Start empty."""
        self.people = people
        self.workspace = workspace
        self._most = most
        self._parameters = parameters
        self._known = {id(p) for p in parameters.values()}
        self._weights: dict[int, Tensor] = {}
        self._dense: dict[int, Tensor] = {}
        self._sparse: dict[int, list[SparseRows]] = {}
        self._factored: dict[int, list[Factored]] = {}

    def target(self, weight: Tensor, key: str = "") -> tuple[Tensor, bool]:
        """A `(people, *weight.shape)` buffer for one use of `weight`, and whether it is fresh.

        It lies as `layout` says. A fresh buffer already belongs to the weight; otherwise pass it
        to `add` when filled.
        """
        fresh = id(weight) not in self._dense
        name = f"{'grad' if fresh else 'again'}:{self._slot(weight)}{key}"
        numbers = self.workspace.take(name, (self.people, weight.numel()), weight)
        buffer = shaped(numbers, weight.shape)
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

    def holds(self, weight: Tensor) -> bool:
        """Whether a use of `weight` was entered by `add` or `target`."""
        return id(weight) in self._dense

    def add_rows(self, weight: Tensor, rows: SparseRows) -> None:
        """Enter an embedding's gradient."""
        self._weights[id(weight)] = weight
        self._sparse.setdefault(id(weight), []).append(rows)

    def keeps_rows(self, weight: Tensor, owners: Owners, each: int) -> bool:
        """Whether a linear layer's gradients stay rows, see `ghost`, for this use of `weight`.

        Args:
            weight: Its weight.
            owners: Of the windows it met.
            each: Rows in each window.
        """
        if id(weight) not in self._known or not ghost.possible(weight):
            return False
        rows = torch.tensor(owners.offsets).diff() * each
        whole = self.people * weight.numel() * weight.element_size()
        return ghost.pays(weight, rows) or (self.people > 1 and whole > self._most)

    def add_factors(
        self, weight: Tensor, left: Tensor, right: Tensor, owners: Owners, each: int
    ) -> None:
        """Enter `DᵀA` without forming it.

        Args:
            weight: For which `keeps_rows` said yes.
            left: D, `(rows, p)`, sorted by person; read when the book is added.
            right: A, `(rows, d)`, likewise.
            owners: Of the windows.
            each: Rows in each window.
        """
        rows = torch.tensor(owners.offsets).diff() * each
        person = torch.repeat_interleave(torch.arange(self.people), rows).to(left.device)
        part = Factored(self.people, person, left, right)
        self._factored.setdefault(id(weight), []).append(part)

    def settle(self) -> list[Entry]:
        """Gradients of the parameters, in their order."""
        for key, weight in list(self._weights.items()):
            if key not in self._known:
                self._pull_back(key, weight)
        entries: list[Entry] = []
        for parameter in self._parameters.values():
            parts = self._sparse.get(id(parameter), [])
            whole = self._dense.get(id(parameter))
            if whole is None and len(parts) > 1:
                keys = torch.cat([rows.person * len(parameter) + rows.row for rows in parts])
                values = torch.cat([rows.values for rows in parts])
                parts = [SparseRows.merged(keys, values, len(parameter))]
            if whole is not None:
                for rows in parts:
                    whole.index_put_((rows.person, rows.row), rows.values, accumulate=True)
                for factors in self._factored.pop(id(parameter), []):
                    for person in range(self.people):
                        whole[person] += factors.product(person)
                parts = []
            products = self._factored.get(id(parameter))
            joined = Factored.joined(products) if products else None
            entries.append((whole, parts[0] if parts else None, joined))
        return entries

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
