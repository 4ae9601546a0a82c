"""A data holder's policy: what no analyst's study can override.

It is written as TOML, becomes part of the ledger's first row, and changes only by a document
that one of its granters has signed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from sequester.accounting.checks import ADJACENCIES
from sequester.core.errors import LedgerRefusal, UsageError
from sequester.core.values import check_delta

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
Placement = Literal["cross-silo", "cross-device", "local"]


class Ceiling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a budget may be given without a grant."""

    epsilon: float
    delta: float


class Granter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Someone whose signature raises a ceiling."""

    name: str
    public_key: str


class SecureSums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's terms for secure sums between machines; a study may be stricter, never laxer.

    Attributes:
        required: Whether studies that send a site's sums in clear are refused.
        semi_honest: Whether the server may be trusted to follow the protocol.
        min_cohort: Fewest sites among which this one hides.
        dropout: Largest share of the sites that may be left out of a sum.
        corrupt: Share of the sites that the sum must withstand if they help the server.
    """

    required: bool = False
    semi_honest: bool = False
    min_cohort: int = 3
    dropout: float = 0.34
    corrupt: float = 0.0


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a data holder allows.

    Attributes:
        holder: Who answers for the data.
        ceiling: The most for any data set; None: whoever makes a budget says.
        datasets: The most for a data set by fingerprint or name; before `ceiling`.
        only_datasets: Whether data sets that are not listed are refused.
        units: Allowed units of privacy.
        adjacencies: Allowed neighbouring relations.
        min_population: Fewest declared units of a run.
        granters: Who may raise a ceiling; without any, the ledger's own key.
        most_epsilon: No grant goes beyond it; None: granters decide.
        reservation_days: After so long a reservation is charged for good.
        clock_tolerance_s: How far a clock may lie behind the newest row.
        secure_sums: Terms for secure sums between machines.
        placements: Where a study that comes to a node from a server may put its clients.
    """

    holder: str = ""
    ceiling: Ceiling | None = None
    datasets: dict[str, Ceiling] = {}
    only_datasets: bool = False
    units: tuple[str, ...] = ("person", "window", "step")
    adjacencies: tuple[str, ...] = ADJACENCIES
    min_population: int = 1
    granters: tuple[Granter, ...] = ()
    most_epsilon: float | None = None
    reservation_days: float = 30.0
    clock_tolerance_s: float = 300.0
    secure_sums: SecureSums = SecureSums()
    placements: tuple[Placement, ...] = ("cross-silo",)

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read a policy.toml.

        Raises:
            UsageError: SQ-341 for a file that is not exactly a policy.
        """
        try:
            policy = msgspec.toml.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(341, f"not a policy: {error}", where=str(path)) from None
        try:
            return policy.checked()
        except UsageError as error:
            raise error.at(str(path)) from None

    @classmethod
    def from_fields(cls, fields: Any) -> Policy:
        """A policy out of a row.

        Raises:
            UsageError: SQ-341 if it is none.
        """
        try:
            return msgspec.convert(fields, type=cls).checked()
        except msgspec.MsgspecError as error:
            raise UsageError(341, f"not a policy: {error}") from None

    def to_fields(self) -> dict[str, Any]:
        """As it stands in a row."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    def checked(self) -> Policy:
        """Itself, if its numbers mean something.

        Raises:
            UsageError: SQ-201 or SQ-341.
        """
        for ceiling in (self.ceiling, *self.datasets.values()):
            if ceiling is not None:
                check_delta(ceiling.delta)
                _positive(ceiling.epsilon, "a ceiling's epsilon")
        _positive(self.reservation_days, "reservation_days")
        if self.most_epsilon is not None:
            _positive(self.most_epsilon, "most_epsilon")
        if not 0 <= self.clock_tolerance_s < math.inf or self.min_population < 1:
            raise UsageError(341, "clock_tolerance_s must be ≥ 0 and min_population ≥ 1")
        sums = self.secure_sums
        if sums.min_cohort < 2 or not (0 <= sums.dropout < 1 and 0 <= sums.corrupt < 1):
            raise UsageError(
                341, "secure_sums: min_cohort must be ≥ 2, dropout and corrupt within [0, 1)"
            )
        for granter in self.granters:
            if not _PUBLIC_KEY.fullmatch(granter.public_key) or not granter.name.strip():
                raise UsageError(
                    341,
                    "a granter has a name and a public_key of 64 hexadecimal digits, as "
                    f"'sequester ledger key' prints it, got {granter.public_key!r}",
                )
        if not set(self.adjacencies) <= set(ADJACENCIES) or not self.units or not self.placements:
            raise UsageError(
                341,
                f"adjacencies are some of {', '.join(ADJACENCIES)}, and neither units nor "
                "placements are empty",
            )
        return self

    def granter_name(self, public_key: str) -> str | None:
        """Whose key this is, if it may grant."""
        return next((g.name for g in self.granters if g.public_key == public_key), None)

    def check_budget(self, dataset: str, epsilon: float, delta: float) -> None:
        """Refuse a budget above the ceiling.

        Raises:
            LedgerRefusal: SQ-340.
        """
        most = self.datasets.get(dataset, None if self.only_datasets else self.ceiling)
        if most is None and self.only_datasets:
            raise LedgerRefusal(340, f"the policy does not list the data set {dataset!r}")
        if most is not None and (epsilon > most.epsilon or delta > most.delta):
            raise LedgerRefusal(
                340,
                f"the policy allows at most epsilon {most.epsilon:g} at delta {most.delta:g} for "
                f"{dataset!r}, asked for {epsilon:g} at {delta:g}; a grant can raise the budget",
            )

    def check_terms(self, unit: str, adjacency: str) -> None:
        """Refuse a unit or adjacency that the holder does not allow.

        Raises:
            LedgerRefusal: SQ-340.
        """
        if unit in self.units and adjacency in self.adjacencies:
            return
        for given, allowed, what in (
            (unit, self.units, "unit"),
            (adjacency, self.adjacencies, "adjacency"),
        ):
            if given not in allowed:
                raise LedgerRefusal(
                    340, f"the policy allows the {what} {' or '.join(allowed)}, got {given!r}"
                )

    def check_placement(self, placement: str) -> None:
        """Refuse a study whose server would hear more of the people than the holder allows.

        Raises:
            LedgerRefusal: SQ-340.
        """
        if placement not in self.placements:
            raise LedgerRefusal(
                340,
                f"the policy allows the placement {' or '.join(self.placements)}, got "
                f"{placement!r}; only the holder can add it to `placements`, who then lets the "
                "server hear how many people train here and, unless 'local', each one's update",
            )

    def check_population(self, population: int | None) -> None:
        """Refuse a run on too few declared units.

        Raises:
            LedgerRefusal: SQ-340.
        """
        if self.min_population > 1 and (population is None or population < self.min_population):
            given = "none was declared" if population is None else f"got {population}"
            raise LedgerRefusal(
                340, f"the policy asks for a population of {self.min_population}, {given}"
            )


def _positive(value: float, what: str) -> None:
    if not 0 < value < math.inf:
        raise UsageError(341, f"{what} must be > 0 and finite, got {value}")
