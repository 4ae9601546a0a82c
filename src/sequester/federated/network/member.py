"""A node's part in a secure sum, which outlives the process that answers each of its messages.

The protocol's client (`secagg.Client`) is deterministic once its secret of the round is chosen. So
the node keeps that secret, the model and the server's messages so far; whoever answers the next
message replays them. A message is on disk before its answer leaves, and the client gives no second
answer in the same place, whatever process it lives in. The answer is on disk too: the same message
again gets these bytes, and nobody is trained on twice, where other threads would round otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sequester import secagg
from sequester.accounting import to_json
from sequester.core.errors import SequesterError, UsageError
from sequester.core.files import write_atomic
from sequester.core.rng import fresh_key
from sequester.federated.clients import part_of
from sequester.federated.gate import Accepted
from sequester.federated.masking import Masking, Ticket
from sequester.federated.messages import Vector
from sequester.federated.network.frames import Step
from sequester.federated.network.memory import SECURE
from sequester.federated.settings import Federated
from sequester.federated.shares import Sums
from sequester.mechanism import Plan
from sequester.secagg.client import HARMLESS, Stage
from sequester.secagg.encoding import within_words, words_of
from sequester.secagg.masks import Words
from sequester.training.resumption import Begun

_LOG = logging.getLogger("sequester.node")
_MEMBERS = "members.json"


@dataclass
class Transcript:
    """One round so far.

    Attributes:
        round: From 0.
        question: Digest of what the round is about.
        secret: From which this round's keys follow.
        model: What was received.
        messages: The server's, in order.
        answers: This node's, by the message's place.
    """

    round: int
    question: str
    secret: bytes = field(repr=False)
    model: Vector
    messages: list[bytes] = field(repr=False)
    answers: dict[int, bytes] = field(default_factory=dict, repr=False)

    def save(self, folder: Path) -> None:
        """Keep it; the last round's is overwritten."""
        about = {"round": str(self.round), "question": self.question}
        arrays: dict[str, NDArray[Any]] = {
            "model": self.model,
            "secret": np.frombuffer(self.secret, np.uint8),
        }
        for place, message in enumerate(self.messages):
            arrays[f"message.{place}"] = np.frombuffer(message, np.uint8)
        for place, answer in self.answers.items():
            arrays[f"answer.{place}"] = np.frombuffer(answer, np.uint8)
        write_atomic(folder / SECURE, save(arrays, metadata=about), private=True)

    @classmethod
    def load(cls, folder: Path) -> Transcript | None:
        """The round that was begun last.

        Raises:
            UsageError: SQ-637 if it is damaged.
        """
        file = folder / SECURE
        if not file.exists():
            return None
        raw = file.read_bytes()
        try:
            arrays = load(raw)
            about = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
            count = sum(name.startswith("message.") for name in arrays)
            return cls(
                int(about["round"]),
                about["question"],
                arrays["secret"].tobytes(),
                arrays["model"],
                [arrays[f"message.{place}"].tobytes() for place in range(count)],
                {int(place): a.tobytes() for place, a in part_of(arrays, "answer").items()},
            )
        except (SafetensorError, KeyError, ValueError):
            raise UsageError(637, "what this node kept of a secure sum is damaged") from None


def sums_for(settings: Federated, members: int, size: int, population: int) -> Sums | None:
    """What sites add up in secret, from public numbers alone; None in clear."""
    if settings.secagg is None:
        return None
    return Sums(settings.secagg, members=members, size=size, sites=True, most=population)


def masking_for(sums: Sums, begun: Begun, key: bytes) -> Masking:
    """The arithmetic of a run's secure sums, as every member and the server compute it.

    Raises:
        UsageError: SQ-641 for decisions that claim other noise shares than the members add.
    """
    multiplier = begun.noise_multiplier if sums.noisy else 0.0
    mechanism = to_json(sums.event(multiplier)) if sums.noisy else ""
    if mechanism != begun.mechanism:
        raise UsageError(641, "the run's decisions count on other noise shares than ours")
    return Masking(sums, multiplier=multiplier, run=begun.run, key=key, full=sums.size)


@dataclass(frozen=True)
class Member:
    """A node in one run's secure sums.

    Attributes:
        folder: The run's part of the node's folder.
        masking: The run's arithmetic.
        identity: The node's signing key.
        plan: The run's.
    """

    folder: Path
    masking: Masking
    identity: secagg.Identity
    plan: Plan

    def pin(self, members: tuple[str, ...]) -> secagg.Roster:
        """The other members' keys: those of the first time, ever after.

        Raises:
            UsageError: SQ-647 if they changed, or the node's own is not in its place.
        """
        file = self.folder / _MEMBERS
        if not file.exists():
            write_atomic(file, msgspec.json.encode(members), private=True)
        try:
            known = msgspec.json.decode(file.read_bytes(), type=tuple[str, ...])
            keys = {place: bytes.fromhex(key) for place, key in enumerate(members)}
        except (msgspec.MsgspecError, ValueError):
            raise UsageError(637, "the list of a secure sum's members is damaged") from None
        if known != members or keys.get(self.identity.member) != self.identity.public:
            raise UsageError(
                647, "the members of this run's secure sums are not those of its first round"
            )
        return secagg.Roster(keys)

    def answer(
        self,
        step: Step,
        question: str,
        message: bytes,
        model: Vector | None,
        train: Callable[[Vector], Vector],
    ) -> bytes:
        """The protocol's answer to `message`.

        Args:
            step: What round it is about.
            question: Its digest.
            message: The protocol's.
            model: Received with the round's first message.
            train: From the model to the site's exact sum, float64.

        Raises:
            UsageError: SQ-641 without a model at first; SQ-7xx what the protocol refuses.
        """
        roster = self.pin(step.members)
        kept = Transcript.load(self.folder)
        if kept is None or (kept.round, kept.question) != (step.round, question):
            if model is None:
                raise UsageError(641, "a secure sum begins with the model")
            kept = Transcript(step.round, question, fresh_key(), model, [])
        new = message not in kept.messages
        if new:
            kept.messages.append(message)
            kept.save(self.folder)
        place = kept.messages.index(message)
        if place in kept.answers:
            return kept.answers[place]
        try:
            answer = self._replay(kept, message, step, roster, train)
        except SequesterError as refusal:
            if new and refusal.code in HARMLESS:  # it leaves the client where it was
                kept.messages.remove(message)
                kept.save(self.folder)
            raise
        kept.answers[place] = answer
        kept.save(self.folder)
        return answer

    def _replay(
        self,
        kept: Transcript,
        message: bytes,
        step: Step,
        roster: secagg.Roster,
        train: Callable[[Vector], Vector],
    ) -> bytes:
        masking = self.masking
        counted = self.plan.adaptive is not None
        ticket = Ticket(step.round, step.version, step.clip, private=True, counted=counted)
        plan = masking.sums.round_plan(step.clip, masking.multiplier)
        client = secagg.Client(
            self.identity,
            roster,
            plan.policy(),
            model=masking.context(ticket).model,
            config=plan.config_digest(),
            secret=kept.secret,
        )
        for place, earlier in enumerate(kept.messages):
            if earlier != message and place in kept.answers:
                # What another process answered it has checked: no signature again, no vector.
                client.retrace(earlier, kept.answers[place])
                continue
            words = None
            if client.stage is Stage.SEALED:
                # Only the message that asks for the vector needs it; what was not answered then is
                # not sent now.
                size = plan.encoding.words
                words = Words.zeros(size, client.session.wide, plan.encoding.bits)
                if earlier == message:
                    words = self._words(ticket, plan, kept.model, train)
            answer = client.answer(earlier, words)
            if client.doubts:
                _LOG.warning("SQ-711 %s", f"members {client.doubts} or the server spoil the round")
            if earlier == message:
                return answer
        raise UsageError(641, "this message has no place in the round")

    def _words(
        self,
        ticket: Ticket,
        plan: secagg.RoundPlan,
        model: Vector,
        train: Callable[[Vector], Vector],
    ) -> Words:
        """The site's exact sum on the plan's grid, with its noise share."""
        masking, member = self.masking, self.identity.member
        own = Accepted(member, train(model), 1, 1.0)
        vectors = {member: masking.integers(ticket, plan, [own], np.ones(1))[member]}
        where = masking.context(ticket)
        if masking.sums.noisy:
            masking.add_shares(vectors, where)
        whole = within_words(vectors[member])
        return words_of(whole, plan.encoding.bits, rotation=where.rotation())
