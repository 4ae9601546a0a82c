"""What a client insists on, whatever the server says.

The server chooses the round's numbers; each client recomputes whether they protect it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sequester.core.errors import LedgerRefusal, UsageError, VerificationError
from sequester.secagg import graph
from sequester.secagg.crypto import same
from sequester.secagg.graph import Threats
from sequester.secagg.session import Session


@dataclass(frozen=True)
class Policy:
    """A client's own limits.

    Attributes:
        min_cohort: Fewest members it hides among.
        max_dropout: Largest fraction of the cohort that may vanish; a sum over fewer is not
            opened with its help.
        corrupt: Fraction of the cohort it assumes to work with the server.
        security_bits: No secret opens except with probability 2^-security_bits.
        allow_semi_honest: Accept a round without signatures and confirmation.
        corrupt_members: So many help the server even where it lists a smaller cohort.
        min_survivors: Fewest vectors in a sum, of all who were invited: the noise is sized so.
        threshold: Smallest threshold.
        degree: Fewest neighbours it shares masks with; 0 for all of the cohort.
    """

    min_cohort: int = 3
    max_dropout: float = 0.3
    corrupt: float = 0.1
    security_bits: int = graph.SECURITY_BITS
    allow_semi_honest: bool = False
    corrupt_members: int = 0
    min_survivors: int = 2
    threshold: int = 0
    degree: int = 0

    def __post_init__(self) -> None:
        """Refuse limits that protect nobody."""
        if self.min_cohort < 2:
            raise UsageError(719, f"min_cohort must be at least 2, got {self.min_cohort}")
        Threats(self.corrupt, self.max_dropout)

    def check_offer(self, session: Session, *, model: bytes, config: bytes, roster: bytes) -> None:
        """Compare an offer with what this client holds itself.

        Raises:
            LedgerRefusal: SQ-707 for an unasked-for semi-honest round.
            VerificationError: SQ-708 when model, configuration or roster differ.
        """
        if not session.active and not self.allow_semi_honest:
            raise LedgerRefusal(
                707,
                "the server offers a semi-honest round, which a lying server can break; "
                "set allow_semi_honest in the client's policy to accept it",
            )
        theirs = (session.model, session.config, session.roster)
        for name, mine, offered in zip(
            ("model", "configuration", "roster"), (model, config, roster), theirs, strict=True
        ):
            if not same(mine, offered):
                raise VerificationError(
                    708, f"the offer's {name} is not the one this client holds; it does not join"
                )

    def check_cohort(self, session: Session, members: int) -> None:
        """Whether this graph and threshold hide a member among `members`.

        Raises:
            LedgerRefusal: SQ-704 for too small a cohort, SQ-705 for parameters that do not
                keep this client's vector secret.
        """
        fewest = max(self.min_cohort, session.min_cohort)
        if members < fewest:
            raise LedgerRefusal(
                704, f"the cohort has {members} members, this client hides among {fewest} or more"
            )
        threats = Threats(self.corrupt, self.max_dropout, session.active, self.corrupt_members)
        grinding = graph.GRINDING_BITS if session.active else 0
        security = self.security_bits + grinding
        safe = graph.is_safe(members, session.degree, session.threshold, threats, security)
        fewest_neighbours = min(self.degree or members - 1, members - 1)
        sparse = (session.degree or members - 1) < fewest_neighbours
        if session.threshold < self.threshold or sparse or not safe:
            raise LedgerRefusal(
                705,
                f"degree {session.degree} and threshold {session.threshold} do not protect one of "
                f"{members} members against {threats.counts(members)[0]} who help the server, or "
                f"are below this client's {fewest_neighbours} neighbours or threshold of "
                f"{self.threshold}; 'sequester plan' computes parameters that do",
            )

    def fewest_survivors(self, session: Session, members: int) -> int:
        """The fewest vectors in a sum that this client helps to open."""
        _, drops = Threats(0.0, self.max_dropout).counts(members)
        return max(session.min_survivors, self.min_survivors, members - drops, 2)

    def check_survivors(self, session: Session, members: int, survivors: int) -> None:
        """Whether a sum over `survivors` of `members` still hides this client.

        Raises:
            LedgerRefusal: SQ-706 when too many are said to have dropped.
        """
        fewest = self.fewest_survivors(session, members)
        if survivors < fewest:
            raise LedgerRefusal(
                706,
                f"{survivors} of {members} vectors are said to have arrived; this client opens a "
                f"sum of at least {fewest}",
            )
