"""Budgets as a tree: who bears a charge, and whether every ceiling on the way allows it.

A data set has one root budget. Below it, a budget may be for a *population* (disjoint groups
of people: each person bears only her own group's charges) or for a time *window* (the same
people, other records: the parent bears the sum). A charge is checked at its budget and at
every budget above, against what the people concerned bear there in total.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sequester.core.errors import LedgerRefusal, UsageError, VerificationError
from sequester.ledger.charges import NOTHING, ORDERS, Charge, allowance, epsilon_of, largest
from sequester.ledger.rows import compact

SHARES = ("population", "window")
FILTER, FIXED = "filter", "fixed"
_OWN = ",".join(["%d"] * (1 + len(ORDERS)))


@dataclass(frozen=True)
class Budget:
    """What may be learnt about the people of a data set, and what has been.

    Attributes:
        name: Unique in the ledger.
        dataset: Fingerprint or name of the data set.
        epsilon: Ceiling.
        delta: The δ of the ceiling.
        unit: Whose presence it protects, "person", "window" or "step".
        adjacency: Neighbouring relation of the ceiling.
        parent: The budget it is part of, or None.
        share: How it is part: "population" or "window"; None for a root.
        own: Everything charged to this budget itself, reservations included.
        charges: How many reservations were made.
        people: Keyed fingerprint of the data that its first run used, if that run told; every
            later run that tells must have the same.
        alone: Certified ε of the one charge that was admitted as fixed in advance, while
            nothing else is charged here.
    """

    name: str
    dataset: str
    epsilon: float
    delta: float
    unit: str = "person"
    adjacency: str = "add-or-remove"
    parent: str | None = None
    share: str | None = None
    own: Charge = NOTHING
    charges: int = 0
    people: str | None = None
    alone: float | None = None

    def allowance(self) -> Charge:
        """The ceiling at each order."""
        return allowance(self.epsilon, self.delta)

    def after(self, own: Charge, alone: float | None, **changes: Any) -> Budget:
        """The same budget after a charge; `dataclasses.replace` takes five times as long."""
        new = object.__new__(Budget)
        new.__dict__.update(self.__dict__, own=own, alone=alone, **changes)
        return new

    def terms(self) -> dict[str, Any]:
        """What was agreed when it was made; the body of its row."""
        return {
            "adjacency": self.adjacency,
            "dataset": self.dataset,
            "delta": self.delta,
            "epsilon": self.epsilon,
            "parent": self.parent,
            "share": self.share,
            "unit": self.unit,
        }

    def to_text(self) -> str:
        """As kept in a store, sealed so that a flipped byte is noticed at the next use."""
        own = _OWN % (self.own.slack, *self.own.rdp)
        alone = "null" if self.alone is None else repr(float(self.alone))
        people = "null" if self.people is None else f'"{self.people}"'
        state = f'"alone":{alone},"charges":{self.charges},"own":[{own}],"people":{people}'
        body = f'{{"name":{self._fixed[0]},{state},"terms":{self._fixed[1]}}}'
        return f"{hashlib.sha256(body.encode()).hexdigest()} {body}"

    @cached_property
    def _fixed(self) -> tuple[str, str]:
        """What never changes but by a grant, as JSON; `after` hands it on."""
        return compact(self.name), compact(self.terms())

    @classmethod
    def from_text(cls, name: str, text: object) -> Budget:
        """The inverse of `to_text`.

        Raises:
            VerificationError: SQ-332 if the seal does not match.
        """
        seal, _, body = text.partition(" ") if isinstance(text, str) else ("", "", "")
        digest = hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()
        fields = json.loads(body) if seal == digest else {}
        if fields.get("name") != name:
            raise VerificationError(
                332,
                f"the stored balance of budget {name!r} is damaged; nothing was charged. "
                "'sequester ledger verify' finds what else is",
            )
        own = Charge.from_json(fields["own"])
        return cls(
            name,
            **fields["terms"],
            own=own,
            **{state: fields[state] for state in ("alone", "charges", "people")},
        )


class Tree:
    """All budgets of a ledger, and the arithmetic on them."""

    def __init__(self, budgets: dict[str, Budget]) -> None:
        self.budgets = budgets
        self._children: dict[str, list[str]] = {}
        self._added = NOTHING, NOTHING, NOTHING
        for budget in budgets.values():
            if budget.parent is not None:
                self._hang(budget.name, budget.parent)

    def get(self, name: str) -> Budget:
        """The budget of this name.

        Raises:
            UsageError: SQ-310 if there is none.
        """
        found = self.budgets.get(name)
        if found is None:
            known = ", ".join(sorted(self.budgets)[:10]) or "none yet"
            raise UsageError(310, f"no budget {name!r} in this ledger; there are: {known}")
        return found

    def add(self, budget: Budget) -> None:
        """Hang a new budget into the tree.

        Raises:
            UsageError: SQ-310 for a parent that is not there, SQ-320 for terms that do not
                fit the parent's.
            LedgerRefusal: SQ-313 for a second root on one data set.
        """
        if budget.parent is None:
            for other in self.budgets.values():
                if other.parent is None and other.dataset == budget.dataset:
                    raise LedgerRefusal(
                        313,
                        f"data set {budget.dataset!r} already has the budget {other.name!r}; two "
                        "ceilings side by side would bound nobody. Make this one part of it "
                        f"(parent {other.name!r})",
                    )
        else:
            self._check_part(budget, self.get(budget.parent))
            self._hang(budget.name, budget.parent)
        self.budgets[budget.name] = budget

    def put(self, budget: Budget) -> None:
        """Replace a budget by one with the same place in the tree."""
        self.budgets[budget.name] = budget

    def charge(
        self,
        name: str,
        charge: Charge,
        *,
        alone: float | None = None,
        people: str | None = None,
    ) -> Budget:
        """Add to what a budget bears; returns the budget as it is then."""
        old = self.get(name)
        bound = old.people or people
        own = self._sum(old.own, charge)
        new = old.after(own, alone, charges=old.charges + 1, people=bound)
        self.put(new)
        return new

    def change(self, name: str, before: Charge, after: Charge) -> Budget:
        """Replace one charge of a budget by another, or by `NOTHING`."""
        old = self.get(name)
        own = (old.own - before) + after
        new = old.after(own, None if own == NOTHING else old.alone)
        self.put(new)
        return new

    def raise_ceiling(self, name: str, epsilon: float) -> Budget:
        """Give a budget a higher ceiling.

        Raises:
            LedgerRefusal: SQ-343 above the ceiling of the budget it is part of.
        """
        old = self.get(name)
        if old.parent is not None and epsilon > self.get(old.parent).epsilon:
            raise LedgerRefusal(
                343,
                f"{name!r} is part of {old.parent!r}, whose ceiling is "
                f"{self.get(old.parent).epsilon:g}; raise that one first",
            )
        new = replace(old, epsilon=epsilon)
        self.put(new)
        return new

    def borne(self, name: str) -> Iterator[tuple[Budget, Charge]]:
        """For `name` and each budget above: what the people of `name` bear there at most."""
        budget = self.get(name)
        affected = self.total(name) if self._children else budget.own
        yield budget, affected
        while budget.parent is not None:
            parent = self.get(budget.parent)
            windows, populations = self._split(parent.name, without=budget.name)
            above = sum(windows, parent.own) + affected
            if budget.share == "window":
                above = above + largest(populations)
            yield parent, above
            budget, affected = parent, above

    def total(self, name: str) -> Charge:
        """What any person of `name` bears at most, from it and everything below it."""
        own = self.get(name).own
        if name not in self._children:
            return own
        windows, populations = self._split(name)
        return sum(windows, own) + largest(populations)

    def admit(
        self, name: str, charge: Charge, certified: Callable[[float], float] | None = None
    ) -> str | None:
        """By which rule `charge` may be added, or None if a ceiling forbids it.

        Args:
            name: The budget to charge.
            charge: The cost.
            certified: ε of the event at a δ, by the accountant's best bound. It counts only
                where the people concerned bear nothing yet: one run fixed in advance needs no
                filter. Such a charge is never lowered, because a filter takes over after it.

        Returns:
            "filter", "fixed" or None.
        """
        rule = FILTER
        for budget, borne in self.borne(name):
            if self._sum(borne, charge).within(budget.allowance()):
                continue
            alone = borne == NOTHING and certified is not None
            if not (alone and certified is not None and certified(budget.delta) <= budget.epsilon):
                return None
            rule = FIXED
        return rule

    def is_fresh(self, name: str) -> bool:
        """Whether nobody of `name` bears anything yet at some ceiling above it."""
        return any(borne == NOTHING for _, borne in self.borne(name))

    def spent(self, name: str) -> float:
        """Upper bound on ε that any person of `name` bears at its δ."""
        budget = self.get(name)
        bound = epsilon_of(self.total(name), budget.delta)
        below = [child for child in self._children.get(name, ()) if self.total(child) != NOTHING]
        shares = {self.budgets[child].share for child in below}
        if budget.own == NOTHING and (shares == {"population"} or len(below) == 1):
            # Only one charge, or disjoint people: no composition, so no filter is needed.
            bound = min(bound, max(self.spent(child) for child in below))
        elif budget.alone is not None and not below:
            bound = min(bound, budget.alone)
        return bound

    def _sum(self, borne: Charge, charge: Charge) -> Charge:
        """Both; what was asked last is remembered, since who may be charged is charged next."""
        if self._added[0] is not borne or self._added[1] is not charge:
            self._added = borne, charge, borne + charge
        return self._added[2]

    def _hang(self, name: str, parent: str) -> None:
        self._children.setdefault(parent, []).append(name)

    def _split(self, name: str, *, without: str = "") -> tuple[list[Charge], list[Charge]]:
        """Totals of the window children and of the population children."""
        windows: list[Charge] = []
        populations: list[Charge] = []
        for child in self._children.get(name, ()):
            if child != without:
                share = self.budgets[child].share
                (windows if share == "window" else populations).append(self.total(child))
        return windows, populations

    def _check_part(self, budget: Budget, parent: Budget) -> None:
        if budget.share not in SHARES:
            raise UsageError(
                320,
                f"a part of a budget is a {' or a '.join(SHARES)}, got {budget.share!r}: "
                "populations are disjoint people, windows are other times of the same people",
            )
        same = (budget.dataset, budget.unit, budget.adjacency, budget.delta)
        if same != (parent.dataset, parent.unit, parent.adjacency, parent.delta):
            raise UsageError(
                320,
                f"a part of {parent.name!r} has its data set, unit, adjacency and delta: "
                f"{parent.dataset!r}, {parent.unit}, {parent.adjacency}, {parent.delta}",
            )
        if budget.epsilon > parent.epsilon:
            raise UsageError(
                320,
                f"a part's ceiling is at most that of {parent.name!r}, {parent.epsilon}, got "
                f"{budget.epsilon}",
            )
        if budget.share == "population" and budget.adjacency == "replace-one":
            raise UsageError(
                320,
                "under replace-one a person may be replaced by one of another population, so "
                "populations are not charged in parallel; use add-or-remove, or windows",
            )
