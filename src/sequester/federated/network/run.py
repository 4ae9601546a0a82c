"""The server's run: enrol sites, drive the rounds, settle, and write claim and weights.

Killed at any instant and started again on the same folder, it goes on where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from sequester import __version__
from sequester.core.errors import UsageError
from sequester.core.rng import Keystream
from sequester.federated import settings as chosen
from sequester.federated.algorithms import ServerState
from sequester.federated.checkpoint import FileStore
from sequester.federated.driver import Outcome
from sequester.federated.engine.base import model_vector
from sequester.federated.gate import Limits
from sequester.federated.masking import Masking
from sequester.federated.network import frames
from sequester.federated.network.enrol import GRACE_S, Finder
from sequester.federated.network.frames import Enrol
from sequester.federated.network.holding import held
from sequester.federated.network.member import masking_for
from sequester.federated.network.opening import decisions, enrolled, sums_of
from sequester.federated.network.roster import Roster, most_clients
from sequester.federated.network.server import Network, check_size
from sequester.federated.network.site import check_networked, layout_for, nobody, without_source
from sequester.federated.network.transport import Transport
from sequester.federated.network.veil import Veil
from sequester.federated.run import (
    ASSUMPTIONS,
    MASKED,
    add_facts,
    append_round,
    check_progress,
    sums_tell,
    write_into,
)
from sequester.federated.settings import settings_of
from sequester.federated.simulate import Guarantee, Simulation
from sequester.mechanism import Claim, NoiseStream
from sequester.models import build
from sequester.sampling import Lot, PoissonSampler
from sequester.training import charging, reporting, resumption
from sequester.training.checkpoint import State, destroy, run_key
from sequester.training.dataset import Prepared, shape_of, task_of
from sequester.training.folder import DECISIONS, RunFolder
from sequester.training.monitor import Monitor
from sequester.training.network import check_network
from sequester.training.optimisers import Average, Optimiser
from sequester.training.session import Session
from sequester.training.study import Study
from sequester.training.study_file import checked, to_toml

_LOG = logging.getLogger("sequester.server")
_NOT_EVIDENCED = (
    "That the sites' nodes run the code they were given; each site's own policy, ledger and log "
    "hold its side of this run.",
)
_TAKEN = (
    "Each site pinned the members' public keys in its first round; that these are the sites' own "
    "keys was taken from the server, and a server that made keys up could open one site's sum."
)
_LISTED = (
    "Each site's node says that it accepts no members' public keys but those that its holder wrote "
    "down beforehand."
)
_NODES = "nodes.json"
_FINISHED = 505
Watch = Callable[[int, Outcome], None]


@dataclass(frozen=True)
class Terms:
    """How many sites, and how patient.

    Attributes:
        sites: Sites to enrol before the run begins.
        least: Sites that must be there before a round begins.
        round_seconds: A round's deadline.
        wait_seconds: For sites to enrol, to come back, and to settle at the end.
        limit: Bytes of a message.
    """

    sites: int
    least: int = 1
    round_seconds: float = 600.0
    wait_seconds: float = 3600.0
    limit: int = frames.LIMIT

    def __post_init__(self) -> None:
        """Refuse what cannot be met.

        Raises:
            UsageError: SQ-643.
        """
        good = 1 <= self.least <= self.sites and self.limit >= 1 << 16
        if not (good and self.round_seconds > 0 and self.wait_seconds > 0):
            raise UsageError(
                643,
                "a run needs 1 ≤ least ≤ sites, deadlines above 0 s and messages of 64 KiB or "
                f"more, got {self}",
            )


@dataclass(frozen=True)
class Served:
    """What came out.

    Attributes:
        folder: Where it lies.
        rounds: Rounds that ran.
        epsilon: ε of what ran, ∞ without privacy.
        claim: What the run promises.
        settled: Sites that confirmed the end; the others keep the whole reservation charged.
    """

    folder: RunFolder
    rounds: int
    epsilon: float
    claim: Claim
    settled: int


def serve(
    study: Study, path: Path, transport: Transport, terms: Terms, *, watch: Watch | None = None
) -> Served:
    """Run a study over a transport, in the run folder `path`; or go on with it.

    Args:
        study: With a `[federated]` part; its `data.source` is only a name here.
        path: The run folder; made if it is not there.
        transport: Reaches the nodes.
        terms: How many sites, and how patient.
        watch: Sees every round's outcome; private.

    Raises:
        UsageError: SQ-638 for what needs the data in one place, SQ-250 to 254, 268, 401, 405 or
            406 for a network that cannot be trained, SQ-643 for a folder of another
            study, SQ-644 if too few sites came, SQ-508 if another server holds the folder.
        LedgerRefusal: if not one round fits into the server's own budget.
        SequesterError: SQ-628 if training diverged, SQ-629 if every round was abandoned.
    """
    study = checked(study)
    check_networked(study)
    check_network(study)
    check_size(layout_for(study, settings_of(study)), terms.limit)
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    for private in (folder.checkpoints, folder.private):
        private.mkdir(mode=0o700, exist_ok=True)
    with held(folder, transport):
        try:
            begun = decisions(folder, study, terms.sites)
        except UsageError as refusal:
            if refusal.code == _FINISHED:
                kept = resumption.decisions_in(folder.checkpoints / DECISIONS)
                _Server(folder, study, kept, transport, terms).release()
            raise
        return _Server(folder, study, begun, transport, terms).run(watch)


@dataclass
class _Server:
    folder: RunFolder
    study: Study
    begun: resumption.Begun
    transport: Transport
    terms: Terms

    def run(self, watch: Watch | None) -> Served:
        """Everything from the charge to the claim."""
        # Charge before touch: not even enrolment, at which nodes read their data, comes first.
        charge = charging.reserve(self.study, self.begun, None)
        self.begun = charge.begun
        resumption.write(self.folder, self.study, self.begun)
        finder = self._finder()
        sites = enrolled(
            self.folder,
            finder,
            charge,
            sites=self.terms.sites,
            seconds=self.terms.wait_seconds,
        )
        charge.begin()
        self.begun = msgspec.structs.replace(self.begun, data=sites.fingerprint)
        session = self._session()
        simulation, network = self._simulation(session, sites, finder)
        simulation.noted = partial(self._note, simulation, network)
        while simulation.next_round < self.begun.steps:
            self._gather(finder, sites)
            network.round = number = simulation.next_round
            outcome = simulation.run_round()
            if watch is not None:
                watch(number, outcome)
        check_progress(simulation)
        session.state.step = simulation.next_round
        masking = simulation.masking
        if masking is not None and masking.sums.noisy and masking.arrived:
            session.happened = masking.happened(self.study.training.sampling_rate)
        write_into(session, simulation)
        finder.gather(sites, len(sites.sites), min(30.0, self.terms.wait_seconds))
        settled = network.finish(simulation.next_round, self.terms.wait_seconds)
        charge = replace(charge, begun=self.begun)
        listed = all(site.listed for site in sites.sites)

        def amend(claim: Claim, facts: dict[str, Any]) -> None:
            self._assume(claim, session, masking, listed=listed)
            add_facts(facts, session, settings_of(self.study), simulation.next_round)

        claim, _ = reporting.finish(session, charge, amend)
        destroy(self.folder.checkpoints)
        epsilon = reporting.epsilon_of(session.plan, session.ran())
        return Served(self.folder, simulation.next_round, epsilon, claim, settled)

    def release(self) -> None:
        """Of a finished run: who was charged, answered nothing and is back, gets it back."""
        self._finder().release((self.begun.run,), min(self.terms.wait_seconds, GRACE_S))

    def _finder(self) -> Finder:
        nodes, most = self.folder.checkpoints / _NODES, most_clients(self.study)
        return Finder(self.transport, self._question(), nodes, self.terms.limit, most)

    def _question(self) -> Enrol:
        layout = layout_for(self.study, settings_of(self.study))
        return Enrol(
            run=self.begun.run,
            # Where the server's budget lies is nobody else's business.
            study=to_toml(msgspec.structs.replace(without_source(self.study), ledger=None)),
            begun=msgspec.json.encode(msgspec.structs.replace(self.begun, asked="")).decode(),
            layout=layout.digest(),
            version=__version__,
            limit=self.terms.limit,
            hold=True,
            ticket="",
        )

    def _gather(self, finder: Finder, sites: Roster) -> None:
        there = finder.gather(sites, self.terms.least, self.terms.wait_seconds)
        if there < self.terms.least:
            raise UsageError(
                644,
                f"{there} of {len(sites.sites)} sites are there and {self.terms.least} are "
                "needed for a round; the run is kept, start it again when they are back",
                where=str(self.folder.path),
            )

    def _session(self) -> Session:
        """The session of a server that holds nobody's data."""
        study, shape = self.study, shape_of(self.study)
        empty = Lot(
            x=torch.zeros(0, shape.steps, shape.features),
            mask=torch.zeros(0, shape.steps, dtype=torch.bool),
            target=torch.zeros(0),
            owner=torch.zeros(0, dtype=torch.int64),
            people=0,
        )
        model = build(study.model.kind, shape, study.model.options, seed=study.training.seed)
        parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return Session(
            folder=self.folder,
            study=study,
            begun=self.begun,
            people=nobody(),
            key=run_key(self.folder.checkpoints, test_seed=study.privacy.insecure_test_seed),
            prepared=Prepared(empty, empty, task_of(study.data), shape, None),
            plan=self.begun.plan(study, parameters=parameters),
            state=State(
                model=model,
                optimiser=Optimiser(study.training),
                average=Average(0.0),
                step=0,
                applied=0,
                clip=study.privacy.clip,
            ),
            monitor=Monitor(self.folder.private),
        )

    def _simulation(
        self, session: Session, sites: Roster, finder: Finder
    ) -> tuple[Simulation, Network]:
        """The simulator's own rounds, with the sites behind the network as their crowd."""
        study, plan, settings = self.study, session.plan, settings_of(self.study)
        summed = settings.placement == "cross-silo" and plan is not None
        local = settings.placement == "local"
        people = sites.clients if plan is None or summed else plan.population
        algorithm = chosen.algorithm_of(settings, people)
        work = algorithm.local(chosen.work_of(settings))
        updates = layout_for(study, settings)
        network = Network(
            transport=self.transport,
            finder=finder,
            roster=sites,
            updates=updates,
            algorithm=algorithm,
            codec=chosen.codec_of(settings),
            seconds=self.terms.round_seconds,
            limit=self.terms.limit,
            roll=plan is not None and not summed,
        )
        coins = Keystream(session.key, self.begun.run, "lots")
        sampler = PoissonSampler(sites.clients, study.training.sampling_rate, coins)
        private = study.privacy.insecure_test_seed is None
        stream = NoiseStream(session.key, self.begun.run, private=private)
        store = FileStore(self.folder.checkpoints, session.study_digest(), self.begun.data)
        simulation = Simulation(
            run=self.begun.run,
            state=ServerState(model_vector(session.state.model).astype(np.float64)),
            crowd=network,
            algorithm=algorithm,
            work=work,
            cohort=(lambda _: np.arange(sites.clients)) if summed else sampler.draw,
            guarantee=Guarantee(plan, stream, sites=summed) if plan and not local else None,
            weighting=chosen.weighting_of(settings),
            rule=chosen.rule_of(settings),
            expected=plan.expected_lot if plan is not None and local else 0.0,
            quorum=settings.quorum,
            everybody=summed and settings.secagg is None,
            secret=session.key,
            limits=Limits(work=work),
            shared=chosen.shared_of(settings, updates),
            store=store,
            clip=study.privacy.clip,
        )
        sums = sums_of(study, len(sites.sites))
        if sums is not None:
            arithmetic = masking_for(sums, self.begun, session.key)
            simulation.masking = Veil(
                sums,
                multiplier=arithmetic.multiplier,
                run=self.begun.run,
                key=session.key,
                full=sums.size,
                network=network,
                model=lambda: simulation.state.model.astype(np.float32),
            )
            # Every site takes part in every round; none is asked for an update.
            simulation.cohort = lambda _: np.zeros(0, dtype=np.int64)
        simulation.allowed = lambda number: number < self.begun.steps
        store.load(simulation)
        return simulation, network

    def _note(
        self, simulation: Simulation, network: Network, number: int, clip: float, outcome: Outcome
    ) -> None:
        """One line of `private/rounds.jsonl`: who answered is private."""
        names, masking = [site.name for site in network.roster.sites], simulation.masking
        line = {
            "round": number,
            "clip": clip,
            "done": outcome.done,
            "why": outcome.why,
            "cohort": outcome.cohort,
            "accepted": outcome.accepted,
            "sites": [names[place] for place in network.answered],
            "rejected": {str(reason): n for reason, n in sorted(outcome.rejected.items())},
            "refusals": dict(sorted(network.refusals.items())),
            **({} if masking is None else masking.faults.facts(names)),
            "bytes": simulation.bytes_sent,
        }
        append_round(self.folder, line)

    def _assume(
        self, claim: Claim, session: Session, masking: Masking | None, *, listed: bool
    ) -> None:
        plan, placement = session.plan, settings_of(self.study).placement
        about: tuple[str, ...] = ASSUMPTIONS[placement] if plan is not None else ()
        if masking is not None:
            keys = _LISTED if listed else _TAKEN
            about = (MASKED[placement], *masking.says(listed=listed), keys)
        claim.fields["assumptions"] = [*claim.fields["assumptions"], *about]
        told = sums_tell(masking, session.state.model, private=plan is not None)
        claim.fields["not_evidenced"] = [*claim.fields["not_evidenced"], *told, *_NOT_EVIDENCED]
