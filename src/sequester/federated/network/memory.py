"""What a node remembers of a run, in its own folder, through any restart.

    runs/<run>/enrolled.json         what was agreed when it enrolled
    runs/<run>/round.json            the last round answered, and what was asked in it
    runs/<run>/clients.safetensors   each client's residual and own part
    runs/<run>/secure.safetensors    the present secure sum; see `member`

A round is answered for one model only: *before* an answer leaves, its round and what was asked
are on disk, and a later question about the same round with another model is refused, so that no
server can draw two answers from one set of coins or one draw of noise. What each client was asked
along with the model (corrections, what it kept, who trains beside it) is noted likewise. The same
question again gets the same answer.

What a client keeps moves on only when its update entered the sum. Until the server says so, the
new state waits beside the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sequester.core.errors import UsageError
from sequester.core.files import check_name, sweep, write_atomic
from sequester.core.rng import KEY_BYTES, fresh_key
from sequester.federated.network.frames import Ask, Step

_KEEPS = ("kept", "residual")
SECURE = "secure.safetensors"
OVER = "over"
Arrays = dict[str, NDArray[Any]]
_Kept = TypeVar("_Kept")


class Agreed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node agreed to.

    Attributes:
        site: The node's name then: its coins are drawn under it.
        study: As TOML.
        begun: What the run decided at its start, as JSON.
        layout: Digest of the layout of updates.
        clients: Clients here.
        fingerprint: Of the data, under the node's key.
        badge: Keys the digests of frames.
    """

    site: str
    study: str
    begun: str
    layout: str
    clients: int
    fingerprint: str
    badge: str


class Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last round answered.

    Attributes:
        round: From 0; −1 before the first, and the run's rounds once it is over.
        question: Digest of what was asked, or `OVER`.
        asked: Digest of the part of the question that each client was asked in.
        ran: Rounds to be charged, once the run is over; 0 for one that was given back.
        place: This site's place among all clients or members; the same in every round.
    """

    round: int
    question: str
    asked: dict[int, str] = {}
    ran: int = 0
    place: int = 0

    @property
    def over(self) -> bool:
        """Whether no round is answered any more."""
        return self.question == OVER


class Memory:
    """One run's part of a node's folder."""

    def __init__(self, folder: Path, run: str) -> None:
        """Nothing is made before something is to be kept.

        Raises:
            UsageError: SQ-901 for a run's name that could leave the folder.
        """
        self.folder = folder / "runs" / check_name(run, "a run's name")

    def agreed(self) -> Agreed | None:
        """What was agreed, None for a run that never enrolled here."""
        return self._read("enrolled.json", Agreed)

    @property
    def lost(self) -> bool:
        """Whether nothing here knows of the run, not even that it was about to be charged."""
        return self.answered() is None

    def open(self) -> None:
        """Begin to remember the run, as one of which no round was answered; before it is charged.

        So where the ledger knows of a run and nothing here says which rounds were answered, that
        was lost.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.lost:
            self._note(Answered(-1, ""))

    def agree(self, agreed: Agreed) -> None:
        """Keep what was agreed."""
        write_atomic(self.folder / "enrolled.json", msgspec.json.encode(agreed), private=True)

    def answered(self) -> Answered | None:
        """The last round answered, None where that was lost, or never began to be remembered."""
        return self._read("round.json", Answered)

    def open_round(self, ask: Ask | Step, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Note the round, and what each client is asked in it, before anything about it leaves.

        Args:
            ask: The question.
            tensors: What came with it.

        Raises:
            UsageError: SQ-636 for a round that lies behind, or was answered for another model, or
                a client that was asked otherwise in it; SQ-641 for another place than before:
                clients would change numbers, and one would go on with what another one kept.
        """
        sweep(self.folder)  # what a process left that was killed while it wrote
        question, last, place = question_of(ask), self.answered(), place_of(ask)
        asked = dict.fromkeys(ask.clients, _part_of(ask, tensors)) if isinstance(ask, Ask) else {}
        if last is not None and (last.over or ask.round <= last.round):
            other = any(last.asked.get(client, part) != part for client, part in asked.items())
            if last.over or ask.round < last.round or question != last.question or other:
                raise UsageError(
                    636,
                    f"round {ask.round} is over here (the last one was {last.round}), or was "
                    "asked with another model, correction or group; a round is answered once",
                )
            asked = last.asked | asked
        if place < 0 or (last is not None and last.round >= 0 and place != last.place):
            raise UsageError(641, "this site's place among all clients is not that of before")
        self._note(Answered(ask.round, question, asked, place=place))

    def close(self, steps: int, ran: int) -> None:
        """The run is over: no round of it is answered any more, and secrets are forgotten.

        Args:
            steps: Rounds agreed to.
            ran: Rounds to be charged, also if a crash comes before they are.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._note(Answered(steps, OVER, ran=ran))
        sweep(self.folder)
        (self.folder / SECURE).unlink(missing_ok=True)

    def clients(self, ask: Ask) -> Arrays:
        """What the clients kept, with updates that entered a sum moved on and others undone.

        Args:
            ask: Says for each client which update was the last in a sum.

        Raises:
            UsageError: SQ-637 for a damaged file.
        """
        arrays, rounds = self._clients()
        last = dict(zip(ask.clients, ask.last, strict=True))
        for client, number in list(rounds.items()):
            if client not in last:
                continue
            for keep in _KEEPS:
                waiting = arrays.pop(f"{keep}.{client}.waiting", None)
                # An update of this very round is being made anew, from where it began.
                if waiting is not None and last[client] == number < ask.round:
                    arrays[f"{keep}.{client}"] = waiting
            del rounds[client]
        self._write(arrays, rounds)
        return {name: value for name, value in arrays.items() if not name.endswith(".waiting")}

    def keep(self, ask: Ask, after: Arrays) -> None:
        """Let what the asked clients would keep now wait for the server's word.

        Args:
            ask: The question.
            after: `kept.<client>` and `residual.<client>` after training.
        """
        arrays, rounds = self._clients()
        for client in ask.clients:
            waiting = {
                f"{keep}.{client}.waiting": after[f"{keep}.{client}"]
                for keep in _KEEPS
                if f"{keep}.{client}" in after
            }
            if waiting:
                arrays |= waiting
                rounds[client] = ask.round
        self._write(arrays, rounds)

    def _clients(self) -> tuple[Arrays, dict[int, int]]:
        file = self.folder / "clients.safetensors"
        if not file.exists():
            return {}, {}
        raw = file.read_bytes()
        try:
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            rounds = msgspec.json.decode(header["__metadata__"]["rounds"], type=dict[int, int])
            return dict(load(raw)), rounds
        except (SafetensorError, KeyError, ValueError, msgspec.MsgspecError):
            raise UsageError(637, "what this node kept of its clients is damaged") from None

    def _write(self, arrays: Arrays, rounds: dict[int, int]) -> None:
        file = self.folder / "clients.safetensors"
        if not arrays and not file.exists():
            return
        plain = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        raw = save(plain, metadata={"rounds": msgspec.json.encode(rounds).decode()})
        write_atomic(file, raw, private=True)

    def _note(self, answered: Answered) -> None:
        if answered != self.answered():
            raw = msgspec.json.encode(answered)
            write_atomic(self.folder / "round.json", raw, private=True)

    def _read(self, name: str, kind: type[_Kept]) -> _Kept | None:
        file = self.folder / name
        if not file.exists():
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except msgspec.MsgspecError:
            raise UsageError(637, f"this node's {name} is damaged") from None


def place_of(ask: Ask | Step) -> int:
    """The site's place among all clients, or among the members of a secure sum."""
    return ask.first if isinstance(ask, Ask) else ask.member


def question_of(ask: Ask | Step) -> str:
    """What makes two questions about a round the same: run, round, model, layout, bound, place."""
    text = f"{ask.run}|{ask.round}|{ask.version}|{ask.layout}|{ask.clip!r}|{place_of(ask)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _part_of(ask: Ask, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Digest of all else that decides what these clients answer; their noise must meet it once."""
    made = hashlib.sha256(repr((ask.clients, ask.last)).encode())
    if "correction" in tensors:
        made.update(np.ascontiguousarray(tensors["correction"]).tobytes())
    return made.hexdigest()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes and threads of this node waiting: a round is opened by one question."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "node.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def node_key(folder: Path) -> bytes:
    """The node's secret: of its coins, its noise, its fingerprints. Made once.

    Raises:
        UsageError: SQ-637 if the file was altered.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "node.key"
    if not file.exists():
        write_atomic(file, fresh_key(), private=True)
    key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise UsageError(637, "this node's key is damaged; noise under another would not match")
    return key
