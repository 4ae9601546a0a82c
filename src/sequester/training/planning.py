"""From a study to a plan: noise solved for the target, or steps cut to the ceiling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sequester.accounting import ApproximateDP, Event, Gaussian, calibrate
from sequester.core.errors import UsageError
from sequester.mechanism import AdaptiveClipping, Plan
from sequester.training.study import Study

_KNOTS = 16
VOCABULARY_FAILURE = 0.05  # share of δ that private vocabularies may use up
# Noise of the count of clipped people over the gradient's multiplier: the gradient's noise rises
# by a factor (1 - (2·5)⁻²)^(-1/2), 0.5 %, so that the step costs what it cost without the count.
COUNT_NOISE = 5.0


@dataclass(frozen=True)
class Planned:
    """A plan and what it was cut to.

    Attributes:
        plan: What will run.
        cut: True if the study's steps did not fit under its ceiling.
    """

    plan: Plan
    cut: bool


def make_plan(study: Study, *, parameters: int = 1) -> Planned:
    """Solve for the study's noise, or for how many of its steps fit.

    Args:
        study: With `privacy.mode = "dp"`.
        parameters: Trained coordinates; they change the noise's absolute size, never ε.

    Raises:
        UsageError: SQ-270 if no noise, or not even one step, meets the target; SQ-237 if the count
            of adaptive clipping has too little noise of its own.
    """
    privacy = study.privacy
    plan = base_plan(
        study,
        noise_multiplier=privacy.noise_multiplier or 1.0,
        steps=study.training.steps,
        setup=setup_events(study),
        parameters=parameters,
    )
    if privacy.noise_multiplier is None:
        planned = Planned(_solve_noise(plan, float(privacy.epsilon or 0.0)), cut=False)
    elif privacy.epsilon is None:
        planned = Planned(plan, cut=False)
    else:
        planned = _cut(plan, privacy.epsilon)
    _check_count(study, planned.plan.noise_multiplier)
    return planned


def _check_count(study: Study, noise_multiplier: float) -> None:
    """Refuse a count that costs more than a step may, before anything is charged.

    Raises:
        UsageError: SQ-237.
    """
    adaptive = adaptive_of(study, noise_multiplier)
    try:
        if adaptive is not None:
            adaptive.gradient_noise_multiplier(noise_multiplier)
    except UsageError as refusal:
        raise refusal.at("privacy.adaptive.count_noise") from None


def base_plan(
    study: Study,
    *,
    noise_multiplier: float,
    steps: int,
    setup: tuple[Event, ...],
    parameters: int,
    central: bool = True,
) -> Plan:
    """The study's plan with these numbers filled in; in federated runs nobody is counted."""
    data = study.data
    size = study.training.lot_size
    adaptive = adaptive_of(study, noise_multiplier)
    named = not central and takes_part_openly(study)
    return Plan(
        unit=study.unit.kind,
        population=study.units,
        sampling_rate=size / data.population if size else study.training.sampling_rate,
        steps=steps,
        noise_multiplier=noise_multiplier,
        clip=study.privacy.clip,
        parameters=parameters,
        delta=study.privacy.delta,
        # Norms are counted against a fixed bound in central training only.
        adaptive=adaptive if central or study.privacy.adaptive else None,
        setup=setup,
        lot_size=size,
        adjacency="replace-one" if size else "zero-out" if named else "add-or-remove",
    )


def takes_part_openly(study: Study) -> bool:
    """Whether a run of rounds shows who takes part, so that only what they hold is hidden.

    So it is where each person's client talks to a server that is not trusted: with noise of its
    own, which would be missing without the person, or as a member of a secure sum.
    """
    rounds = study.federated or {}
    placement = rounds.get("placement", "cross-device")
    return placement == "local" or (
        placement == "cross-device" and rounds.get("secagg") is not None
    )


def spent_by_step(study: Study) -> list[float]:
    """Upper bounds on ε after each step, for the live line; empty without privacy.

    Computed at a few steps and held from each to the next one, so never too small.
    """
    if study.privacy.mode == "none":
        return []
    plan = make_plan(study).plan
    stride = max(1, plan.steps // _KNOTS)
    spent: list[float] = []
    for first in range(0, plan.steps, stride):
        last = min(first + stride, plan.steps)
        value = replace(plan, steps=last).epsilon(accountant="rdp")
        spent += [value] * (last - first)
    spent[-1] = plan.epsilon()
    return [min(value, spent[-1]) for value in spent]


def adaptive_of(study: Study, noise_multiplier: float) -> AdaptiveClipping | None:
    """The study's adaptive clipping as a mechanism; a fixed bound may be counted against."""
    adaptive = study.privacy.adaptive
    if adaptive is None:
        counted = study.privacy.count_clipped
        return AdaptiveClipping.counting(COUNT_NOISE * noise_multiplier) if counted else None
    return AdaptiveClipping(adaptive.quantile, adaptive.learning_rate, adaptive.count_noise)


def setup_events(study: Study) -> tuple[Event, ...]:
    """What is found before training: a Gaussian for ranges, for means, and for each vocabulary.

    Their noise is such that together they cost about `privacy.estimates` of the target ε.
    """
    ranges = any(f.wants_range for f in study.data.features.values())
    means = any(f.wants_mean for f in study.data.features.values())
    words = [name for name, c in study.data.categories.items() if c.estimate]
    releases = int(ranges) + int(means) + len(words)
    if not releases or study.privacy.mode == "none":
        return ()
    target = (study.privacy.epsilon or 1.0) * study.privacy.estimates
    together = calibrate.noise_multiplier(
        target, study.privacy.delta / 2.0, sampling_rate=1.0, steps=1
    )
    # n Gaussians of multiplier z·√n compose to one of multiplier z.
    each = Gaussian(together * releases**0.5)
    failures = (ApproximateDP(0.0, word_failure(study)),) * len(words)
    return (each,) * releases + failures


def word_failure(study: Study) -> float:
    """δ of one private vocabulary."""
    words = sum(c.estimate for c in study.data.categories.values())
    return VOCABULARY_FAILURE * study.privacy.delta / max(1, words)


def _solve_noise(plan: Plan, target: float) -> Plan:
    """The smallest noise multiplier whose certified ε is at most `target`."""

    def event_of(multiplier: float) -> Event:
        return replace(plan, noise_multiplier=multiplier, adaptive=None).event()

    try:
        multiplier = calibrate.noise_for(event_of, target, plan.delta, adjacency=plan.adjacency)
    except UsageError as refusal:
        raise UsageError(
            270,
            f"no noise reaches epsilon {target} at delta {plan.delta} in {plan.steps} steps "
            f"({refusal.message}); use fewer steps, a smaller sampling_rate, or declare ranges "
            "and vocabularies publicly",
            where="privacy.epsilon",
        ) from None
    return replace(plan, noise_multiplier=multiplier)


def _cut(plan: Plan, ceiling: float) -> Planned:
    """As many of the plan's steps as stay under `ceiling`."""
    if plan.epsilon() <= ceiling:
        return Planned(plan, cut=False)
    steps = most_steps(plan.steps, lambda n: replace(plan, steps=n).epsilon() <= ceiling)
    if not steps:
        raise UsageError(
            270,
            f"not one step fits under epsilon {ceiling} at noise_multiplier "
            f"{plan.noise_multiplier}; raise the noise or let epsilon solve for it",
            where="privacy.noise_multiplier",
        )
    return Planned(replace(plan, steps=steps), cut=True)


def most_steps(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 0..limit that fits, where fewer always fit too."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
