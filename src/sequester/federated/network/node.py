"""A node's office: bytes in, bytes out. One question trains all of the site's sampled people.

Order of every question: the frame is checked, then the policy, then the ledger, then the round
is noted on disk, and only then are people's records trained on.
"""

from __future__ import annotations

import logging
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from sequester import __version__
from sequester.core.errors import SequesterError, UsageError
from sequester.core.rng import key_from_test_seed
from sequester.federated import round as machine
from sequester.federated.algorithms import ServerState
from sequester.federated.clients import Devices, Silos
from sequester.federated.messages import Instruction, Layout, Rejection, Update, version_of
from sequester.federated.network import frames
from sequester.federated.network.frames import Answers, Arrays, Ask, Enrol, Finish, Header, seal
from sequester.federated.network.memory import Agreed, Memory, node_key
from sequester.federated.network.permit import Permit
from sequester.federated.network.site import (
    COUNTS,
    Corrected,
    Place,
    Recorder,
    by_people,
    check_networked,
    crowd_of,
    layout_for,
)
from sequester.federated.settings import settings_of
from sequester.mechanism import Plan
from sequester.training.dataset import Prepared, prepare, shape_of
from sequester.training.resumption import Begun
from sequester.training.session import derive
from sequester.training.sources import read_people
from sequester.training.study import Study
from sequester.training.study_file import decode

_LOG = logging.getLogger("sequester.node")
_TELLABLE = frozenset((*range(300, 350), *range(600, 700)))
"""Refusals whose words name no column, file or line of the holder's; others send their number."""


@dataclass(frozen=True)
class Terms:
    """What a study amounts to at this node.

    Attributes:
        study: On this node's own file.
        begun: What the run decided at its start.
        layout: Of updates.
        plan: None without privacy.
        persons: Whether clients are people.
    """

    study: Study
    begun: Begun
    layout: Layout
    plan: Plan | None
    persons: bool


@dataclass
class Node:
    """One site.

    Attributes:
        site: Its name; the same for the life of the node.
        data: The file that holds its people; `policy.toml` lies beside it.
        folder: What the node keeps: key, ledger, runs.
        limit: Bytes of a frame.
    """

    site: str
    data: Path
    folder: Path
    limit: int = frames.LIMIT
    _read: tuple[str, Prepared, str] | None = field(default=None, init=False)
    _built: tuple[Place, Devices | Silos] | None = field(default=None, init=False)
    _terms: tuple[str, str, Terms] | None = field(default=None, init=False)

    def answer(self, raw: bytes) -> bytes:
        """The frame that answers `raw`; a refusal is a frame too."""
        ticket, run, badge = "", "", ""
        try:
            header, tensors = frames.unseal(raw, self._badge, limit=self.limit)
            ticket, run, badge = header.ticket, header.run, self._badge(header)
            made, arrays = self._answer(header, tensors)
            badge = self._badge(made)
            return seal(made, arrays, badge=badge, limit=self.limit)
        except Rejection as rejection:
            refusal = UsageError(631, f"this node could not read the message: {rejection.reason}")
        except SequesterError as error:
            refusal = error if isinstance(error, UsageError) else _as_usage(error)
        except Exception:
            _LOG.exception("this node failed")
            refusal = UsageError(639, "this node failed; its own log says why")
        _LOG.warning("refused: %s", refusal)
        words = refusal.message if refusal.code in _TELLABLE else "the node's own log says why"
        answer = frames.Refused(run, bool(badge), refusal.code, words, ticket)
        return seal(answer, badge=badge)

    def _badge(self, header: Header) -> str:
        if isinstance(header, Enrol | frames.Enrolled) or not header.run:
            return ""
        agreed = Memory(self.folder, header.run).agreed()
        return "" if agreed is None else agreed.badge

    def _answer(self, header: Header, tensors: Arrays) -> tuple[Header, Arrays]:
        match header:
            case Enrol():
                return self._enrol(header), {}
            case Ask():
                return self._train(header, tensors)
            case Finish():
                return self._finish(header), {}
            case _:
                raise UsageError(631, "this node could not read the message: not a question")

    # ---- enrolment ----------------------------------------------------------------------

    def _enrol(self, asked: Enrol) -> Header:
        if asked.version != __version__:
            raise UsageError(
                635,
                f"the server runs sequester {asked.version} and this node {__version__}; install "
                "one version everywhere",
            )
        memory = Memory(self.folder, asked.run)
        agreed = memory.agreed()
        if agreed is None:
            agreed = self._agree(asked, memory)
        elif (agreed.study, agreed.begun) != (asked.study, asked.begun):
            raise UsageError(635, "this run enrolled here with another study; start a new run")
        return frames.Enrolled(
            run=asked.run,
            site=self.site,
            clients=agreed.clients,
            fingerprint=agreed.fingerprint,
            badge=agreed.badge,
            ticket=asked.ticket,
        )

    def _agree(self, asked: Enrol, memory: Memory) -> Agreed:
        terms = self._understand(asked.run, asked.study, asked.begun)
        if terms.layout.digest() != asked.layout:
            raise UsageError(
                635,
                f"the server's model has layout {asked.layout} and this node's "
                f"{terms.layout.digest()}; both must build the same network",
            )
        permit = Permit.beside(self.data, self.folder, self.site)
        # What the policy says without looking at anybody comes first, then the charge.
        permit.check(terms.study, permit.policy.min_population)
        if terms.plan is not None:
            permit.charge(terms.plan, asked.run)
        prepared, fingerprint = self._prepare(terms.study, asked.run)
        permit.check(terms.study, prepared.train.people)
        agreed = Agreed(
            study=asked.study,
            begun=asked.begun,
            layout=asked.layout,
            clients=prepared.train.people if terms.persons else 1,
            fingerprint=fingerprint,
            badge=secrets.token_hex(16),
        )
        memory.agree(agreed)
        return agreed

    def _understand(self, run: str, text: str, decisions: str) -> Terms:
        """The server's study and decisions, on this node's own file.

        Raises:
            UsageError: SQ-641 for decisions that are none of this run.
        """
        if self._terms is not None and self._terms[:2] == (text, decisions):
            return self._terms[2]
        study = decode(tomllib.loads(text))
        check_networked(study)
        data = msgspec.structs.replace(study.data, source=str(self.data))
        study = msgspec.structs.replace(study, data=data, ledger=None)
        try:
            begun = msgspec.json.decode(decisions.encode(), type=Begun)
        except msgspec.MsgspecError:
            raise UsageError(641, "the run's decisions cannot be read") from None
        if begun.run != run or begun.steps < 1:
            raise UsageError(641, "the run's decisions are another run's, or name no round")
        settings = settings_of(study)
        layout = layout_for(study, settings)
        inner = layout.size - (len(COUNTS) if layout.dtype == "float64" else 0)
        plan = begun.plan(study, parameters=inner)
        terms = Terms(study, begun, layout, plan, by_people(settings))
        self._terms = (text, decisions, terms)
        return terms

    def _agreed(self, run: str) -> tuple[Memory, Agreed, Terms]:
        """What this run agreed to here.

        Raises:
            UsageError: SQ-640 for a run that never enrolled here.
        """
        memory = Memory(self.folder, run)
        agreed = memory.agreed()
        if agreed is None:
            raise UsageError(640, "this run never enrolled here, or the node lost its folder")
        return memory, agreed, self._understand(run, agreed.study, agreed.begun)

    def _key(self, study: Study) -> bytes:
        seed = study.privacy.insecure_test_seed
        return node_key(self.folder) if seed is None else key_from_test_seed(seed)

    def _prepare(self, study: Study, run: str) -> tuple[Prepared, str]:
        """People, read and cut, and their fingerprint; once in the life of a process."""
        if self._read is None or self._read[0] != run:
            people = read_people(study.data)
            prepared = prepare(study, people, key=derive(self._key(study), "windows"))
            if prepared.shape != shape_of(study):
                raise UsageError(639, "this node's data give another network than declared")
            self._read = (run, prepared, people.fingerprint(node_key(self.folder)))
        return self._read[1:]

    # ---- a round ------------------------------------------------------------------------

    def _train(self, ask: Ask, tensors: Arrays) -> tuple[Header, Arrays]:
        memory, agreed, terms = self._agreed(ask.run)
        study, plan = terms.study, terms.plan
        permit = Permit.beside(self.data, self.folder, self.site)
        permit.check(study, permit.policy.min_population)
        state = _check_ask(ask, tensors, terms.layout, plan)
        own = range(ask.first, ask.first + agreed.clients)
        if not set(ask.clients) <= set(own) or not 0 <= ask.round < terms.begun.steps:
            raise UsageError(641, "the question names a client or a round that is not this node's")
        prepared, fingerprint = self._prepare(study, ask.run)
        if fingerprint != agreed.fingerprint:
            raise UsageError(642, "this node's data are not those the run started with")
        permit.check(study, prepared.train.people)
        memory.open_round(ask)
        crowd = self._crowd(study, prepared, Place(ask.run, self.site, ask.first, b"", plan))
        instructions = [
            Instruction(ask.run, ask.round, ask.version, client, nonce, 0.0)
            for client, nonce in zip(ask.clients, ask.nonces, strict=True)
        ]
        if isinstance(crowd, Silos):
            # To itself a site is the only one.
            alone = [replace(item, client=0) for item in instructions]
            events = list(crowd.answer(alone, state, ask.clip))
        else:
            _correct(crowd, ask, tensors)
            crowd.restore(memory.clients(ask))
            events = list(crowd.answer(instructions, state, ask.clip))
            memory.keep(ask, crowd.arrays())
        return _answers(ask, events, crowd)

    def _crowd(self, study: Study, prepared: Prepared, place: Place) -> Devices | Silos:
        """The site's clients; built once in the life of a process."""
        if self._built is None or self._built[0] != place:
            keyed = replace(place, key=self._key(study))
            self._built = (place, crowd_of(study, prepared, keyed))
        return self._built[1]

    def _finish(self, asked: Finish) -> Header:
        memory, _, terms = self._agreed(asked.run)
        steps = terms.begun.steps
        last = memory.answered()
        over = last is not None and last.question == "over"
        answered = 0 if last is None or over else last.round + 1
        if terms.plan is not None and not over:
            # The server may not make the node charge less than the node itself answered.
            rounds = min(steps, max(asked.rounds, answered))
            permit = Permit.beside(self.data, self.folder, self.site)
            permit.settle(terms.plan, asked.run, rounds)
        memory.close(steps)
        return frames.Finished(asked.run, self.site, asked.ticket)


def _as_usage(error: SequesterError) -> UsageError:
    return UsageError(error.code, error.message)


def _check_ask(ask: Ask, tensors: Arrays, layout: Layout, plan: Plan | None) -> ServerState:
    """The model that was sent, if the question fits itself and the study.

    Raises:
        UsageError: SQ-635 with both values for another layout or version, SQ-641 else.
    """
    model = tensors.get("model")
    counts = {len(ask.clients), len(ask.nonces), len(ask.last)}
    if model is None or model.dtype != np.float32 or model.ndim != 1 or len(counts) != 1:
        raise UsageError(641, "this question holds no model, or lists that disagree")
    if ask.layout != layout.digest():
        raise UsageError(
            635, f"the question has layout {ask.layout}, this node's is {layout.digest()}"
        )
    size = layout.size - (len(COUNTS) if layout.dtype == "float64" else 0)
    version = version_of(layout, model) if len(model) == size else f"of {len(model)} numbers"
    if version != ask.version:
        raise UsageError(
            635, f"the question is about model {ask.version}, but holds model {version}"
        )
    if len(set(ask.clients)) != len(ask.clients):
        raise UsageError(641, "the question names a client twice")
    if not (ask.clip > 0 or plan is None) or not np.isfinite(ask.clip):
        raise UsageError(641, f"the bound must be > 0, got {ask.clip}")
    if plan is not None and plan.adaptive is None and ask.clip != plan.clip:
        raise UsageError(641, f"the bound is {plan.clip} in this study, asked for {ask.clip}")
    return ServerState(model.astype(np.float64))


def _correct(crowd: Devices, ask: Ask, tensors: Arrays) -> None:
    rows = tensors.get("correction")
    if rows is None:
        return
    if rows.shape != (len(ask.clients), crowd.layout.size) or rows.dtype != np.float32:
        raise UsageError(641, "the question's corrections have another shape than its clients")
    inner = crowd.algorithm
    crowd.algorithm = Corrected(
        inner.inner if isinstance(inner, Corrected) else inner,
        {client: rows[i] for i, client in enumerate(ask.clients)},
    )


def _answers(
    ask: Ask, events: Sequence[machine.Event], crowd: Devices | Silos
) -> tuple[Answers, Arrays]:
    """Pack what the clients did, in the order they were asked."""
    reasons: list[str] = []
    updates: list[Update] = []
    for event in events:
        if isinstance(event, machine.Arrived):
            updates.append(event.update)
            reasons.append("")
        elif isinstance(event, machine.Lost):
            reasons.append(str(event.reason))
    tensors: dict[str, np.ndarray] = {}
    sizes: list[int] = []
    recorder = crowd.feedback if isinstance(crowd, Devices) else None
    if isinstance(recorder, Recorder):
        codes = [recorder.made[update.client] for update in updates]
        sizes = [len(code) for code in codes]
        tensors["codes"] = np.frombuffer(b"".join(codes), dtype=np.uint8)
    else:
        layout = crowd.layout
        rows = [layout.flatten(update.tensors) for update in updates]
        shape = (len(rows), layout.size)
        tensors["deltas"] = np.stack(rows) if rows else np.zeros(shape, dtype=layout.dtype)
    header = Answers(
        run=ask.run,
        round=ask.round,
        version=ask.version,
        clients=ask.clients,
        nonces=ask.nonces,
        reasons=tuple(reasons),
        steps=tuple(update.steps for update in updates),
        weights=tuple(update.weight for update in updates),
        sizes=tuple(sizes),
        ticket=ask.ticket,
    )
    return header, tensors
