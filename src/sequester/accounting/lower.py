"""From events to parts: which mechanism an event is, under which adjacency, how often.

Here is decided what each sampler is worth. Whatever is not known to be amplified is charged
unamplified; what is not defined under an adjacency is refused with the adjacency that is.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import singledispatch

import numpy as np
from scipy.special import bdtr, bdtrc, gammaln

from sequester.accounting import events as ev
from sequester.accounting import matrix, parts
from sequester.core.errors import UsageError

Parts = tuple[tuple[parts.Part, int], ...]


def lower(event: ev.Event, adjacency: str) -> Parts:
    """The parts of `event` with their counts; all plain Gaussians are merged into one.

    Raises:
        UsageError: SQ-210 if an event is not defined under `adjacency`, SQ-211 if a sampler
            cannot be combined with what it holds.
    """
    found: Counter[parts.Part] = Counter()
    _collect(event, adjacency, 1, found)
    squared = sum(n * p.mu * p.mu for p, n in found.items() if isinstance(p, parts.GaussianPart))
    others = tuple((p, n) for p, n in found.items() if not isinstance(p, parts.GaussianPart))
    if squared > 0.0:
        return ((parts.GaussianPart(math.sqrt(squared)), 1), *others)
    return others


def _collect(event: ev.Event, adjacency: str, count: int, found: Counter[parts.Part]) -> None:
    if count == 0:
        return
    if isinstance(event, ev.Composed):
        for inner in event.events:
            _collect(inner, adjacency, count, found)
    elif isinstance(event, ev.SelfComposed):
        _collect(event.event, adjacency, count * event.count, found)
    elif isinstance(event, ev.Shuffled):
        _shuffled(event, adjacency, count, found)
    elif isinstance(event, ev.CyclicPoissonSampled):
        draws = -(-event.steps // event.cycle)
        draw = ev.PoissonSampled(event.sampling_rate, event.event)
        _collect(draw, adjacency, count * draws, found)
    else:
        for part in single(event, adjacency):
            found[part] += count


def gaussian_mu(event: ev.Event) -> float | None:
    """μ at sensitivity 1 if `event` is nothing but Gaussian noise, else None."""
    if isinstance(event, ev.Gaussian):
        return _over(1.0, event.noise_multiplier)
    if isinstance(event, ev.QuantileEstimate):
        return _over(0.5, event.standard_deviation)
    if isinstance(event, ev.MatrixMechanism):
        return _over(event.sensitivity, event.noise_multiplier)
    if isinstance(event, ev.TreeAggregation):
        norm = matrix.tree_sensitivity(event.leaves, event.participations, event.separation)
        return _over(norm, event.noise_multiplier)
    if isinstance(event, ev.SelfComposed):
        inner = gaussian_mu(event.event)
        return None if inner is None else inner * math.sqrt(event.count)
    if isinstance(event, ev.Composed):
        several = [gaussian_mu(part) for part in event.events]
        known = [mu for mu in several if mu is not None]
        return math.hypot(*known) if len(known) == len(several) else None
    return None


def _over(sensitivity: float, noise: float) -> float:
    return sensitivity / noise if noise > 0.0 else math.inf


@singledispatch
def single(event: ev.Event, adjacency: str) -> tuple[parts.Part, ...]:
    """The parts of one event that is not a composition."""
    mu = gaussian_mu(event)
    if mu is None:
        raise UsageError(211, f"no accountant knows the event {event.kind!r}")
    scale = 2.0 if adjacency == "replace-one" else 1.0
    return (parts.GaussianPart(scale * mu),) if mu > 0.0 else ()


@single.register
def _laplace(event: ev.Laplace, adjacency: str) -> tuple[parts.Part, ...]:
    scale = event.noise_multiplier / (2.0 if adjacency == "replace-one" else 1.0)
    return (parts.LaplacePart(scale, 1.0) if scale > 0.0 else parts.GaussianPart(math.inf),)


@single.register
def _randomized_response(event: ev.RandomizedResponse, adjacency: str) -> tuple[parts.Part, ...]:
    if adjacency == "add-or-remove":
        raise UsageError(
            210,
            "randomized response has one output per person, so adding or removing a person is "
            "visible; use adjacency replace-one or zero-out",
        )
    k, other = event.categories, event.flip_probability / event.categories
    truth = 1.0 - event.flip_probability + other
    same = (other * (k - 2),) if k > 2 else ()
    if other == 0.0:
        return (parts.GaussianPart(math.inf),)
    return (parts.AtomPart((truth, other, *same), (other, truth, *same)),)


@single.register
def _discrete(event: ev.DiscreteGaussian, adjacency: str) -> tuple[parts.Part, ...]:
    scale = 2.0 if adjacency == "replace-one" else 1.0
    return (
        parts.DiscreteGaussianPart(
            event.standard_deviation, scale * event.sensitivity, event.dimension, event.clients
        ),
    )


@single.register
def _skellam(event: ev.Skellam, adjacency: str) -> tuple[parts.Part, ...]:
    scale = 2.0 if adjacency == "replace-one" else 1.0
    return (
        parts.SkellamPart(event.variance, scale * event.sensitivity, scale * event.sensitivity_l1),
    )


@single.register
def _zcdp(event: ev.ZCDP, adjacency: str) -> tuple[parts.Part, ...]:
    # A replacement is a removal and an addition; ρ grows with the square of the distance.
    rho = event.rho * (4.0 if adjacency == "replace-one" else 1.0)
    return (parts.ZcdpPart(rho),) if rho > 0.0 else ()


@single.register
def _approximate(event: ev.ApproximateDP, adjacency: str) -> tuple[parts.Part, ...]:
    epsilon, delta = event.epsilon, event.delta
    if adjacency == "replace-one":
        grown = delta * (1.0 + math.exp(min(epsilon, 700.0)))
        epsilon, delta = 2.0 * epsilon, min(1.0, grown)
    if delta >= 1.0:
        return (parts.GaussianPart(math.inf),)
    if epsilon == 0.0 and delta == 0.0:
        return ()
    share = 1.0 / (1.0 + math.exp(-epsilon))
    upper = ((1.0 - delta) * share, (1.0 - delta) * (math.exp(-epsilon) * share))
    return (parts.AtomPart(upper, upper[::-1], delta),)


@single.register
def _poisson(event: ev.PoissonSampled, adjacency: str) -> tuple[parts.Part, ...]:
    rate, inner = event.sampling_rate, event.event
    if isinstance(inner, ev.PoissonSampled):  # two coins in a row are one coin
        return _poisson(ev.PoissonSampled(rate * inner.sampling_rate, inner.event), adjacency)
    if rate == 0.0:
        return ()
    mu = gaussian_mu(inner)
    if mu is not None:
        return _sampled_gaussian(rate, mu, adjacency)
    content = lower(inner, adjacency)
    if len(content) == 0:
        return ()
    if len(content) > 1 or content[0][1] > 1 or content[0][0].slack > 0.0:
        raise UsageError(
            211,
            "Poisson sampling is accounted for one mechanism, or several Gaussian ones, per "
            "lot; draw a new lot for each, or sample each one on its own",
        )
    part = content[0][0]
    if adjacency == "replace-one":
        raise UsageError(
            210,
            f"Poisson sampling of {inner.kind!r} is accounted under add-or-remove and zero-out; "
            "only Gaussian noise is known under replace-one",
        )
    if isinstance(part, parts.LaplacePart):
        return (parts.LaplacePart(part.scale, rate),)
    known = (
        parts.AtomPart,
        parts.ZcdpPart,
        parts.DiscreteGaussianPart,
        parts.SkellamPart,
        parts.SelectedPart,
    )
    if isinstance(inner, ev.RandomizedResponse) or not isinstance(part, known):
        raise UsageError(211, f"Poisson sampling of {inner.kind!r} is not known to any accountant")
    return (part,) if rate == 1.0 else (parts.SampledPart(rate, part),)


def _sampled_gaussian(rate: float, mu: float, adjacency: str) -> tuple[parts.Part, ...]:
    if mu == 0.0:
        return ()
    if rate == 1.0 or math.isinf(mu):
        return (parts.GaussianPart(2.0 * mu if adjacency == "replace-one" else mu),)
    if adjacency == "replace-one":
        shifts = ((0.0, 1.0 - rate), (1.0, rate))
        return (parts.MixturePart(shifts, 1.0 / mu, opposed=True),)
    return (parts.SampledGaussianPart(rate, 1.0 / mu),)


@single.register
def _records(event: ev.RecordsPoissonSampled, adjacency: str) -> tuple[parts.Part, ...]:
    rate, records = event.sampling_rate, event.records
    if records == 1:
        return _poisson(ev.PoissonSampled(rate, event.event), adjacency)
    mu = _inner_gaussian(event.event, "several records per person")
    if mu == 0.0 or rate == 0.0:
        return ()
    if rate == 1.0 or math.isinf(mu):
        return _sampled_gaussian(1.0, records * mu, adjacency)
    if records > 4096:
        raise UsageError(208, f"records must be at most 4096, got {records}")
    i = np.arange(records + 1.0)
    choose = gammaln(records + 1.0) - gammaln(i + 1.0) - gammaln(records - i + 1.0)
    weights = np.exp(choose + i * math.log(rate) + (records - i) * math.log1p(-rate))
    # Mass lost to rounding goes to the largest shift, which is the unfavourable side.
    weights[-1] += max(0.0, 1.0 - float(weights.sum())) + 1e-18
    shifts = tuple((float(s), float(w)) for s, w in zip(i, weights, strict=True) if w > 0.0)
    opposed = adjacency == "replace-one"
    return (parts.MixturePart(shifts, 1.0 / mu, opposed),)


@single.register
def _truncated(event: ev.TruncatedPoissonSampled, adjacency: str) -> tuple[parts.Part, ...]:
    rate, mu = event.sampling_rate, _inner_gaussian(event.event, "truncated Poisson sampling")
    if rate == 0.0 or mu == 0.0:
        return ()
    plain = _sampled_gaussian(rate, mu, adjacency)
    if adjacency != "add-or-remove" or event.cap >= event.population or math.isinf(mu):
        # A unit changed in place changes nobody else's chance to be in the lot.
        return plain
    # Given that the others alone fill the lot, the unit's presence also evicts somebody.
    others_fill = float(bdtrc(event.cap - 1, event.population - 1, rate))
    others_fill = min(1.0, others_fill * (1.0 + 1e-9) + 1e-300)
    overfull = float(bdtrc(event.cap, event.population, rate)) * (1.0 + 1e-9)
    in_lot = min(1.0, overfull * event.cap / event.population / others_fill) if overfull else 0.0
    if float(bdtr(event.cap - 1, event.population - 1, rate)) == 0.0:
        others_fill = 1.0
    evicting = _sampled_gaussian(in_lot, 2.0 * mu, "replace-one") if in_lot > 0.0 else ()
    if not evicting or not plain:
        return plain
    return (parts.BlendPart((others_fill, 1.0 - others_fill), (evicting[0], plain[0])),)


@single.register
def _fixed_size(event: ev.FixedSizeSampled, adjacency: str) -> tuple[parts.Part, ...]:
    if adjacency == "add-or-remove":
        raise UsageError(
            210,
            "lots of fixed size are drawn from a population of known size, so adding or removing "
            "a unit is not hidden; use adjacency replace-one, or sample by Poisson",
        )
    mu = _inner_gaussian(event.event, "sampling without replacement")
    rate = event.size / event.population
    if mu == 0.0:
        return ()
    if rate == 1.0 or math.isinf(mu):
        return _sampled_gaussian(1.0, mu, adjacency)
    # Zero-out is a special replacement, but the others may differ by 2 from the zero: no gain.
    return (parts.FixedSizePart(rate, 0.5 / mu),)


@single.register
def _selected(event: ev.RepeatAndSelect, adjacency: str) -> tuple[parts.Part, ...]:
    content = lower(event.event, adjacency)
    if any(part.slack > 0.0 for part, _ in content):
        raise UsageError(211, "repeat-and-select needs a mechanism with a Rényi curve")
    return (parts.SelectedPart(content, event.mean, event.shape),)


def _inner_gaussian(event: ev.Event, what: str) -> float:
    mu = gaussian_mu(event)
    if mu is None:
        raise UsageError(211, f"{what} is accounted for Gaussian noise only, got {event.kind!r}")
    return mu


def _shuffled(event: ev.Shuffled, adjacency: str, count: int, found: Counter[parts.Part]) -> None:
    """Once per epoch, unamplified.

    Under add-or-remove the batches have fixed sizes, so somebody takes the removed unit's
    place (distance 2) and is missed where it came from (distance 1): √5 in total.
    """
    if adjacency != "add-or-remove":
        _collect(event.event, adjacency, count * event.epochs, found)
        return
    mu = _inner_gaussian(event.event, "shuffling under add-or-remove")
    if mu > 0.0 and event.epochs > 0:
        found[parts.GaussianPart(math.sqrt(5.0) * mu)] += count * event.epochs
