"""What a round is: everything members must agree on before a key is made.

The digest of these parameters enters every signature, every key and every tag. Members who
were told different models, configurations, rounds or rules therefore derive different masks,
and their sum is noise: the server cannot single out one by sending it another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sequester.core.errors import UsageError
from sequester.secagg.crypto import can_be_enrolled, digest
from sequester.secagg.wire import Reader, Writer, malformed

WORD_BITS = (16, 20, 24, 32)
MAX_LENGTH = 1 << 30
MAX_WIDE = 1 << 12
MAX_RUN_BYTES = 64
DIGEST_BYTES = 32


@dataclass(frozen=True)
class Roster:
    """The enrolled members: identifier → Ed25519 public key, agreed outside the protocol."""

    keys: Mapping[int, bytes]

    def __post_init__(self) -> None:
        """Refuse identifiers and keys that are out of range or shared."""
        if any(not 0 <= member < 1 << 32 for member in self.keys):
            raise UsageError(723, "a member's number lies between 0 and 4294967295")
        if not all(map(can_be_enrolled, self.keys.values())):
            raise UsageError(723, "an enrolled Ed25519 public key has 32 bytes and no low order")
        if len(set(self.keys.values())) != len(self.keys):
            raise UsageError(723, "two members are enrolled under one key; each needs its own")

    @cached_property
    def digest(self) -> bytes:
        """What all members compare: SHA-256 over (identifier, key), ascending."""
        rows = [member.to_bytes(4, "little") + self.keys[member] for member in sorted(self.keys)]
        return digest(b"roster", *rows)


@dataclass(frozen=True)
class Session:
    """The parameters of one round.

    Attributes:
        run: The run's name, at most 64 bytes of UTF-8.
        round_number: Counts the run's rounds.
        model: SHA-256 of the broadcast model, 32 bytes.
        config: SHA-256 of the round's configuration (clip, noise, encoding), 32 bytes.
        roster: `Roster.digest`.
        threshold: Shares that open a secret (t).
        degree: Neighbours per member (even), or 0 for the full graph.
        length: Words per vector.
        wide: 32-bit words beside them, a multiple of 4.
        bits: Width of a word: 16, 20, 24 or 32.
        min_cohort: Fewest members the masks may be made with.
        min_survivors: Fewest vectors whose sum may be opened.
        active: Whether the server is assumed to lie; False must be asked for.
    """

    run: str
    round_number: int
    model: bytes
    config: bytes
    roster: bytes
    threshold: int
    degree: int
    length: int
    wide: int
    bits: int
    min_cohort: int
    min_survivors: int
    active: bool = True

    def __post_init__(self) -> None:
        """Refuse what no round can use."""
        problem = self._problem()
        if problem:
            raise UsageError(724, f"the round's parameters do not hold together: {problem}")

    def _problem(self) -> str | None:
        if not 1 <= len(self.run.encode()) <= MAX_RUN_BYTES:
            return f"the run's name has 1 to {MAX_RUN_BYTES} bytes, got {self.run!r}"
        if any(len(d) != DIGEST_BYTES for d in (self.model, self.config, self.roster)):
            return "model, config and roster are SHA-256 digests of 32 bytes"
        if self.bits not in WORD_BITS:
            return f"bits is one of {WORD_BITS}, got {self.bits}"
        if not 1 <= self.length <= MAX_LENGTH:
            return f"length lies between 1 and {MAX_LENGTH}, got {self.length}"
        if self.wide % 4 or not 0 <= self.wide <= MAX_WIDE:
            return f"wide is a multiple of 4 up to {MAX_WIDE}, got {self.wide}"
        if self.degree % 2 or not 0 <= self.degree < 1 << 16:
            return f"degree is even, or 0 for the full graph, got {self.degree}"
        holders = self.degree or (1 << 16) - 1
        if not 2 <= self.threshold <= holders:
            return f"threshold lies between 2 and {holders}, got {self.threshold}"
        if not 2 <= self.min_survivors <= self.min_cohort <= 1 << 16:
            return (
                "2 ≤ min_survivors ≤ min_cohort ≤ 65536 must hold, got "
                f"{self.min_survivors} and {self.min_cohort}"
            )
        return None

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes."""
        name = self.run.encode()
        out = Writer().u8(len(name)).raw(name).u64(self.round_number)
        out.raw(self.model).raw(self.config).raw(self.roster)
        out.u16(self.threshold).u16(self.degree).u32(self.length).u16(self.wide)
        out.u8(self.bits).u32(self.min_cohort).u32(self.min_survivors).u8(int(self.active))
        return out.bytes()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes: the session's name everywhere else."""
        return digest(b"session", self.encoded)

    @classmethod
    def decode(cls, reader: Reader) -> Session:
        """Read the canonical bytes.

        Raises:
            VerificationError: SQ-701 for bytes that no valid session encodes to.
        """
        name = reader.raw(reader.u8())
        try:
            return cls(
                run=name.decode(),
                round_number=reader.u64(),
                model=reader.raw(DIGEST_BYTES),
                config=reader.raw(DIGEST_BYTES),
                roster=reader.raw(DIGEST_BYTES),
                threshold=reader.u16(),
                degree=reader.u16(),
                length=reader.u32(),
                wide=reader.u16(),
                bits=reader.u8(),
                min_cohort=reader.u32(),
                min_survivors=reader.u32(),
                active=reader.flag(),
            )
        except (UnicodeDecodeError, UsageError) as problem:
            raise malformed(f"an offer that no server may make ({problem})") from None
