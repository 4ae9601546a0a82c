"""What a guarantee about windows or steps means for a person who owns several of them.

Where the sampler is known the answer is exact: a person with K records sampled one by one
shifts the sum by a random number of bounds, a mixture of Gaussians. Elsewhere the group lemma
of (ε, δ)-privacy applies, and where even that is empty the honest answer is ∞.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sequester.accounting import checks
from sequester.accounting import events as ev
from sequester.accounting.accountant import delta as delta_of
from sequester.accounting.accountant import epsilon as epsilon_of
from sequester.core.errors import UsageError
from sequester.core.values import check_delta


@dataclass(frozen=True)
class Person:
    """A guarantee seen by one person.

    Attributes:
        epsilon: Certified upper bound for the person; ∞ where nothing is known.
        delta: The δ it holds at.
        contributions: Most records of one person that the claim's unit counts separately.
        method: "same" (one record), "mixture" (exact), "group lemma" or "none".
    """

    epsilon: float
    delta: float
    contributions: int
    method: str


def person(
    event: ev.Event, delta: float, contributions: int, *, adjacency: str = "add-or-remove"
) -> Person:
    """The guarantee of `event`, stated for one record, for a person with `contributions`.

    Raises:
        UsageError: SQ-201, 208, 210 or 211.
    """
    check_delta(delta)
    k = checks.count(contributions, "contributions", least=1)
    if k == 1:
        return Person(epsilon_of(event, delta, adjacency=adjacency), delta, 1, "same")
    try:
        value, method = epsilon_of(of_person(event, k), delta, adjacency=adjacency), "mixture"
    except UsageError:
        value, method = _group_lemma(event, delta, k, adjacency), "group lemma"
    return Person(value, delta, k, "none" if math.isinf(value) else method)


def person_epsilon(
    event: ev.Event, delta: float, contributions: int, *, adjacency: str = "add-or-remove"
) -> float:
    """`person(...)`'s ε."""
    return person(event, delta, contributions, adjacency=adjacency).epsilon


def of_person(event: ev.Event, k: int) -> ev.Event:
    """The event as a person with `k` independently sampled records meets it.

    Raises:
        UsageError: SQ-211 where the joint effect of several records is not known.
    """
    if isinstance(event, ev.Composed):
        return ev.Composed(tuple(of_person(part, k) for part in event.events))
    if isinstance(event, ev.SelfComposed):
        return ev.SelfComposed(of_person(event.event, k), event.count)
    if isinstance(event, ev.PoissonSampled):
        return ev.RecordsPoissonSampled(event.sampling_rate, k, event.event)
    if isinstance(event, ev.RecordsPoissonSampled):
        return ev.RecordsPoissonSampled(event.sampling_rate, k * event.records, event.event)
    if isinstance(event, ev.Gaussian):
        return ev.Gaussian(event.noise_multiplier / k)
    if isinstance(event, ev.QuantileEstimate):
        return ev.QuantileEstimate(event.standard_deviation / k)
    if isinstance(event, ev.MatrixMechanism | ev.TreeAggregation | ev.Laplace):
        # Sensitivities add: the person moves the release at most k times as far.
        return type(event)(**{**vars(event), "noise_multiplier": event.noise_multiplier / k})
    if isinstance(event, ev.ZCDP):
        return ev.ZCDP(event.rho * k * k)
    raise UsageError(211, f"{event.kind!r} is not known for a person with several records")


def _group_lemma(event: ev.Event, delta: float, k: int, adjacency: str) -> float:
    """Smallest k·ε with δ(ε)·(e^(kε) − 1)/(e^ε − 1) ≤ `delta`, rounded up; ∞ if none.

    Source: Vadhan 2017, lemma 2.2, in its sharp form Σ_{i<k} e^(iε)·δ.
    """

    def fits(epsilon: float) -> bool:
        log_delta = math.log(max(delta_of(event, epsilon, adjacency=adjacency), 1e-320))
        if epsilon == 0.0:
            return log_delta + math.log(k) <= math.log(delta)
        log_sum = k * epsilon + math.log1p(-math.exp(-k * epsilon))
        log_sum -= epsilon + math.log1p(-math.exp(-epsilon))
        return log_delta + log_sum <= math.log(delta)

    low = 0.0
    if fits(low):
        return 0.0
    high = max(2.0 * epsilon_of(event, delta, adjacency=adjacency), 1e-3)
    if math.isinf(high):
        return math.inf
    while not fits(high):
        low, high = high, 2.0 * high
        if high > 1e4 or k * high > 1e5:
            return math.inf
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        if fits(middle):
            high = middle
        else:
            low = middle
    return k * high
