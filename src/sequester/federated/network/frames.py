"""What travels between machines: one frame of bytes, checked whole before it is read.

    "SQF1" | digest, 16 bytes | header length, 4 bytes | header, JSON | tensors, safetensors

The digest is BLAKE2b of everything after it, keyed with the *badge* that node and server agreed on
when the node enrolled: whoever did not see that one exchange can alter or forge nothing, even
where TLS ends before our program does. A truncated, altered or foreign frame is refused before a
number in it is looked at. The *ticket* names a question; its answer repeats it. Nothing is
compressed, nothing is allocated by a length that the sender claims, and no frame can run code.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sequester.core.errors import UsageError
from sequester.federated.messages import Reason, Rejection

MAGIC = b"SQF1"
LIMIT = 256 * 1024 * 1024
"""Bytes of one frame; what is more is split by the server, or refused with its size."""
MOST_ENDED = 64
"""Runs that one message may end."""
_HEADER_LIMIT = 4 * 1024 * 1024
_TENSOR_TABLE_LIMIT = 16 * 1024
_DIGEST = 16
_START = struct.Struct("<4s16sI")
Arrays = Mapping[str, NDArray[Any]]


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A frame's header."""


class Enrol(Frame, frozen=True, tag="enrol"):
    """Server → node: may this study run on your people?

    Attributes:
        run: The run's name.
        study: Its study as TOML; the node reads its own file, whatever `data.source` says.
        begun: What the run decided at its start, as JSON: rounds, noise, mechanism.
        layout: Digest of the model's layout.
        version: The server's version of sequester.
        limit: Bytes of the largest message that may come.
        hold: Whether to charge and read, where that is not done yet; else only to say whether
            anything speaks against the run that can be known without either.
        ticket: Names this question.
    """

    run: str
    study: str
    begun: str
    layout: str
    version: str
    limit: int
    hold: bool
    ticket: str


class Willing(Frame, frozen=True, tag="willing"):
    """Node → server: nothing speaks against the run that is known without charge or people.

    Attributes:
        run: The run's name.
        site: The node's name of its site.
        member: As in `Enrolled`; by it a node is known again.
        ticket: As asked.
    """

    run: str
    site: str
    member: str
    ticket: str


class Enrolled(Frame, frozen=True, tag="enrolled"):
    """Node → server: yes, as these.

    Attributes:
        run: The run's name.
        site: The node's name of its site.
        clients: Clients here: 1 for a site, one for each person where persons are clients.
        fingerprint: Of the data, under a key that never leaves the node.
        badge: Secret that keys the digests from here on, and by which the node is known again.
        member: Public key under which the node takes part in secure sums, hexadecimal.
        listed: Whether the node accepts only members' keys that its holder wrote down.
        ticket: As asked.
    """

    run: str
    site: str
    clients: int
    fingerprint: str
    badge: str
    member: str
    listed: bool
    ticket: str


class Request(Frame, frozen=True):
    """What every question about a round says.

    Attributes:
        run: The run's name.
        round: From 0.
        version: `version_of` the model.
        layout: Digest of the layout of updates.
        clip: The bound in force.
    """

    run: str
    round: int
    version: str
    layout: str
    clip: float


class Ask(Request, frozen=True, tag="ask"):
    """Server → node: train these clients from this model. Tensors: `model`, `correction`.

    Attributes:
        first: Position of the node's first client in the whole population.
        clients: Positions of those asked.
        nonces: One for each.
        last: The last round whose update of each entered a sum, −1 for none: what a client kept
            of later ones is forgotten.
        ticket: Names this question.
    """

    first: int
    clients: tuple[int, ...]
    nonces: tuple[str, ...]
    last: tuple[int, ...]
    ticket: str


class Answers(Frame, frozen=True, tag="answers"):
    """Node → server: what changed. Tensors: `deltas`, or `codes` where updates are compressed.

    Attributes:
        run: As asked; so are `round`, `version` and `ticket`.
        round: See `run`.
        version: See `run`.
        clients: Those asked, in order.
        nonces: Theirs.
        reasons: Empty for an update that follows; else why there is none.
        steps: Local steps of each update that follows; 1 with a guarantee.
        weights: Windows of each update that follows; with a guarantee 1, or at most the cap.
        sizes: Bytes of each compressed update that follows.
        ticket: See `run`.
    """

    run: str
    round: int
    version: str
    clients: tuple[int, ...]
    nonces: tuple[str, ...]
    reasons: tuple[str, ...]
    steps: tuple[int, ...]
    weights: tuple[float, ...]
    sizes: tuple[int, ...]
    ticket: str


class Step(Request, frozen=True, tag="step"):
    """Server → node: the next message of a secure sum. Tensors: `message`; `model` at first.

    Attributes:
        member: The node's place among the members.
        members: Every member's public key, in hexadecimal digits; the same in every round.
        ticket: Names this question.
    """

    member: int
    members: tuple[str, ...]
    ticket: str


class Stepped(Frame, frozen=True, tag="stepped"):
    """Node → server: its message of a secure sum. Tensors: `message`."""

    run: str
    round: int
    ticket: str


class Finish(Frame, frozen=True, tag="finish"):
    """Server → node: the run is over after so many rounds; settle your ledger."""

    run: str
    rounds: int
    ticket: str


class Finished(Frame, frozen=True, tag="finished"):
    """Node → server: settled."""

    run: str
    site: str
    ticket: str


class Release(Frame, frozen=True, tag="release"):
    """Server → node: these runs ended before their first round; give back what they hold.

    No badge keys it: it also ends a run whose badge was lost on its way to the server. All that it
    can do is to end runs of which nothing was answered here.

    Attributes:
        run: The run that the server is at now.
        ended: Names of runs.
        ticket: Names this question.
    """

    run: str
    ended: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_ENDED)]
    ticket: str


class Released(Frame, frozen=True, tag="released"):
    """Node → server: done, and no round of them will be answered here."""

    run: str
    site: str
    ticket: str


class Refused(Frame, frozen=True, tag="refused"):
    """Node → server: no, and by which number; the words name no value of a person's record.

    Attributes:
        run: Empty if the question could not be read.
        enrolled: Whether the digest is keyed with a badge.
        code: Of the error.
        message: Its words.
        ticket: Empty if the question could not be read.
    """

    run: str
    enrolled: bool
    code: int
    message: str
    ticket: str


Open = Enrol | Willing | Enrolled | Release | Released
"""What no badge keys."""
Header = Open | Ask | Answers | Step | Stepped | Finish | Finished | Refused


def seal(
    header: Header, tensors: Arrays | None = None, *, badge: str = "", limit: int = LIMIT
) -> bytes:
    """The frame's bytes.

    Args:
        header: What it is.
        tensors: What follows.
        badge: The node's; empty before it has one.
        limit: Bytes.

    Raises:
        UsageError: SQ-630 if it is larger than `limit`; it says both sizes.
    """
    text = msgspec.json.encode(header)
    body = save({k: np.ascontiguousarray(v) for k, v in tensors.items()}) if tensors else b""
    size = _START.size + len(text) + len(body)
    if size > limit or len(text) > _HEADER_LIMIT:
        raise UsageError(
            630,
            f"this message has {size} bytes ({len(text)} of them its header), at most {limit} "
            f"({_HEADER_LIMIT}) are sent; use a smaller model, or raise the limit on both sides",
        )
    rest = len(text).to_bytes(4, "little") + text + body
    return MAGIC + _digest(rest, badge) + rest


def unseal(
    raw: bytes, badge_of: Callable[[Header], str], *, limit: int = LIMIT
) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Header and tensors of a frame whose digest holds.

    Args:
        raw: The frame.
        badge_of: The badge that must have made it, by what it says it is.
        limit: Bytes.

    Raises:
        Rejection: `too-large` before anything is allocated, `malformed` for everything else.
    """
    if len(raw) > limit:
        raise Rejection(Reason.TOO_LARGE)
    if len(raw) < _START.size:
        raise Rejection(Reason.MALFORMED)
    magic, digest, length = _START.unpack_from(raw)
    if magic != MAGIC or length > min(_HEADER_LIMIT, len(raw) - _START.size):
        raise Rejection(Reason.MALFORMED)
    text = raw[_START.size : _START.size + length]
    try:
        header: Header = msgspec.json.decode(text, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Rejection(Reason.MALFORMED) from None
    if not hmac.compare_digest(_digest(raw[4 + _DIGEST :], badge_of(header)), digest):
        raise Rejection(Reason.MALFORMED)
    return header, _tensors(raw[_START.size + length :])


def _tensors(body: bytes) -> dict[str, NDArray[Any]]:
    if not body:
        return {}
    # A table of a million tensors is refused before it is parsed.
    if len(body) < 8 or int.from_bytes(body[:8], "little") > _TENSOR_TABLE_LIMIT:
        raise Rejection(Reason.MALFORMED)
    try:
        return dict(load(body))
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise Rejection(Reason.MALFORMED) from None


def _digest(rest: bytes, badge: str) -> bytes:
    key = hashlib.sha256(badge.encode()).digest()
    return hashlib.blake2b(rest, key=key, digest_size=_DIGEST).digest()
