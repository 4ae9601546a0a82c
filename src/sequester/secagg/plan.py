"""Everything about a round, derived from what is asked for, and refused if it cannot work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sequester.accounting import DiscreteGaussian, Event, SelfComposed, Skellam, epsilon
from sequester.core import canonical
from sequester.core.errors import UsageError
from sequester.secagg import graph, masks
from sequester.secagg.crypto import TAG_BYTES, digest
from sequester.secagg.encoding import WIDE, Encoding
from sequester.secagg.graph import Threats
from sequester.secagg.messages import (
    CHECK_BYTES,
    HEADER_BYTES,
    KEY_BYTES,
    NONCE_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
)
from sequester.secagg.policy import Policy
from sequester.secagg.rotation import padded_length
from sequester.secagg.session import MAX_LENGTH, MAX_RUN_BYTES, WORD_BITS, Session

PARCEL_BYTES = 4 + 2 * CHECK_BYTES + SEALED_BYTES
DELIVERY_BYTES = PARCEL_BYTES - CHECK_BYTES
# granularity = grain·clip/√d, such that ε is within 1 % of the central Gaussian's.
GRAINS = {"discrete-gaussian": 0.2, "skellam": 0.1, "none": 0.2}
WRAP_BITS = 20  # A round wraps with probability at most 2⁻²⁰.
# Seconds on one core of a 2024 server: two key agreements, two derivations, a signature
# check, a seal and an opening per neighbour; a masked byte; an encoded word.
SECONDS_PER_NEIGHBOUR = 2.4e-4
SECONDS_PER_MASKED_BYTE = 1.6e-10
SECONDS_PER_ENCODED_WORD = 2.4e-8


@dataclass(frozen=True)
class RoundPlan:
    """A round that works; made by `plan`.

    Attributes:
        members: Members invited.
        threats: Corruption, dropouts and whether the server may lie.
        degree: Neighbours per member; 0 for the full graph.
        threshold: Shares that open a secret.
        encoding: Clip, granularity, width, noise share.
        min_cohort: Fewest members that may start.
        min_survivors: Fewest vectors that may be summed.
        honest_survivors: Noise shares that are counted on: survivors less the corrupt.
        noise_multiplier: Standard deviation of that noise over the clip; 0 for none.
    """

    members: int
    threats: Threats
    degree: int
    threshold: int
    encoding: Encoding
    min_cohort: int
    min_survivors: int
    honest_survivors: int
    noise_multiplier: float

    unit = "client"
    adjacency = "zero-out"

    @property
    def neighbours(self) -> int:
        """Neighbours per member."""
        return self.degree or self.members - 1

    def event(self) -> Event:
        """One round's event when only the fewest survivors stay, which is the worst case.

        Raises:
            UsageError: SQ-727 for a plan without noise, which has no ε.
        """
        return self.event_for(self.min_survivors)

    def event_for(self, survivors: int) -> Event:
        """One round's event for the shares that arrived, less those of the assumed corrupt.

        Args:
            survivors: How many vectors were summed.
        """
        encoding = self.encoding
        corrupt, _ = self.threats.counts(self.members)
        honest = survivors - corrupt
        if not encoding.is_noisy or honest < 1:
            raise UsageError(
                727,
                "this sum carries no noise to account for; plan with a noise_multiplier, or treat "
                "what the server sees as the sum itself",
            )
        if encoding.noise == "skellam":
            variance = honest * encoding.noise_share**2
            return Skellam(variance, encoding.sensitivity, encoding.sensitivity_l1)
        return DiscreteGaussian(
            encoding.noise_share, encoding.sensitivity, encoding.words, clients=honest
        )

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """ε at `delta` for `rounds` rounds in which every member takes part."""
        return epsilon(SelfComposed(self.event(), rounds), delta, adjacency=self.adjacency)

    def config_digest(self) -> bytes:
        """What members compare and bind into every key: the encoding, 32 bytes."""
        return digest(b"encoding", canonical.dumps(self.facts()["encoding"]).encode())

    def session(self, run: str, round_number: int, *, model: bytes, roster: bytes) -> Session:
        """The parameters of one round under this plan."""
        encoding = self.encoding
        return Session(
            run=run,
            round_number=round_number,
            model=model,
            config=self.config_digest(),
            roster=roster,
            threshold=self.threshold,
            degree=self.degree,
            length=encoding.words,
            wide=WIDE,
            bits=encoding.bits,
            min_cohort=self.min_cohort,
            min_survivors=self.min_survivors,
            active=self.threats.active,
        )

    def policy(self) -> Policy:
        """The client's limits that this plan meets exactly."""
        return Policy(
            min_cohort=max(self.min_cohort, 2),
            max_dropout=self.threats.dropout,
            corrupt=self.threats.corrupt,
            allow_semi_honest=not self.threats.active,
            corrupt_members=self.threats.counts(self.members)[0],
            min_survivors=self.min_survivors,
            threshold=self.threshold,
            degree=self.degree,
        )

    @property
    def upload_bytes(self) -> int:
        """Bytes one member sends in a round in which everybody stays."""
        peers = self.neighbours
        advert = HEADER_BYTES + 4 + 2 * KEY_BYTES + SIGNATURE_BYTES + NONCE_BYTES
        shares = HEADER_BYTES + 8 + KEY_BYTES + CHECK_BYTES + peers * PARCEL_BYTES
        vector = masks.packed_bytes(self.encoding.words, WIDE, self.encoding.bits)
        masked = HEADER_BYTES + 4 + vector
        confirm = HEADER_BYTES + 8 + peers * (4 + TAG_BYTES) if self.threats.active else 0
        held = peers + (self.degree == 0)
        reveal = HEADER_BYTES + 16 + held * (4 + SHARE_BYTES)
        return advert + shares + masked + confirm + reveal

    @property
    def download_bytes(self) -> int:
        """Bytes one member receives in a round, without the model (run names of 64 bytes)."""
        peers, members = self.neighbours, self.members
        offer = HEADER_BYTES + 125 + MAX_RUN_BYTES
        cohort = HEADER_BYTES + 8 + members * (4 + NONCE_BYTES)
        cohort += peers * (4 + 2 * KEY_BYTES + SIGNATURE_BYTES)
        sealed = HEADER_BYTES + 4 + peers * DELIVERY_BYTES
        survivors = HEADER_BYTES + 4 + (members + 7) // 8
        confirmed = HEADER_BYTES + 4 + peers * (4 + TAG_BYTES) if self.threats.active else 0
        return offer + cohort + sealed + survivors + confirmed

    @property
    def client_seconds(self) -> float:
        """Rough CPU time of one member."""
        width = 2 if self.encoding.bits == 16 else 4
        masked = (self.neighbours + 1) * self.encoding.words * width * SECONDS_PER_MASKED_BYTE
        encoded = self.encoding.words * SECONDS_PER_ENCODED_WORD
        return self.neighbours * SECONDS_PER_NEIGHBOUR + masked + encoded

    def facts(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        encoding = self.encoding
        return {
            "members": self.members,
            "graph": "full" if self.degree == 0 else "ring",
            "neighbours": self.neighbours,
            "threshold": self.threshold,
            "active": self.threats.active,
            "corrupt": self.threats.corrupt,
            "dropout": self.threats.dropout,
            "min_cohort": self.min_cohort,
            "min_survivors": self.min_survivors,
            "honest_survivors": self.honest_survivors,
            "encoding": {
                "length": encoding.length,
                "words": encoding.words,
                "bits": encoding.bits,
                "clip": encoding.clip,
                "granularity": encoding.granularity,
                "noise": encoding.noise,
                "noise_share": encoding.noise_share,
            },
            "noise_multiplier": self.noise_multiplier,
            "upload_bytes": self.upload_bytes,
            "download_bytes": self.download_bytes,
            "client_seconds": self.client_seconds,
        }


def plan(
    members: int,
    length: int,
    *,
    clip: float = 1.0,
    noise_multiplier: float = 0.0,
    noise: str = "discrete-gaussian",
    dropout: float = 0.1,
    corrupt: float = 0.1,
    active: bool = True,
    full_graph: bool | None = None,
    bits: int | None = None,
    granularity: float | None = None,
) -> RoundPlan:
    """Plan a round of secure aggregation.

    Args:
        members: Members invited.
        length: Coordinates of an update.
        clip: L2 bound of one member's update.
        noise_multiplier: Noise of the fewest honest survivors over `clip`; 0 for none.
        noise: "discrete-gaussian" or "skellam".
        dropout: Largest fraction of members who vanish.
        corrupt: Largest fraction who work with the server; their noise does not count.
        active: Whether the server may lie.
        full_graph: Everybody a neighbour of everybody; None decides (up to 50 members, or
            where no smaller neighbourhood is safe).
        bits: Width of a word: 16, 20, 24 or 32; None takes the smallest that fits.
        granularity: The grid's step; None takes `GRAINS` of clip/√d (with noise).

    Raises:
        UsageError: SQ-717 no safe graph, SQ-718 a sum that would not fit, SQ-719 numbers out
            of range.
    """
    threats = Threats(corrupt, dropout, active)
    _check_sizes(members, length, bits)
    _check_reals(clip, noise_multiplier, granularity)
    degree, threshold = _graph(members, threats, full_graph)
    corrupted, drops = threats.counts(members)
    survivors = members - drops
    honest = survivors - corrupted
    if honest < 2 or survivors < 2:
        raise UsageError(
            717,
            f"{honest} honest members would remain of {members}; a sum over fewer than two hides "
            "nobody. Enlarge the cohort or lower dropout and corrupt",
        )
    noisy = noise_multiplier > 0
    words = padded_length(length) if noisy else length
    step = granularity or (
        _grain(noise) * clip / math.sqrt(words) if noisy else _plain_step(members, clip, bits)
    )
    share = noise_multiplier * clip / (step * math.sqrt(honest))
    width = _width(members, words, clip, step, share, bits)
    encoding = Encoding(length, clip, step, width, noise if noisy else "none", share)
    return RoundPlan(
        members=members,
        threats=threats,
        degree=degree,
        threshold=threshold,
        encoding=encoding,
        min_cohort=_fewest(members, survivors, degree, threshold, threats),
        min_survivors=survivors,
        honest_survivors=honest,
        noise_multiplier=noise_multiplier,
    )


def _grain(noise: str) -> float:
    if noise not in GRAINS:
        raise UsageError(719, f"noise is one of {tuple(GRAINS)}, got {noise!r}")
    return GRAINS[noise]


def _check_sizes(members: int, length: int, bits: int | None) -> None:
    if not (2 <= members <= 1 << 16 and 1 <= length <= MAX_LENGTH):
        raise UsageError(
            719,
            f"members lies between 2 and 65536 and length between 1 and {MAX_LENGTH}, got "
            f"{members} and {length}",
        )
    if bits is not None and bits not in WORD_BITS:
        raise UsageError(719, f"bits is one of {WORD_BITS}, got {bits}")


def _check_reals(clip: float, noise_multiplier: float, granularity: float | None) -> None:
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise UsageError(719, f"noise_multiplier must be ≥ 0, got {noise_multiplier}")
    for name, value in (("clip", clip), ("granularity", granularity)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(719, f"{name} must be a finite number > 0, got {value}")


def _graph(members: int, threats: Threats, full: bool | None) -> tuple[int, int]:
    if full or (full is None and members <= graph.FULL_GRAPH_UP_TO):
        return 0, graph.full_threshold(members, threats)
    security = graph.SECURITY_BITS + (graph.GRINDING_BITS if threats.active else 0)
    try:
        return graph.sparse_parameters(members, threats, security=security)
    except UsageError:
        if full is False:
            raise
        return 0, graph.full_threshold(members, threats)


def _fewest(members: int, survivors: int, degree: int, threshold: int, threats: Threats) -> int:
    """The smallest cohort, down to the survivors, for which the graph stays safe."""
    security = graph.SECURITY_BITS + (graph.GRINDING_BITS if threats.active else 0)
    threats = threats.among(members)
    fewest = members
    while fewest > survivors and graph.is_safe(fewest - 1, degree, threshold, threats, security):
        fewest -= 1
    return fewest


def _plain_step(members: int, clip: float, bits: int | None) -> float:
    """The finest grid on which even aligned sums of everybody fit."""
    return 2.0 * members * clip / (2.0 ** (bits or 32) - 2.0 * members - 2)


def _width(
    members: int, words: int, clip: float, step: float, share: float, bits: int | None
) -> int:
    """The word width, large enough for the largest coordinate of the sum.

    With noise: coordinates of a rotated sum are sub-Gaussian with the variance below even
    if all members send the same vector; a union bound over coordinates makes a wrap rarer
    than 2⁻²⁰. Without: every coordinate is at most members·clip.
    """
    if share > 0:
        variance = (members * clip) ** 2 / words + members * step**2 / 4
        variance += members * (share * step) ** 2
        tail = math.sqrt(2 * math.log(2 * words * 2.0**WRAP_BITS))
        largest = tail * math.sqrt(variance) / step
    else:
        largest = members * (clip / step + 1)
    needed = math.log2(2 * largest + 2)
    for width in WORD_BITS if bits is None else (bits,):
        if needed <= width:
            return width
    fits = [width for width in WORD_BITS if needed <= width]
    advice = f"use bits={fits[0]}" if fits else "use fewer members or a coarser granularity"
    raise UsageError(
        718,
        f"the sum needs {needed:.1f} bits per coordinate, got bits={bits or max(WORD_BITS)}; "
        f"{advice}",
    )
