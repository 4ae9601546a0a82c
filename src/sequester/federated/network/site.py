"""A node's people, ready to answer: the simulator's own clients, on one site's data."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import torch

from sequester.core.errors import UsageError
from sequester.core.rng import Keystream
from sequester.federated import algorithms as alg
from sequester.federated import settings as chosen
from sequester.federated.clients import Devices, Silos, sums_layout
from sequester.federated.compression import Feedback
from sequester.federated.compression.codecs import Address
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import layout_of
from sequester.federated.messages import Layout, Sum, Vector
from sequester.federated.noise import protector
from sequester.federated.settings import Federated
from sequester.mechanism import NoiseStream, Plan
from sequester.models import build
from sequester.sampling import Lot, PoissonSampler
from sequester.sequences import People, Schema
from sequester.sequences.erased import read_key, read_register
from sequester.sequences.header import missing_columns
from sequester.training.chance import Chance
from sequester.training.dataset import Prepared, schema_of, shape_of
from sequester.training.loop import rule_of
from sequester.training.network import network_of
from sequester.training.setup import estimated
from sequester.training.study import Data, Study

_LOG = logging.getLogger("sequester.node")


def by_people(settings: Federated) -> bool:
    """Whether a site's clients are its people, rather than the site itself."""
    return settings.placement != "cross-silo"


def layout_for(study: Study, settings: Federated) -> Layout:
    """The layout of updates, from declarations alone."""
    model = build(study.model.kind, shape_of(study), study.model.options, seed=study.training.seed)
    inner = layout_of(model)
    if settings.placement == "cross-silo" and study.privacy.mode != "none":
        return sums_layout(inner)
    return inner


def without_source(study: Study) -> Study:
    """The study as it travels: where the operator's own file lies is no site's business."""
    data = msgspec.structs.replace(study.data, source="each site's own file")
    return msgspec.structs.replace(study, data=data)


def check_networked(study: Study) -> None:
    """Refuse what needs everybody's data in one place, or what nodes do not do.

    Raises:
        UsageError: SQ-638.
    """
    settings = chosen.settings_of(study)
    summed = settings.placement == "cross-silo" and study.privacy.mode != "none"
    if settings.secagg is not None and not summed:
        raise UsageError(
            638,
            "across machines the members of a secure sum are sites: use placement 'cross-silo' "
            "with privacy.mode = 'dp', or remove [federated.secagg]",
            where="federated.secagg",
        )
    if estimated(study):
        raise UsageError(
            638,
            "ranges and vocabularies cannot be estimated across machines; declare them publicly",
            where="data",
        )
    if study.data.holdout.protection != "public":
        raise UsageError(
            638,
            "no figure of merit is computed across machines; leave data.holdout.protection at "
            "'public' and evaluate the released weights where the held-out people are",
            where="data.holdout.protection",
        )
    if by_people(settings) and study.data.holdout.column:
        raise UsageError(
            638,
            "each site says how many people train there, and a holdout by a column would tell how "
            "many have which value in it; hold out a share, or nobody",
            where="data.holdout.column",
        )
    if study.training.lot_size or settings.local_steps > 1:
        raise UsageError(
            638,
            "cohorts of fixed size need everybody's list in one place, and several private steps "
            "of a site in a round are simulated only; remove training.lot_size and "
            "federated.local_steps",
            where="federated",
        )


def check_file(data: Data) -> None:
    """Refuse declarations that a site's file cannot fit, before anything is charged.

    No record is looked at: the answer would be free of charge.

    Raises:
        UsageError: SQ-653.
    """
    try:
        missing = missing_columns(data.source, schema_of(data))
    except UsageError as problem:
        _LOG.warning("SQ-%d: %s", problem.code, problem.message)
        raise UsageError(
            653,
            "this node's setting `data` names no file that can be opened"
            if problem.code == 101
            else f"this node's file has columns that do not fit the study (SQ-{problem.code}); the "
            "node's own log says why",
        ) from None
    schema = schema_of(data)
    if schema.erased:
        try:
            read_key(schema.erased_key)
            read_register(schema.erased)
        except UsageError as problem:
            _LOG.warning("SQ-%d: %s", problem.code, problem.message)
            raise UsageError(
                653,
                "this node's register of erased people, or its key, is missing or damaged; the "
                "node's own log says which",
            ) from None
    if missing:
        raise UsageError(
            653,
            f"this node's file has no column {', '.join(map(repr, missing))}, which the study or "
            "the node's setting `person` names",
        )


@dataclass
class Recorder:
    """A codec with its residuals that remembers the bytes it made, which are what travels.

    Attributes:
        feedback: Codec and residuals.
        made: Bytes by client.
    """

    feedback: Feedback
    made: dict[int, bytes] = field(default_factory=dict)

    @property
    def residuals(self) -> dict[int, Vector]:
        """Of the codec."""
        return self.feedback.residuals

    @residuals.setter
    def residuals(self, residuals: dict[int, Vector]) -> None:
        self.feedback.residuals = residuals

    def encode(self, delta: Vector, address: Address) -> bytes:
        """The bytes, remembered."""
        self.made[address.client] = data = self.feedback.encode(delta, address)
        return data

    def decode(self, data: bytes, address: Address) -> Vector:
        """What the server will see."""
        return self.feedback.decode(data, address)


@dataclass(frozen=True)
class Corrected:
    """An algorithm whose corrections came with the question.

    Attributes:
        inner: The algorithm.
        corrections: By client.
    """

    inner: alg.Algorithm
    corrections: Mapping[int, Vector]

    def local(self, work: alg.LocalWork) -> alg.LocalWork:
        """The algorithm's local work."""
        return self.inner.local(work)

    def correction(self, state: alg.ServerState, client: int) -> Vector | None:
        """As the server computed it."""
        return self.corrections.get(client)

    def fold(self, state: alg.ServerState, work: alg.LocalWork) -> alg.Fold:
        """The algorithm's; a node never calls it."""
        return self.inner.fold(state, work)

    def apply(self, state: alg.ServerState, direction: Sum) -> None:
        """The algorithm's; a node never calls it."""
        self.inner.apply(state, direction)


@dataclass(frozen=True)
class Place:
    """Where and under which secrets a site trains.

    Attributes:
        run: The run's name.
        site: The site's name.
        first: Position of its first client.
        key: The node's secret.
        plan: None without privacy.
    """

    run: str
    site: str
    first: int
    key: bytes
    plan: Plan | None


def crowd_of(study: Study, prepared: Prepared, place: Place) -> Devices | Silos:
    """The site's clients."""
    settings = chosen.settings_of(study)
    model = network_of(study, prepared.shape)
    if settings.placement == "cross-silo" and place.plan is not None:
        keystream = Keystream(place.key, place.run, f"lots/{place.site}")
        rate = study.training.sampling_rate
        return Silos(
            model=model,
            task=prepared.task,
            sites=[prepared.train],
            samplers=[PoissonSampler(prepared.train.people, rate, keystream)],
            plan=place.plan,
            rule=partial(rule_of, study),
            layout=layout_for(study, settings),
            chance=Chance.of(place.key, place.run),
        )
    lot = prepared.train
    if settings.placement == "cross-silo":
        lot = replace(lot, owner=torch.zeros_like(lot.owner), people=1)
    engine = choose_engine(
        model,
        prepared.task,
        _numbered_from(lot, place.first),
        engine=settings.engine,
        threads=settings.threads,
        batch=settings.batch,
        chance=Chance.of(place.key, place.run),
    )
    codec = chosen.codec_of(settings)
    devices = Devices(
        engine=engine,
        work=chosen.work_of(settings),
        algorithm=chosen.algorithm_of(settings, 1),
        seed=study.training.seed,
        personal=chosen.personal_of(settings, engine.layout),
    )
    if codec is not None:
        devices.feedback = Recorder(Feedback(codec, engine.layout))  # type: ignore[assignment]
    if place.plan is not None and settings.placement == "local":
        private = study.privacy.insecure_test_seed is None
        devices.protect = protector(place.plan, client_streams(place, private=private))
    return devices


def client_streams(place: Place, *, private: bool) -> Callable[[int], NoiseStream]:
    """Each client's own noise, under a key of its own."""

    def stream_of(client: int) -> NoiseStream:
        key = hashlib.blake2b(b"client %d" % client, key=place.key, digest_size=32).digest()
        return NoiseStream(key, place.run, private=private)

    return stream_of


def _numbered_from(lot: Lot, first: int) -> Lot:
    """The same people as positions `first`… of the whole population; nobody stands before them.

    A client's visiting order depends on its position, so a node and the simulator agree.
    """
    return replace(lot, owner=lot.owner + first, people=lot.people + first)


def nobody() -> People:
    """People, none of them."""
    one = pa.table({"person": ["nobody"], "time": [0]})
    return People.read(one, Schema(person="person")).select(np.zeros(0, dtype=np.int64))
