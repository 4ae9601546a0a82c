"""What a node allows: its `policy.toml` and its own ledger, before any person is touched."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from sequester.core.errors import LedgerRefusal, UsageError
from sequester.federated.settings import SecureSum, settings_of
from sequester.ledger import Budget, Ledger, Policy
from sequester.ledger.policy import SecureSums
from sequester.mechanism import Plan
from sequester.training.study import Study

POLICY = "policy.toml"
NONE = "none"
"""The unit that a policy must list to let in a study without a guarantee, or with a test seed."""
_BUDGET = "people"
_LEDGER = "ledger.db"
_TRIAL = "trial"
FOUNDED = "founded"
"""Stands beside a ledger from its first day: without one, it says that there was one."""


@dataclass(frozen=True)
class Permit:
    """One node's policy and ledger.

    Attributes:
        site: The data set's name in both.
        policy: `policy.toml` as it is now.
        ledger: URL of the node's own ledger; made when first needed.
    """

    site: str
    policy: Policy
    ledger: str

    @classmethod
    def beside(cls, data: Path, folder: Path, site: str) -> Permit:
        """The policy beside the data file, and the ledger in the node's folder.

        Raises:
            UsageError: SQ-632 without a policy, SQ-341 for one that is none.
        """
        path = data.parent / POLICY
        if not path.is_file():
            raise UsageError(
                632,
                f"this node has no {POLICY} beside its data; its holder has allowed nothing yet",
            )
        return cls(site, Policy.read(path), _url(folder))

    def check(self, study: Study, people: int) -> None:
        """Refuse what the policy does not allow.

        Args:
            study: As the server sent it.
            people: People in the file here.

        Raises:
            LedgerRefusal: SQ-340 by policy, SQ-649 for sums that hide this site too little,
                SQ-633 for too few people here; nothing says how many there are.
        """
        policy = self.policy
        policy.check_terms(study.unit.kind, policy.adjacencies[0])
        if unprotected(study):
            policy.check_terms(NONE, policy.adjacencies[0])
        policy.check_population(study.data.population)
        settings = settings_of(study)
        policy.check_placement(settings.placement)
        check_sums(policy.secure_sums, settings.secagg)
        if people < policy.min_population:
            raise LedgerRefusal(
                633,
                f"the policy asks for {policy.min_population} people at this site and it has fewer",
            )

    def charge(self, plan: Plan, run: str) -> None:
        """Hold the worst case of the whole run; asking again holds it once.

        Raises:
            LedgerRefusal: SQ-312 if it does not fit, SQ-340 by policy.
            UsageError: SQ-634 for a policy without a ceiling.
        """
        self.policy.check_terms(plan.unit, plan.adjacency)
        with self._open() as ledger:
            standing = ledger.budgets()
            terms = standing[0].budget if standing else self._found(ledger, plan)
            # Whichever is lower holds: the budget as founded, or the file as it is today.
            self.policy.check_budget(self.site, terms.epsilon, terms.delta)
            ledger.reserve(plan, budget=_BUDGET, key=run)

    def rehearse(self, plan: Plan, run: str) -> None:
        """Refuse what `charge` would refuse: charge a copy of the ledger, and throw it away.

        Whoever may ask for nothing must not decide a budget's terms either, as the first charge
        does.

        Raises:
            SequesterError: as `charge`.
        """
        place = self._place()
        self._refuse_lost()
        trial = place.with_name(_TRIAL)
        shutil.rmtree(trial, ignore_errors=True)  # of a process that was killed
        trial.mkdir(parents=True, mode=0o700)
        try:
            if place.exists():
                self._open().close()  # says what is wrong with it
                with (
                    closing(sqlite3.connect(place)) as ours,
                    closing(sqlite3.connect(trial / place.name)) as copy,
                ):
                    ours.backup(copy)
            replace(self, ledger=_url(trial)).charge(plan, run)
        finally:
            shutil.rmtree(trial)

    def settle(self, plan: Plan, run: str, rounds: int) -> None:
        """Charge the rounds that ran instead of all; a second time changes nothing."""
        if not rounds:
            give_back(self._place().parent, run)
            return
        with self._open() as ledger:
            ledger.reservation(run).commit(plan.event(rounds))

    def _found(self, ledger: Ledger, plan: Plan) -> Budget:
        ceiling = self.policy.datasets.get(self.site, self.policy.ceiling)
        if ceiling is None:
            raise UsageError(
                634, "this node's policy names no ceiling; nothing can be charged against it"
            )
        return ledger.create_budget(
            _BUDGET, self.site, ceiling.epsilon, ceiling.delta, adjacency=plan.adjacency
        )

    def _open(self) -> Ledger:
        place = self._place()
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._refuse_lost()
        if place.exists():
            ledger = Ledger.open(self.ledger)
        else:
            ledger = Ledger.create(self.ledger, policy=self.policy)
        place.with_name(FOUNDED).touch()
        return ledger

    def _refuse_lost(self) -> None:
        """A new ledger would forget what was charged.

        Raises:
            UsageError: SQ-640.
        """
        place = self._place()
        if place.with_name(FOUNDED).exists() and not place.exists():
            raise UsageError(
                640,
                "this node's ledger is lost, and a new one would forget what was charged; its "
                f"holder has to put {_LEDGER} back",
            )

    def _place(self) -> Path:
        return Path(self.ledger.removeprefix("sqlite:///"))


def give_back(folder: Path, run: str, *, told: bool = False) -> str:
    """Free what a run holds of which no answer about people left the node.

    Where one did, or might have, it stays charged; so does what has expired.

    Args:
        folder: The node's.
        run: Its name.
        told: Whether something may have been told that the ledger does not know of.

    Returns:
        The reservation's status before, as `Reservation.status`; empty where there is none.
    """
    status = status_of(folder, run)
    if status == "reserved":
        with Ledger.open(_url(folder)) as ledger:
            held = ledger.reservation(run)
            held.begin() if told else held.void("the run ended before its first round")
    return status


def begin(folder: Path, run: str) -> None:
    """Note that an answer about people is about to leave: from now on nothing is given back."""
    with Ledger.open(_url(folder)) as ledger:
        ledger.reservation(run).begin()


def status_of(folder: Path, run: str) -> str:
    """What the node's ledger says of a run's reservation; empty where there is none."""
    if not (folder / _LEDGER).exists():
        return ""
    with Ledger.open(_url(folder)) as ledger:
        try:
            return ledger.reservation(run).status()
        except UsageError as missing:
            if missing.code != 323:
                raise
            return ""


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / _LEDGER}"


def check_sums(terms: SecureSums, asked: SecureSum | None) -> None:
    """Refuse secure sums that are weaker than the holder's terms, from public numbers alone.

    Args:
        terms: The holder's.
        asked: The study's `[federated.secagg]`; None: in clear.

    Raises:
        LedgerRefusal: SQ-649.
    """
    if asked is None:
        if terms.required:
            raise LedgerRefusal(649, "the policy asks for secure sums and the study has none")
        return
    rules = (
        (terms.semi_honest or not asked.semi_honest, "allows no semi-honest secure sums"),
        (
            asked.min_cohort >= terms.min_cohort,
            f"hides this site among {terms.min_cohort} or more, the study's min_cohort is "
            f"{asked.min_cohort}",
        ),
        (
            asked.dropout <= terms.dropout,
            f"lets dropout be at most {terms.dropout:g}, the study says {asked.dropout:g}",
        ),
        (
            asked.corrupt >= terms.corrupt,
            f"asks for corrupt of at least {terms.corrupt:g}, the study says {asked.corrupt:g}",
        ),
    )
    for good, why in rules:
        if not good:
            raise LedgerRefusal(649, f"the policy {why} (secure_sums)")


def unprotected(study: Study) -> bool:
    """Whether a study gives no guarantee: no noise, or noise that anybody can compute."""
    return study.privacy.mode == "none" or study.privacy.insecure_test_seed is not None
