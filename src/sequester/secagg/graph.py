"""Who shares a mask with whom, and how many shares open a secret.

Up to about fifty members everybody is everybody's neighbour (Bonawitz et al. 2017). Above,
members stand on a ring in an order nobody could choose and each is joined to the k/2 before
and the k/2 behind (the Harary graph of Bell et al. 2020). (k, t) come from hypergeometric
tails with a union bound over members, as in Google's federated-compute.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from sequester.core.errors import UsageError

FULL_GRAPH_UP_TO = 50
SECURITY_BITS = 40
CORRECTNESS_BITS = 20
# A member who speaks last may try many nonces to bend the ring; the active setting asks for
# tails smaller by this many bits.
GRINDING_BITS = 24


@dataclass(frozen=True)
class Threats:
    """What a round must withstand.

    Attributes:
        corrupt: Largest fraction of members who work with the server, in [0, 1).
        dropout: Largest fraction of members who vanish, in [0, 1).
        active: Whether the server may lie (True) or only look (False).
        corrupt_members: So many may be corrupt, however few of the others a server lists: who
            leaves honest members out does not leave out its helpers.
    """

    corrupt: float
    dropout: float
    active: bool = True
    corrupt_members: int = 0

    def __post_init__(self) -> None:
        """Refuse fractions outside [0, 1)."""
        for name, value in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not 0 <= value < 1:
                raise UsageError(719, f"{name} is a fraction in [0, 1), got {value}")

    def counts(self, members: int) -> tuple[int, int]:
        """How many of `members` may be corrupt and how many may drop (both rounded down)."""
        # The addend keeps 0.3·10 from becoming 2 through rounding.
        corrupt, drops = ((part + 1e-14) * members for part in (self.corrupt, self.dropout))
        return max(int(corrupt), min(self.corrupt_members, members)), int(drops)

    def among(self, members: int) -> Threats:
        """The same threats to every cohort picked from `members`."""
        return replace(self, corrupt_members=self.counts(members)[0])


def full_threshold(members: int, threats: Threats) -> int:
    """The smallest safe threshold on the full graph.

    t > c hides a secret from c corrupt members; against a lying server 2t > n + c keeps it
    from opening both secrets of one member, since each honest member answers for one only.

    Raises:
        UsageError: SQ-717 when the survivors would be fewer than the threshold.
    """
    corrupt, drops = threats.counts(members)
    threshold = (members + corrupt) // 2 + 1 if threats.active else max(corrupt + 1, 2)
    if threshold > members - drops:
        raise UsageError(
            717,
            f"with {members} members, {corrupt} of them corrupt, {threshold} must survive but "
            f"{drops} may drop; lower the dropout or corrupt fraction or enlarge the cohort",
        )
    return threshold


def sparse_parameters(
    members: int,
    threats: Threats,
    *,
    security: float = SECURITY_BITS,
    correctness: float = CORRECTNESS_BITS,
) -> tuple[int, int]:
    """The smallest even degree k with a threshold t that is safe and survives dropouts.

    Safe: except with probability 2^-security, no member has t corrupt neighbours (or, against
    a lying server, 2t > k + the number of corrupt neighbours) and the honest survivors stay
    connected. Survives: except with probability 2^-correctness everyone keeps t neighbours.
    Source: Bell et al. 2020, section 3; federated-compute, graph_parameter_finder.cc.

    Raises:
        UsageError: SQ-717 when no degree below members − 1 will do.
    """
    for degree in range(2, members - 1, 2):
        if _log2_disconnected(members, degree, threats) >= -(security + 1):
            continue
        threshold = _lowest_threshold(members, degree, threats, security)
        if threshold <= _highest_threshold(members, degree, threats, correctness):
            return degree, max(threshold, 2)
    raise UsageError(
        717,
        f"no neighbourhood of {members} members withstands corrupt={threats.corrupt} and "
        f"dropout={threats.dropout}; lower them, enlarge the cohort or use the full graph",
    )


@lru_cache(maxsize=1024)
def is_safe(members: int, degree: int, threshold: int, threats: Threats, security: float) -> bool:
    """Whether (k, t) keeps secrets: what a client recomputes before it believes a server."""
    if degree in (0, members - 1):
        corrupt, _ = threats.counts(members)
        return threshold > corrupt and (not threats.active or 2 * threshold > members + corrupt)
    if degree % 2 or not 2 <= degree < members - 1:
        return False
    connected = _log2_disconnected(members, degree, threats) < -(security + 1)
    return connected and threshold >= _lowest_threshold(members, degree, threats, security)


def _log2_disconnected(members: int, degree: int, threats: Threats) -> float:
    """log₂ of a bound on P(the honest survivors fall apart): two gaps of k/2 on the ring."""
    bad = sum(threats.counts(members))
    if degree > bad:
        return -math.inf
    pairs = math.log(members) + math.log(members - degree - 1) - math.log(2)
    gaps = math.lgamma(bad + 1) - math.lgamma(bad - degree + 1)
    gaps += math.lgamma(members - degree + 1) - math.lgamma(members + 1)
    return (pairs + gaps) / math.log(2)


def _lowest_threshold(members: int, degree: int, threats: Threats, security: float) -> int:
    corrupt, _ = threats.counts(members)
    level = 2.0 ** -(security + 1) / members
    # P(more than x corrupt neighbours), summed from the far end so that tiny tails are exact.
    above = np.cumsum(_neighbour_law(members, corrupt, degree)[::-1])[::-1]
    beyond = np.append(above[1:], 0.0)
    most = int(np.argmax(beyond <= level))
    return (degree + most) // 2 + 1 if threats.active else most + 1


def _highest_threshold(members: int, degree: int, threats: Threats, correctness: float) -> int:
    _, drops = threats.counts(members)
    level = 2.0**-correctness / members
    below = np.cumsum(_neighbour_law(members, members - drops, degree))  # P(≤ x survive)
    return int(np.argmax(below > level))


def _neighbour_law(members: int, marked: int, degree: int) -> NDArray[np.float64]:
    """P(x of `degree` neighbours are marked), x = 0 … degree: the hypergeometric law."""
    x = np.arange(degree + 1.0)
    inside = (x <= marked) & (degree - x <= members - marked)
    x = x[inside]
    log_mass = (
        _log_choose(marked, x)
        + _log_choose(members - marked, degree - x)
        - _log_choose(members, np.float64(degree))
    )
    law = np.zeros(degree + 1)
    law[inside] = np.exp(log_mass)
    return law


def _log_choose(total: int, chosen: Any) -> Any:
    return gammaln(total + 1.0) - gammaln(chosen + 1.0) - gammaln(total - chosen + 1.0)


@dataclass(frozen=True)
class Graph:
    """The neighbourhoods of one cohort.

    Attributes:
        members: Identifiers, ascending.
        degree: Even number of neighbours, or 0 for the full graph.
        beacon: 32 bytes fixed by every member's nonce; they order the ring.
    """

    members: tuple[int, ...]
    degree: int
    beacon: bytes

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """The members in the order of a hash that nobody could choose."""
        return tuple(
            sorted(
                self.members,
                key=lambda m: hashlib.sha256(self.beacon + m.to_bytes(4, "little")).digest(),
            )
        )

    @cached_property
    def _position(self) -> dict[int, int]:
        return {member: position for position, member in enumerate(self.ring)}

    @property
    def is_full(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return self.degree == 0

    def neighbours(self, member: int) -> tuple[int, ...]:
        """Those who share a mask with `member`, ascending."""
        if self.is_full:
            return tuple(other for other in self.members if other != member)
        size, half = len(self.ring), self.degree // 2
        at = self._position[member]
        steps = (*range(-half, 0), *range(1, half + 1))
        return tuple(sorted(self.ring[(at + step) % size] for step in steps))

    def holders(self, member: int) -> tuple[int, ...]:
        """Those who hold a share of `member`'s secrets, by rising x = 1, 2, ….

        On the full graph a member keeps one of its own, so that n − t may drop.
        """
        return self.members if self.is_full else self.neighbours(member)
