"""Known pitfalls of private training, checked on a study before it runs.

Severities follow jax-privacy's sharp edges: "critical" breaks the guarantee or makes it
meaningless, "warning" weakens it or the model, "note" is worth knowing. Nothing here reads
the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sequester.core.errors import SequesterError
from sequester.training.planning import Planned, make_plan
from sequester.training.study import Study

SMALL_POPULATION = 300
SMALL_LOT = 50


@dataclass(frozen=True)
class Check:
    """One pitfall and whether the study avoids it.

    Attributes:
        name: Stable, for scripts.
        severity: "critical", "warning" or "note": how bad a failure is.
        passed: Whether it is avoided.
        detail: What was found and what to do.
    """

    name: str
    severity: str
    passed: bool
    detail: str


def examine(study: Study) -> list[Check]:
    """All checks, in the order of `docs/pitfalls.md`."""
    checks = [rule(study) for rule in _RULES]
    if study.privacy.mode == "dp":
        checks += _about_plan(study)
    return checks


def _unit(study: Study) -> Check:
    person = study.unit.kind == "person"
    bounded = study.data.max_per_person
    detail = "the unit is the person: everything one person gave is hidden together"
    if not person:
        detail = "the unit is a window: a person is protected only up to group privacy over " + (
            f"{bounded} windows; the claim says what that is"
            if bounded
            else "all their windows, which is nothing at all; set data.max_per_person"
        )
    return Check("unit", "warning" if bounded else "critical", person, detail)


def _mode(study: Study) -> Check:
    private = study.privacy.mode == "dp"
    detail = "noise is added" if private else "privacy.mode = 'none': nobody is protected"
    return Check("privacy", "critical", private, detail)


def _delta(study: Study) -> Check:
    """δ against the population; with few people 1/N is large, not safe."""
    limit = min(1e-5, 1.0 / study.data.population**1.1)
    good = study.privacy.delta <= limit
    return Check(
        "delta",
        "warning",
        good,
        f"delta {study.privacy.delta:g} for {study.data.population} people"
        + ("" if good else f"; use {limit:.1g} or less"),
    )


def _population(study: Study) -> Check:
    people = study.data.population
    good = people >= SMALL_POPULATION
    return Check(
        "population",
        "warning",
        good,
        f"{people} people are declared"
        + (
            ""
            if good
            else "; with so few, person-level noise needs a model of very few parameters, or "
            "pre-training on public data"
        ),
    )


def _denominator(study: Study) -> Check:
    expected = study.data.population * study.training.sampling_rate
    return Check(
        "denominator",
        "critical",
        True,
        f"sums are divided by the declared {expected:g} expected people, never by the lot drawn",
    )


def _lot(study: Study) -> Check:
    expected = study.data.population * study.training.sampling_rate
    good = expected >= SMALL_LOT
    return Check(
        "lot",
        "warning",
        good,
        f"{expected:.0f} people are expected in a lot"
        + ("" if good else "; noise is per lot, so larger lots and fewer steps learn more"),
    )


def _sampling(study: Study) -> Check:
    return Check(
        "sampling",
        "critical",
        True,
        "people are drawn by independent secret coins, which is what is accounted for",
    )


def _normalisation(study: Study) -> Check:
    features, words = study.data.features, study.data.categories
    private = [n for n, f in features.items() if f.estimate]
    private += [n for n, c in words.items() if c.estimate]
    detail = "ranges and vocabularies are public declarations"
    if private:
        detail = f"found privately and charged: {', '.join(private)}"
    return Check("normalisation", "critical", True, detail)


def _ranges(study: Study) -> Check:
    odd = [
        name
        for name, f in study.data.features.items()
        for bound in (f.lower, f.upper)
        if bound and float(f"{bound:.3g}") != bound
    ]
    return Check(
        "ranges-look-measured",
        "warning",
        not odd,
        "bounds are round numbers, as public knowledge gives"
        if not odd
        else f"the bounds of {', '.join(sorted(set(odd)))} have many digits: were they measured "
        "on these people? Then use estimate = true",
    )


def _tuning(study: Study) -> Check:
    return Check(
        "tuning",
        "note",
        False,
        "settings chosen by trying them on these people leak through the choice; choose on public "
        "or simulated data, or charge every trial to the ledger",
    )


def _metrics(study: Study) -> Check:
    held = study.data.holdout
    if held.protection == "privatised":
        return Check("metrics", "warning", True, "the figure of merit is privatised and charged")
    return Check(
        "metrics",
        "warning",
        False,
        "the figure of merit shows held-out people without protection; if they have not agreed, "
        "set data.holdout.protection = 'privatised'. Losses, norms and clip fractions stay in "
        "private/",
    )


def _ledger(study: Study) -> Check:
    good = study.ledger is not None
    return Check(
        "ledger",
        "warning",
        good,
        "charged before the data are touched"
        if good
        else "no [ledger]: nothing bounds what several runs spend together",
    )


def _seed(study: Study) -> Check:
    good = study.privacy.insecure_test_seed is None
    detail = "noise comes from the operating system's key"
    if not good:
        detail = "insecure_test_seed: anybody can take the noise off; the claim says NOT PRIVATE"
    return Check("noise-source", "critical", good, detail)


def _batch_statistics(study: Study) -> Check:
    return Check(
        "layers",
        "note",
        True,
        "layers that mix people (BatchNorm) are refused when the model is built",
    )


_RULES: tuple[Callable[[Study], Check], ...] = (
    _unit,
    _mode,
    _delta,
    _population,
    _denominator,
    _lot,
    _sampling,
    _normalisation,
    _ranges,
    _tuning,
    _metrics,
    _ledger,
    _seed,
    _batch_statistics,
)


def _about_plan(study: Study) -> list[Check]:
    try:
        planned: Planned = make_plan(study)
    except SequesterError as refusal:
        return [Check("plan", "critical", False, refusal.message)]
    plan = planned.plan
    epsilon = plan.epsilon()
    checks = [
        Check(
            "epsilon",
            "warning",
            epsilon <= 10.0,
            f"ε = {epsilon:.3g} at δ = {plan.delta:g} for one {plan.unit}, noise multiplier "
            f"{plan.noise_multiplier:.3g}, {plan.steps} steps"
            + ("" if epsilon <= 10.0 else "; above 10 the bound says little: name the attack risk"),
        )
    ]
    if planned.cut:
        checks.append(
            Check(
                "steps",
                "note",
                False,
                f"only {plan.steps} of {study.training.steps} steps fit under the ceiling",
            )
        )
    # Noise of the mean against the largest possible signal, the bound itself.
    ratio = plan.expected_lot / (plan.noise_multiplier * math.sqrt(1000.0))
    checks.append(
        Check(
            "signal",
            "note",
            ratio >= 1.0,
            f"for 1,000 parameters the noise is {1 / ratio:.2g} times the largest signal of a step",
        )
    )
    return checks
