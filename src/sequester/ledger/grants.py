"""Signed permissions of the data holder: a higher ceiling, another policy.

Each names the ledger and the state it was signed for, so it can be used once and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sequester.core.errors import LedgerRefusal, UsageError, VerificationError
from sequester.ledger.budgets import Budget
from sequester.ledger.desk import check_text
from sequester.ledger.policy import Policy
from sequester.ledger.signing import Signed

GRANT, POLICY = "grant", "policy"


@dataclass(frozen=True)
class Grant:
    """A higher ceiling for one budget.

    Attributes:
        ledger: The ledger's id.
        budget: Which budget.
        before: The ceiling it was signed for; the grant is void once that has changed.
        epsilon: The new ceiling.
        who: Who grants, a person's name or office.
        why: For the record.
    """

    ledger: str
    budget: str
    before: float
    epsilon: float
    who: str
    why: str

    @classmethod
    def of(cls, signed: Signed) -> Grant:
        """The grant inside a signed document.

        Raises:
            VerificationError: SQ-334 if it is none.
        """
        document = _exactly(
            signed,
            GRANT,
            {
                "ledger": str,
                "budget": str,
                "before": float,
                "epsilon": float,
                "who": str,
                "why": str,
            },
        )
        return cls(**document)

    def sign(self, key: Ed25519PrivateKey) -> Signed:
        """Sign it.

        Raises:
            UsageError: SQ-314 for a name or reason that says nothing, or an epsilon that is
                not a finite number above the present ceiling.
        """
        check_text(self.who, "who grants")
        check_text(self.why, "why")
        if not self.before < self.epsilon < math.inf:
            raise UsageError(
                314,
                f"a grant raises the ceiling above {self.before:g}, got {self.epsilon:g}; it is "
                "never lowered",
            )
        return Signed.by(key, GRANT, dict(vars(self)))


@dataclass(frozen=True)
class PolicyChange:
    """Another policy.

    Attributes:
        ledger: The ledger's id.
        replaces: Row of the policy it replaces.
        policy: The new one.
        who: Who decides.
        why: For the record.
    """

    ledger: str
    replaces: int
    policy: Policy
    who: str
    why: str

    @classmethod
    def of(cls, signed: Signed) -> PolicyChange:
        """The change inside a signed document.

        Raises:
            VerificationError: SQ-334 if it is none.
            UsageError: SQ-341 if its policy is none.
        """
        document = _exactly(
            signed,
            POLICY,
            {"ledger": str, "replaces": int, "policy": dict, "who": str, "why": str},
        )
        return cls(**document | {"policy": Policy.from_fields(document["policy"])})

    def sign(self, key: Ed25519PrivateKey) -> Signed:
        """Sign it.

        Raises:
            UsageError: SQ-314 for a name or reason that says nothing.
        """
        check_text(self.who, "who decides")
        check_text(self.why, "why")
        return Signed.by(key, POLICY, dict(vars(self)) | {"policy": self.policy.to_fields()})


def check_grant(grant: Grant, signed: Signed, held: Budget, policy: Policy, ledger: str) -> None:
    """Refuse a grant that does not hold here and now.

    Raises:
        VerificationError: SQ-334 for a signature that does not hold.
        LedgerRefusal: SQ-342 for a signer who may not, SQ-343 for another ledger or an older
            state, SQ-340 beyond the policy's `most_epsilon`.
    """
    _check_signer(signed, policy)
    if grant.ledger != ledger:
        raise LedgerRefusal(343, f"this grant is for the ledger {grant.ledger[:16]}…, not this one")
    if grant.before != held.epsilon or not held.epsilon < grant.epsilon < math.inf:
        raise LedgerRefusal(
            343,
            f"this grant raises {grant.budget!r} from {grant.before:g} to {grant.epsilon:g}, but "
            f"its ceiling is {held.epsilon:g} now; it was used already or another one came first",
        )
    if policy.most_epsilon is not None and grant.epsilon > policy.most_epsilon:
        raise LedgerRefusal(
            340, f"the policy lets no grant go beyond epsilon {policy.most_epsilon:g}"
        )


def check_policy_change(
    change: PolicyChange, signed: Signed, policy: Policy, ledger: str, policy_row: int
) -> None:
    """Refuse another policy that does not hold here and now.

    Raises:
        VerificationError: SQ-334 for a signature that does not hold.
        LedgerRefusal: SQ-342 for a signer who may not, SQ-343 for another ledger or state.
    """
    _check_signer(signed, policy)
    if change.ledger != ledger or change.replaces != policy_row:
        raise LedgerRefusal(
            343,
            f"this policy was signed to replace row {change.replaces} of ledger "
            f"{change.ledger[:16]}…; in force here is row {policy_row}",
        )


def _check_signer(signed: Signed, policy: Policy) -> None:
    if not signed.holds():
        raise VerificationError(334, f"the signature of this {signed.purpose} does not hold")
    if policy.granter_name(signed.signer) is None:
        names = ", ".join(granter.name for granter in policy.granters)
        raise LedgerRefusal(
            342, f"the key {signed.signer[:16]}… may not grant here; these may: {names}"
        )


def _exactly(signed: Signed, purpose: str, types: dict[str, type]) -> dict[str, Any]:
    document = signed.document
    fits = signed.purpose == purpose and set(document) == set(types)
    if not fits or any(type(document[name]) is not kind for name, kind in types.items()):
        raise VerificationError(
            334, f"this is not a {purpose}: it has the fields {', '.join(types)}"
        )
    return dict(document)
