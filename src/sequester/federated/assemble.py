"""From a prepared session to a simulation: the three placements, and none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sequester.core.errors import UsageError
from sequester.core.rng import Keystream
from sequester.federated import settings as chosen
from sequester.federated.algorithms import ServerState
from sequester.federated.checkpoint import FileStore
from sequester.federated.clients import Devices, Silos, sums_layout
from sequester.federated.compression import Feedback, RandomK
from sequester.federated.compression.codecs import Address
from sequester.federated.engine import choose_engine
from sequester.federated.engine.base import layout_of, model_vector
from sequester.federated.gate import Limits
from sequester.federated.masking import Masking, drill
from sequester.federated.noise import protector
from sequester.federated.settings import Federated
from sequester.federated.shares import Sums
from sequester.federated.simulate import Guarantee, Simulation
from sequester.federated.sites import (
    ByPopulation,
    NoisySites,
    names_of_sites,
    people_of_sites,
)
from sequester.gradients import ClippingRule
from sequester.mechanism import NoiseStream, Plan
from sequester.sampling import FixedSizeSampler, Lot, PoissonSampler
from sequester.training.loop import rule_of
from sequester.training.session import Session
from sequester.training.study import Study


def by_site(
    lot: Lot, sites: NDArray[np.str_], declared: Collection[str] = ()
) -> tuple[Lot, list[Lot], list[str]]:
    """The same windows with the site as owner, and each site's people.

    Args:
        lot: Windows by person.
        sites: Each person's site, `(people,)`.
        declared: See `names_of_sites`.

    Returns:
        Windows by site; one lot of people for each site; the sites' names in order.
    """
    names = names_of_sites(sites, declared)
    lots = [lot.pick(np.flatnonzero(sites == name)) for name in names]
    counts = [len(part.owner) for part in lots]
    pooled = Lot(
        x=torch.cat([part.x for part in lots]),
        mask=torch.cat([part.mask for part in lots]),
        target=torch.cat([part.target for part in lots]),
        owner=torch.from_numpy(np.repeat(np.arange(len(names)), counts)),
        people=len(names),
        categorical=None
        if lot.categorical is None
        else torch.cat([part.categorical for part in lots if part.categorical is not None]),
    )
    return pooled, lots, names


def simulation_of(session: Session, settings: Federated) -> Simulation:
    """Everything a federated run of this session needs, brought to where its files stopped."""
    store = FileStore(session.folder.checkpoints, session.study_digest(), session.begun.data)
    model = session.state.model
    if settings.placement == "cross-silo" and session.plan is not None:
        several = settings.local_steps > 1
        simulation = (_noisy_sites if several else _silos)(session, settings, session.plan)
    else:
        simulation = _devices(session, settings)
    simulation.store = store
    simulation.state = ServerState(model_vector(model).astype(np.float64))
    simulation.clip = session.study.privacy.clip
    simulation.masking = _masking(session, settings)
    if simulation.masking is not None and isinstance(simulation.crowd, Silos):
        simulation.crowd.rule = _within(simulation.masking, simulation.crowd.rule)
    store.load(simulation)
    return simulation


def sums_of(session: Session, settings: Federated) -> Sums | None:
    """What the members of this run add up in secret; None in clear."""
    if settings.secagg is None:
        return None
    sites = settings.placement == "cross-silo"
    lot, private = session.prepared.train, session.plan is not None
    declared = settings.sites if private else ()
    members = len(names_of_sites(_groups(session), declared)) if sites else lot.people
    layout = layout_of(session.state.model)
    codec = chosen.codec_of(settings)
    return Sums(
        settings.secagg,
        members=members,
        size=codec.kept(layout.size) if isinstance(codec, RandomK) else layout.size,
        sites=sites and private,
        most=session.study.data.population if private else members,
    )


def _masking(session: Session, settings: Federated) -> Masking | None:
    sums = sums_of(session, settings)
    if sums is None:
        return None
    layout, run = layout_of(session.state.model), session.begun.run
    codec = chosen.codec_of(settings)
    coordinates: Callable[[int], NDArray[np.int64]] | None = None
    if isinstance(codec, RandomK):
        shared = codec

        def coordinates(number: int) -> NDArray[np.int64]:
            return shared.coordinates(layout, Address(run, number, 0))

    return Masking(
        sums,
        multiplier=session.begun.noise_multiplier if sums.noisy else 0.0,
        run=run,
        key=session.key,
        full=layout.size,
        coordinates=coordinates,
        drops=drill(sums.members, sums.chosen.drill, run),
    )


def _within(
    masking: Masking, rule: Callable[[nn.Module, float], ClippingRule]
) -> Callable[[nn.Module, float], ClippingRule]:
    """A site's clipping rule, by the margin tighter that rounding to the sum's grid may cost."""
    return lambda model, clip: rule(model, masking.site_clip(clip))


def _devices(session: Session, settings: Federated) -> Simulation:
    study, prepared, plan = session.study, session.prepared, session.plan
    lot = prepared.train
    if settings.placement == "cross-silo":
        lot, _, _ = by_site(lot, _groups(session))
    population = lot.people if plan is None else plan.population
    algorithm = chosen.algorithm_of(settings, population)
    engine = choose_engine(
        session.state.model,
        prepared.task,
        lot,
        engine=settings.engine,
        threads=settings.threads,
        batch=settings.batch,
        chance=session.chance(),
    )
    layout = engine.layout
    codec = chosen.codec_of(settings)
    work = chosen.work_of(settings)
    devices = Devices(
        engine=engine,
        work=work,
        algorithm=algorithm,
        seed=study.training.seed,
        personal=chosen.personal_of(settings, layout),
        feedback=None if codec is None else Feedback(codec, layout),
    )
    local = settings.placement == "local"
    if plan is not None and local:
        devices.protect = protector(plan, _client_streams(session))
    central = plan is not None and not local
    return Simulation(
        run=session.begun.run,
        state=ServerState(np.zeros(layout.size)),
        crowd=devices,
        algorithm=algorithm,
        work=algorithm.local(work),
        cohort=_cohorts(session, lot.people).draw,
        guarantee=Guarantee(plan, _stream(session)) if plan is not None and central else None,
        weighting=chosen.weighting_of(settings),
        rule=chosen.rule_of(settings),
        expected=plan.expected_lot if plan is not None and local else 0.0,
        quorum=settings.quorum,
        secret=session.key,
        limits=Limits(work=work),
        shared=chosen.shared_of(settings, layout),
    )


def _cohorts(session: Session, clients: int) -> PoissonSampler | FixedSizeSampler:
    """Who takes part in a round: by coins, or exactly as many as the study says."""
    study = session.study
    coins = Keystream(session.key, session.begun.run, "lots")
    if not study.training.lot_size:
        return PoissonSampler(clients, study.training.sampling_rate, coins)
    check_enrolled(study, clients)
    return FixedSizeSampler(clients, study.training.lot_size, coins)


def check_enrolled(study: Study, clients: int) -> None:
    """Cohorts of fixed size are drawn from at least as many as they are charged for.

    Raises:
        UsageError: SQ-626 if fewer clients are enrolled than were declared: the rate that is
            charged would be below the true one.
    """
    size = study.training.lot_size
    least = size if study.privacy.mode == "none" else study.data.population
    if size and clients < least:
        raise UsageError(
            626,
            f"training.lot_size is charged for at least {least} enrolled clients, and there are "
            f"{clients}; lower data.population or training.lot_size",
            where="training.lot_size",
        )


def _silos(session: Session, settings: Federated, plan: Plan) -> Simulation:
    study, prepared = session.study, session.prepared
    _, lots, names = by_site(prepared.train, _groups(session), settings.sites)
    inner = layout_of(session.state.model)
    algorithm = chosen.algorithm_of(settings, len(lots))
    silos = Silos(
        model=session.state.model,
        task=prepared.task,
        sites=lots,
        samplers=_coins(session, lots, names),
        plan=plan,
        rule=partial(rule_of, study),
        layout=sums_layout(inner),
        chance=session.chance(),
    )
    return Simulation(
        run=session.begun.run,
        state=ServerState(np.zeros(inner.size)),
        crowd=silos,
        algorithm=algorithm,
        work=chosen.work_of(settings),
        cohort=lambda _: np.arange(len(lots)),
        guarantee=Guarantee(plan, _stream(session), sites=True),
        secret=session.key,
    )


def _noisy_sites(session: Session, settings: Federated, plan: Plan) -> Simulation:
    """Sites whose updates are private on their own."""
    study, prepared = session.study, session.prepared
    _, lots, names = by_site(prepared.train, _groups(session), settings.sites)
    people = people_of_sites(settings.sites, names, plan.population)
    layout = layout_of(session.state.model)
    algorithm = chosen.algorithm_of(settings, len(lots))
    sites = NoisySites(
        model=session.state.model,
        task=prepared.task,
        sites=lots,
        samplers=_coins(session, lots, names),
        plans=[replace(plan, population=number) for number in people],
        rule=partial(rule_of, study),
        streams=_client_streams(session),
        steps=min(settings.local_steps, session.begun.steps),
        learning_rate=settings.local_learning_rate,
        layout=layout,
        chance=session.chance(),
    )
    return Simulation(
        run=session.begun.run,
        state=ServerState(np.zeros(layout.size)),
        crowd=sites,
        algorithm=algorithm,
        work=chosen.work_of(settings),
        cohort=lambda _: np.arange(len(lots)),
        weighting=ByPopulation(tuple(number / sum(people) for number in people)),
        expected=1.0,
        secret=session.key,
    )


def _coins(session: Session, lots: list[Lot], names: list[str]) -> list[PoissonSampler]:
    """Each site's own coins."""
    rate, run = session.study.training.sampling_rate, session.begun.run
    return [
        PoissonSampler(site.people, rate, Keystream(session.key, run, f"lots/{name}"))
        for site, name in zip(lots, names, strict=True)
    ]


def _stream(session: Session) -> NoiseStream:
    """The rounds' noise. Its position lives in memory: a sealed sum guards against reuse.

    A round's noise is drawn for a sum that is on disk, written once; after a crash the same
    noise meets the same sum again and nothing new is revealed.
    """
    private = session.study.privacy.insecure_test_seed is None
    return NoiseStream(session.key, session.begun.run, private=private)


def _client_streams(session: Session) -> Callable[[int], NoiseStream]:
    """Each client's own noise, under a key of its own."""
    private = session.study.privacy.insecure_test_seed is None
    streams: dict[int, NoiseStream] = {}

    def stream_of(client: int) -> NoiseStream:
        if client not in streams:
            key = hashlib.blake2b(b"client %d" % client, key=session.key, digest_size=32).digest()
            streams[client] = NoiseStream(key, session.begun.run, private=private)
        return streams[client]

    return stream_of


def _groups(session: Session) -> NDArray[np.str_]:
    """The site of each training person.

    Raises:
        UsageError: SQ-623 without a column that names it.
    """
    groups = session.prepared.groups
    if groups is None:
        raise UsageError(
            623,
            "placement 'cross-silo' needs data.group, the column that names a person's site",
            where="data.group",
        )
    return groups
