"""How a run opens at the server: its decisions, its sites, and its end where too few of these came.

    checkpoints/opening.json    whether a site may have been charged; which runs ended before

A run that ends so is never gone on with: it is on disk that it ended *before* the first site is
told, and the next start in its folder begins another one, under a name of its own.
"""

from __future__ import annotations

import secrets

import msgspec

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.clients import COUNTS
from sequester.federated.network.enrol import GRACE_S, Finder
from sequester.federated.network.frames import MOST_ENDED
from sequester.federated.network.member import sums_for
from sequester.federated.network.questions import KIND
from sequester.federated.network.roster import Roster
from sequester.federated.network.site import layout_for
from sequester.federated.settings import settings_of
from sequester.federated.shares import Sums, settle
from sequester.training import charging, resumption
from sequester.training.charging import Charge
from sequester.training.folder import RunFolder
from sequester.training.resumption import Begun
from sequester.training.study import Study
from sequester.training.study_file import to_toml

_NAME = "opening.json"


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to outlive the server before it has a list of sites.

    Attributes:
        holding: The run that sites were asked to charge; empty before the first was.
        ended: Runs of this folder that ended without a round.
    """

    holding: str = ""
    ended: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: RunFolder) -> Opening:
        """What was kept.

        Raises:
            UsageError: SQ-645 if it is damaged.
        """
        file = folder.checkpoints / _NAME
        if not file.exists():
            return cls()
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except msgspec.MsgspecError:
            raise UsageError(
                645,
                "what the server kept of enrolling is damaged; name a new run folder, what sites "
                "hold for this run stays charged",
                where=str(file),
            ) from None

    def save(self, folder: RunFolder) -> None:
        """Keep it."""
        write_atomic(folder.checkpoints / _NAME, msgspec.json.encode(self), private=True)


def decisions(folder: RunFolder, study: Study, sites: int) -> Begun:
    """The decisions of the run, old or new.

    Raises:
        UsageError: SQ-643 for a folder of another study.
    """
    if not folder.study.exists():
        return _decide(folder, study, sites, ())
    kept, begun = resumption.read(folder, KIND)
    if to_toml(kept) != to_toml(study):
        raise UsageError(
            643,
            "this run folder belongs to another study; give the study it began with, or another "
            "folder",
            where=str(folder.path),
        )
    ended = Opening.load(folder).ended
    if begun.run not in ended:
        return begun
    _free(charging.reserve(study, begun, None))
    return _decide(folder, study, sites, ended)


def _decide(folder: RunFolder, study: Study, sites: int, ended: tuple[str, ...]) -> Begun:
    begun = resumption.begin(study, "", KIND)
    if ended and study.privacy.insecure_test_seed is not None:
        # A test seed names every run alike, and what nodes have ended they begin no more.
        begun = msgspec.structs.replace(begun, run=f"{begun.run}-{secrets.token_hex(8)}")
    sums = sums_of(study, sites)
    if sums is not None and sums.noisy:
        begun = settle(sums, study, begun)
    resumption.write(folder, study, begun)
    return begun


def sums_of(study: Study, sites: int) -> Sums | None:
    """What the sites add up in secret; None in clear."""
    settings = settings_of(study)
    size = layout_for(study, settings).size - len(COUNTS)
    return sums_for(settings, sites, size, study.data.population)


def enrolled(
    folder: RunFolder, finder: Finder, charge: Charge, *, sites: int, seconds: float
) -> Roster:
    """The run's sites, old or new.

    Raises:
        UsageError: SQ-644 if too few enrolled. If any may have been charged by then, the run is
            over, and what was held for it is given back.
    """
    kept = Opening.load(folder)
    finder.ended = kept.ended
    roster = Roster.load(folder.checkpoints)
    if roster is not None:
        return roster
    run = charge.begun.run

    def hold() -> None:
        Opening(run, kept.ended).save(folder)

    try:
        roster = finder.enrol(sites, seconds, hold)
    except UsageError:
        # A site at which it is over says so to a server that was set back.
        over = any(why.startswith("SQ-636") for why in finder.refusals.values())
        if over or Opening.load(folder).holding == run:
            ended = (*kept.ended, run)[1 - MOST_ENDED :]  # a message may end one more
            Opening("", ended).save(folder)
            _free(charge)
            finder.release(ended, min(seconds, GRACE_S))
        raise
    roster.save(folder.checkpoints)
    return roster


def _free(charge: Charge) -> None:
    """The server's own budget gets back what no site trained for."""
    if charge.reservation is not None and charge.reservation.status() == "reserved":
        charge.reservation.void("too few sites enrolled")
