"""Known pitfalls of private training, checked on a study before it runs.

Severities follow jax-privacy's sharp edges: "critical" breaks the guarantee or makes it
meaningless, "warning" weakens it or the model, "note" is worth knowing. Nothing here reads
the data, so what only the data could show is judged by what a declaration looks like: figures
with many digits are counted or measured, not known. Every check can fail; what cannot go wrong
in a study (the divisor, the coins) is an invariant of the step and no check here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from sequester.core.errors import SequesterError
from sequester.gradients import native
from sequester.training.network import check_network
from sequester.training.planning import Planned, make_plan
from sequester.training.study import Study

SMALL_POPULATION = 300
SMALL_LOT = 50
COUNTED_DIGITS = 3
"""More significant digits than this, and a figure was counted or measured, not known."""
LARGE_VOCABULARY = 100
_STANDARD = {(0, 1), (-1, 1), (-2, 2), (-3, 3), (-4, 4), (-5, 5)}


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
    unit, bounded = study.unit.kind, study.data.max_per_person
    detail = "the unit is the person: everything one person gave is hidden together"
    if unit != "person":
        detail = f"the unit is a {unit}: a person is protected only up to group privacy over " + (
            f"{bounded} of them; the claim says what that is"
            if bounded
            else "all they have, which is nothing at all; set data.max_per_person"
        )
    return Check("unit", "warning" if bounded else "critical", unit == "person", detail)


def _mode(study: Study) -> Check:
    private = study.privacy.mode == "dp"
    detail = "noise is added" if private else "privacy.mode = 'none': nobody is protected"
    return Check("privacy", "critical", private, detail)


def _delta(study: Study) -> Check:
    """δ against the population; with few people 1/N is large, not safe."""
    limit = min(1e-5, 1.0 / study.units**1.1)
    good = study.privacy.delta <= limit
    return Check(
        "delta",
        "warning",
        good,
        f"delta {study.privacy.delta:g} for {study.units} units ({study.unit.kind})"
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
    """The divisor is the declared population; a population that was counted gives people away."""
    people = study.data.population
    if study.unit.kind != "person" and not study.data.max_per_person:
        return Check(
            "denominator",
            "critical",
            False,
            f"sums are divided by {people} {study.unit.kind}s, one a person, because how many "
            "a person may have is not declared; set data.max_per_person",
        )
    if study.training.lot_size:
        return Check("denominator", "warning", True, "sums are divided by the size of every lot")
    good = _digits(people) <= COUNTED_DIGITS
    return Check(
        "denominator",
        "warning",
        good,
        f"sums are divided by the expected {_units(study)}, {study.units} · "
        f"{study.training.sampling_rate:g}"
        + (
            ""
            if good
            else f"; {people} looks counted on these people: one person more or less would change "
            "it, and it is released without noise. Declare a round public figure"
        ),
    )


def _lot(study: Study) -> Check:
    training = study.training
    expected = training.lot_size or study.units * training.sampling_rate
    good = expected >= SMALL_LOT
    return Check(
        "lot",
        "warning",
        good,
        f"{expected:.0f} {_units(study)} are expected in a lot"
        + ("" if good else "; noise is per lot, so larger lots and fewer steps learn more"),
    )


def _units(study: Study) -> str:
    """What a lot is counted in."""
    return "people" if study.unit.kind == "person" else f"{study.unit.kind}s"


def _sampling(study: Study) -> Check:
    """A public rate, not batch size over a count; and a rate at which people are drawn at all."""
    rate, steps = study.training.sampling_rate, study.training.steps
    expected = study.training.lot_size or study.data.population * rate
    # 100 people of the declared population is as public as 0.05.
    public = _digits(rate) <= COUNTED_DIGITS or abs(expected - round(expected)) < 1e-6 * expected
    if not public:
        return Check(
            "sampling",
            "warning",
            False,
            f"sampling_rate = {rate:g} looks like a batch size over a count of these people; the "
            "rate is public and is accounted for as independent coins. Choose a round one, or "
            "lot / data.population",
        )
    return Check(
        "sampling",
        "warning",
        rate * steps >= 1.0,
        f"each person takes part in {rate * steps:.3g} of {steps} steps on average, by "
        "independent secret coins"
        + ("" if rate * steps >= 1.0 else "; most people never do: raise the rate or the steps"),
    )


def _normalisation(study: Study) -> Check:
    """Ranges and vocabularies that were taken from these people, by what they look like."""
    data, wrong = study.data, []
    told = {n: f for n, f in data.features.items() if not f.wants_range}
    if odd := [n for n, f in told.items() if _odd(f.lower) or _odd(f.upper) or _odd(f.centre)]:
        wrong.append(
            f"the figures of {', '.join(odd)} have many digits: were they measured on these "
            "people? Then use estimate = 'range' or 'mean'"
        )
    scaled = [n for n, f in told.items() if (f.lower, f.upper) in _STANDARD]
    if len(scaled) > 1 and len(scaled) == len(told):
        wrong.append(
            "every range is a standard one: were the columns scaled before, by figures of these "
            "people? Give the raw columns and their public ranges"
        )
    for name, category in data.categories.items():
        if len(category.values) > max(LARGE_VOCABULARY, data.population / 10):
            wrong.append(
                f"{name} has {len(category.values)} values for {data.population} people: a value "
                "that one person alone has gives them away; use estimate = true"
            )
    detail = "; ".join(wrong) or "ranges and vocabularies look like public declarations"
    private = [n for n, f in data.features.items() if f.estimate]
    private += [n for n, c in data.categories.items() if c.estimate]
    if private and not wrong:
        detail = f"found privately and charged: {', '.join(private)}"
    return Check("normalisation", "warning", not wrong, detail)


def _tuning(study: Study) -> Check:
    said = study.privacy.tuned_on
    if said == "charged" and study.ledger is None:
        return Check("tuning", "warning", False, "trials are said to be charged, but to no ledger")
    if said == "private":
        return Check(
            "tuning",
            "critical",
            False,
            "the settings come from uncharged trials on these very people: what was chosen shows "
            "them, and no ε covers it. Charge every trial to the ledger, or choose elsewhere",
        )
    return Check(
        "tuning",
        "note",
        said != "unsaid",
        f"the settings come from {said} people or trials"
        if said != "unsaid"
        else "settings chosen by trying them on these people leak through the choice; choose on "
        "public or simulated people, or charge every trial, and say so in privacy.tuned_on",
    )


def _metrics(study: Study) -> Check:
    held = study.data.holdout
    if study.data.simulated:
        return Check("metrics", "warning", True, "the figure of merit shows invented people")
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


def _layers(study: Study) -> Check:
    """The network is built from the study's public sizes and looked through."""
    try:
        model = check_network(study)
    except SequesterError as refusal:
        return Check("layers", "critical", False, refusal.message)
    detail = f"{study.model.kind} has no layer in which people meet"
    if model is None:
        detail = "looked at when the private vocabulary is known; a layer that mixes is refused"
    return Check("layers", "critical", True, detail)


def _kernels(study: Study) -> Check:
    """Which kernels this installation computes gradients with; the same for every study."""
    compiled = native.describe() == "compiled"
    detail = "compiled kernels run recurrences and wide softmax on the CPU"
    if not compiled:
        detail = (
            "plain PyTorch runs recurrences and wide softmax: the same numbers, more slowly; "
            "install where a C++ compiler is, without SEQUESTER_NO_NATIVE"
        )
    if native.describe_gpu() == "triton":
        detail += (
            "; on a GPU, Triton's recurrences: checked in Triton's interpreter, not yet measured "
            "on a GPU"
        )
    else:
        detail += "; on a GPU, plain PyTorch (no Triton here), not yet measured on a GPU"
    return Check("kernels", "note", compiled, detail)


def _odd(bound: float | None) -> bool:
    """Whether a bound has more digits than public knowledge usually has."""
    return bound is not None and _digits(bound) > COUNTED_DIGITS


def _digits(value: float) -> int:
    """Significant decimal digits of a number."""
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


_RULES: tuple[Callable[[Study], Check], ...] = (
    _unit,
    _mode,
    _delta,
    _population,
    _denominator,
    _lot,
    _sampling,
    _normalisation,
    _tuning,
    _metrics,
    _ledger,
    _seed,
    _layers,
    _kernels,
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
