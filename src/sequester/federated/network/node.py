"""A node's office: bytes in, bytes out. One question trains all of the site's sampled people.

Order of every question: the frame is checked, then the policy, then the ledger, then the round
is noted on disk, and only then are people's records trained on.
"""

from __future__ import annotations

import logging
import secrets
import tomllib
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from sequester.core.errors import SequesterError, UsageError
from sequester.core.rng import key_from_test_seed
from sequester.federated.algorithms import ServerState
from sequester.federated.clients import COUNTS, Devices, Silos
from sequester.federated.messages import (
    Instruction,
    Rejection,
    Vector,
)
from sequester.federated.network import frames
from sequester.federated.network.attempts import reading, unread
from sequester.federated.network.charged import check_held, spend
from sequester.federated.network.endings import check_open, end, release
from sequester.federated.network.frames import (
    Arrays,
    Ask,
    Enrol,
    Finish,
    Header,
    Release,
    Request,
    Step,
    Stepped,
    seal,
)
from sequester.federated.network.keys import (
    check_members,
    identity_of,
    public_key,
    read_members,
)
from sequester.federated.network.member import Member, masking_for, sums_for
from sequester.federated.network.memory import Agreed, Memory, alone, node_key, question_of
from sequester.federated.network.permit import Permit, begin, status_of
from sequester.federated.network.questions import (
    Terms,
    answers_of,
    check_round,
    check_server,
    correct,
    in_secret,
    model_of,
    terms_of,
)
from sequester.federated.network.reading import Holder
from sequester.federated.network.refusals import failed, told, unknown
from sequester.federated.network.site import (
    Place,
    check_file,
    check_networked,
    crowd_of,
)
from sequester.federated.settings import settings_of
from sequester.training.dataset import Prepared, prepare, shape_of
from sequester.training.labels import check_labels
from sequester.training.loop import rule_of
from sequester.training.session import derive
from sequester.training.sources import read_people
from sequester.training.study import Study
from sequester.training.study_file import decode

_LOG = logging.getLogger("sequester.node")


@dataclass
class Node:
    """One site.

    Attributes:
        site: Its name; the same for the life of the node.
        data: The file that holds its people; `policy.toml` lies beside it.
        folder: What the node keeps: key, ledger, runs.
        limit: Bytes of a frame.
        person: The column that names the person.
        erased: Register of people who must not be read again; empty for none.
        erased_key: File of its key.
        members: File of the public keys in secure sums that are accepted; empty takes the server's.
    """

    site: str
    data: Path
    folder: Path
    limit: int = frames.LIMIT
    person: str = "person"
    erased: str = ""
    erased_key: str = ""
    members: str = ""
    _read: tuple[str, Prepared, int, str] | None = field(default=None, init=False)
    _built: tuple[Place, Devices | Silos] | None = field(default=None, init=False)
    _terms: tuple[str, str, Terms] | None = field(default=None, init=False)

    def answer(self, raw: bytes) -> bytes:
        """The frame that answers `raw`; a refusal is a frame too."""
        ticket, run, badge = "", "", ""

        def badge_of(header: Header) -> str:
            nonlocal ticket, run
            known = self._badge(header)
            if not known and not isinstance(header, frames.Open):
                # Without the badge nobody can say who asks; but why there is none, one can.
                ticket, run = header.ticket, header.run
                raise unknown()
            return known

        try:
            header, tensors = frames.unseal(raw, badge_of, limit=self.limit)
            ticket, run, badge = header.ticket, header.run, self._badge(header)
            with alone(self.folder):
                made, arrays = self._answer(header, tensors)
            badge = self._badge(made)
            return seal(made, arrays, badge=badge, limit=self.limit)
        except Rejection as rejection:
            refusal = UsageError(631, f"this node could not read the message: {rejection.reason}")
            _LOG.warning("run %r refused: %s", run, refusal)
        except SequesterError as error:
            _LOG.warning("run %r refused: %s", run, error)
            refusal = told(error)
        except Exception:
            _LOG.exception("this node failed")
            refusal = failed()
        answer = frames.Refused(run, bool(badge), refusal.code, refusal.message, ticket)
        return seal(answer, badge=badge)

    def _badge(self, header: Header) -> str:
        if isinstance(header, frames.Open) or not header.run:
            return ""
        agreed = Memory(self.folder, header.run).agreed()
        return "" if agreed is None else agreed.badge

    def _answer(self, header: Header, tensors: Arrays) -> tuple[Header, Arrays]:
        match header:
            case Enrol():
                return self._enrol(header), {}
            case Release():
                release(self.folder, header.ended)
                return frames.Released(header.run, self.site, header.ticket), {}
            case Ask():
                return self._train(header, tensors)
            case Step():
                return self._step(header, tensors)
            case Finish():
                return self._finish(header), {}
            case _:
                raise UsageError(631, "this node could not read the message: not a question")

    # ---- enrolment ----------------------------------------------------------------------

    def _enrol(self, asked: Enrol) -> Header:
        check_server(asked, self.limit)
        memory = Memory(self.folder, asked.run)
        agreed = memory.agreed()
        if agreed is not None and (agreed.study, agreed.begun) != (asked.study, asked.begun):
            raise UsageError(635, "this run enrolled here with another study; start a new run")
        check_open(self.folder, memory, hold=asked.hold)
        if agreed is not None:
            check_held(self.folder, memory, self._agreed(asked.run)[2])
        else:
            terms, permit = self._allowed(asked, memory)
            if not asked.hold:
                if terms.plan is not None:
                    permit.rehearse(terms.plan, asked.run)
                _LOG.warning("nothing that is known speaks against run %s", asked.run)
                return frames.Willing(asked.run, self.site, public_key(self.folder), asked.ticket)
            agreed = self._agree(asked, memory, terms, permit)
        return frames.Enrolled(
            run=asked.run,
            site=self.site,
            clients=agreed.clients,
            fingerprint=agreed.fingerprint,
            badge=agreed.badge,
            member=public_key(self.folder),
            listed=bool(self.members),
            ticket=asked.ticket,
        )

    def _allowed(self, asked: Enrol, memory: Memory) -> tuple[Terms, Permit]:
        """All that can be said against a run without reading its people, or holding anything."""
        terms = self._understand(asked.run, asked.study, asked.begun)
        if terms.layout.digest() != asked.layout:
            raise UsageError(
                635,
                f"the server's model has layout {asked.layout} and this node's "
                f"{terms.layout.digest()}; both must build the same network",
            )
        permit = Permit.beside(self.data, self.folder, self.site)
        permit.check(terms.study, permit.policy.min_population)
        read_members(self.members)
        check_file(terms.study.data)
        unread(self.folder, _attempt(asked))
        if terms.plan is not None and memory.lost and status_of(self.folder, asked.run):
            # Its rounds may have been answered: again, they would meet the same noise.
            raise UsageError(640, "this node was charged for this run and lost its memory of it")
        return terms, permit

    def _agree(self, asked: Enrol, memory: Memory, terms: Terms, permit: Permit) -> Agreed:
        """Charge, then read."""
        _LOG.warning("charging and reading for run %s", asked.run)
        memory.open()
        plan = terms.plan
        died = plan is not None and status_of(self.folder, asked.run) == "reserved"
        if plan is not None:
            permit.charge(plan, asked.run)
        try:
            with reading(self.folder, _attempt(asked)):
                prepared, people, fingerprint = self._prepare(terms.study, asked.run)
                permit.check(terms.study, people)
        except Exception:
            if plan is not None:
                begin(self.folder, asked.run)  # that it failed is an answer about people
            raise
        if plan is not None and (terms.persons or died):
            begin(self.folder, asked.run)  # so is their number, or that a process died of them
        agreed = Agreed(
            site=self.site,
            study=asked.study,
            begun=asked.begun,
            layout=asked.layout,
            clients=prepared.train.people if terms.persons else 1,
            fingerprint=fingerprint,
            badge=secrets.token_hex(16),
        )
        memory.agree(agreed)
        _LOG.warning("enrolled in run %s", asked.run)
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
        holder = Holder(self.data, self.person, self.erased, self.erased_key)
        study = msgspec.structs.replace(study, data=holder.reading(study.data), ledger=None)
        terms = terms_of(study, run, decisions)
        self._terms = (text, decisions, terms)
        return terms

    def _agreed(self, run: str) -> tuple[Memory, Agreed, Terms]:
        """What this run agreed to here.

        Raises:
            UsageError: SQ-640 for a run that never enrolled here, or under another site's name.
        """
        memory = Memory(self.folder, run)
        agreed = memory.agreed()
        if agreed is None:
            raise unknown()
        if agreed.site != self.site:
            raise UsageError(
                640,
                f"this run enrolled here as site {agreed.site!r}, and the node is {self.site!r}: "
                "a site's name never changes, and each node has a folder of its own",
            )
        return memory, agreed, self._understand(run, agreed.study, agreed.begun)

    def _key(self, study: Study) -> bytes:
        seed = study.privacy.insecure_test_seed
        return node_key(self.folder) if seed is None else key_from_test_seed(seed)

    def _prepare(self, study: Study, run: str) -> tuple[Prepared, int, str]:
        """People, read and cut, their number and fingerprint; once in the life of a process.

        The number counts everybody in the file: who is held out is the study's to say, and a
        refusal that depended on it would answer the study's question. The fingerprint is the
        run's, so that nobody learns from two runs whether the data are the same.
        """
        if self._read is None or self._read[0] != run:
            people = read_people(study.data)
            prepared = prepare(study, people, key=derive(self._key(study), "windows"))
            if prepared.shape != shape_of(study):
                raise UsageError(639, "this node's data give another network than declared")
            try:
                check_labels(study.data, people)
            except UsageError as problem:  # the holder hears of it; a refusal would tell the server
                _LOG.warning("SQ-%d: this site's labels cannot be learnt", problem.code)
            key = derive(node_key(self.folder), f"fingerprint/{run}")
            self._read = (run, prepared, len(people), people.fingerprint(key))
        return self._read[1:]

    # ---- a round ------------------------------------------------------------------------

    def _ready(self, ask: Request) -> tuple[Memory, Agreed, Terms, Prepared]:
        """What a round needs, if policy, data and question still are what was agreed."""
        memory, agreed, terms = self._agreed(ask.run)
        permit = Permit.beside(self.data, self.folder, self.site)
        permit.check(terms.study, permit.policy.min_population)
        check_round(ask, terms)
        check_held(self.folder, memory, terms)  # before anybody is read
        prepared, people, fingerprint = self._prepare(terms.study, ask.run)
        if fingerprint != agreed.fingerprint:
            raise UsageError(642, "this node's data are not those the run started with")
        permit.check(terms.study, people)
        return memory, agreed, terms, prepared

    def _train(self, ask: Ask, tensors: Arrays) -> tuple[Header, Arrays]:
        memory, agreed, terms, prepared = self._ready(ask)
        study, plan = terms.study, terms.plan
        if in_secret(terms):
            raise UsageError(641, "this run's updates are summed in secret and never sent in clear")
        own = range(ask.first, ask.first + agreed.clients)
        lists = {len(ask.clients), len(set(ask.clients)), len(ask.nonces), len(ask.last)}
        if len(lists) != 1 or not set(ask.clients) <= set(own):
            raise UsageError(
                641, "the question names clients that are not here, one twice, or lists that differ"
            )
        state = ServerState(model_of(ask, tensors, terms.layout).astype(np.float64))
        spend(self.folder, memory, terms)
        memory.open_round(ask, tensors)
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
            correct(crowd, ask, tensors)
            crowd.restore(memory.clients(ask))
            events = list(crowd.answer(instructions, state, ask.clip))
            memory.keep(ask, crowd.arrays())
        return answers_of(ask, events, crowd, terms)

    def _step(self, step: Step, tensors: Arrays) -> tuple[Header, Arrays]:
        """One message of a secure sum."""
        memory, _, terms, prepared = self._ready(step)
        settings, plan = settings_of(terms.study), terms.plan
        inner = terms.layout.size - len(COUNTS)
        population = terms.study.data.population
        sums = sums_for(settings, len(step.members), inner, population)
        message = tensors.get("message")
        if sums is None or plan is None or message is None or message.dtype != np.uint8:
            raise UsageError(641, "this run has no secure sums, or the message is missing")
        identity = identity_of(node_key(self.folder), step.member)
        check_members(step.members, read_members(self.members), identity.public.hex())
        model = model_of(step, tensors, terms.layout) if "model" in tensors else None
        spend(self.folder, memory, terms)
        memory.open_round(step, tensors)
        key = self._key(terms.study)
        masking = masking_for(sums, terms.begun, key)
        place = Place(step.run, self.site, step.member, b"", plan)
        crowd = self._crowd(terms.study, prepared, place)
        if not isinstance(crowd, Silos):
            raise UsageError(641, "secure sums across machines are for sites")
        rule = partial(rule_of, terms.study)
        crowd.rule = lambda module, clip: rule(module, masking.site_clip(clip))

        def train(received: Vector) -> Vector:
            asked = Instruction(step.run, step.round, step.version, 0, "", 0.0)
            state = ServerState(received.astype(np.float64))
            (event,) = crowd.answer([asked], state, step.clip)
            return crowd.layout.flatten(event.update.tensors)  # type: ignore[union-attr]

        member = Member(memory.folder, masking, identity, plan)
        answer = member.answer(step, question_of(step), message.tobytes(), model, train)
        made = Stepped(step.run, step.round, step.ticket)
        return made, {"message": np.frombuffer(answer, np.uint8)}

    def _crowd(self, study: Study, prepared: Prepared, place: Place) -> Devices | Silos:
        """The site's clients; built once in the life of a process."""
        if self._built is None or self._built[0] != place:
            keyed = replace(place, key=self._key(study))
            self._built = (place, crowd_of(study, prepared, keyed))
        return self._built[1]

    def _finish(self, asked: Finish) -> Header:
        memory, _, terms = self._agreed(asked.run)
        ran = end(memory, terms.begun.steps, asked.rounds)  # first: no round after a settlement
        if terms.plan is not None:
            Permit.beside(self.data, self.folder, self.site).settle(terms.plan, asked.run, ran)
        _LOG.warning("run %s is over here after %d rounds", asked.run, ran)
        return frames.Finished(asked.run, self.site, asked.ticket)


def _attempt(asked: Enrol) -> str:
    """What is to be read, by the server's words."""
    return f"{asked.run}|{asked.study}|{asked.begun}"
