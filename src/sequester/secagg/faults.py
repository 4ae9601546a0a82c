"""Who broke a round: what the server can say of a member by name, and how surely.

A member sends the server things that it can check and things that only a peer can: sealed parcels
and confirmations. Of the first, one that does not hold blames its sender. Of the second a peer
*doubts* that its sender made it well, and either of the two may lie; nobody is left out of a round
for a doubt, so that a false one costs its maker's share and tells nobody anything. Only when more
peers doubt a member than may be corrupt is that member blamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Faults:
    """What was found in one round.

    Attributes:
        blamed: Members at fault for certain → the number of the refusal that says why.
        disputes: (accused, accuser): one of the two is at fault.
    """

    blamed: dict[int, int] = field(default_factory=dict)
    disputes: set[tuple[int, int]] = field(default_factory=set)

    def blame(self, member: int, number: int) -> None:
        """Keep the first reason."""
        self.blamed.setdefault(member, number)

    def doubt(self, accused: int, accuser: int, corrupt: int) -> None:
        """Note a doubt; more accusers than may be `corrupt` are not all liars."""
        self.disputes.add((accused, accuser))
        if sum(one == accused for one, _ in self.disputes) > corrupt:
            self.blame(accused, 711)

    def told(self) -> str:
        """In words, for the refusal that ends a round; empty if nobody is named."""
        named = [f"member {one} (SQ-{number})" for one, number in sorted(self.blamed.items())]
        parts = [f"at fault: {', '.join(named)}"] if named else []
        if pairs := [f"{one} and {other}" for one, other in sorted(self.disputes)]:
            parts.append(f"one of each pair is at fault: {', '.join(pairs[:20])}")
            if len(pairs) > 20:
                parts.append(f"and {len(pairs) - 20} more pairs")
        return "; ".join(parts)

    def facts(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """The same for a record, members by name; nothing if nobody is named."""
        blamed = [[names[one], number] for one, number in sorted(self.blamed.items())]
        disputes = [[names[one], names[other]] for one, other in sorted(self.disputes)]
        return {k: v for k, v in (("blamed", blamed), ("disputes", disputes)) if v}
