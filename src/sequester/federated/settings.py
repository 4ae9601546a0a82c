"""The `[federated]` part of a study, and the algorithm, rule and codec it names."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sequester.core.errors import UsageError
from sequester.federated import algorithms as alg
from sequester.federated import compression as codecs
from sequester.federated.algorithms.personal import Adapter, FineTune, LocalHead, Personal
from sequester.federated.effects import check_algorithm, check_effects, check_ranges
from sequester.federated.messages import Layout
from sequester.training.study import Section, Study


class SecureSum(Section, frozen=True):
    """The `[federated.secagg]` part: members mask what they send, the server opens the sum only.

    Attributes:
        noise: "none": the server sees the exact sum and adds the noise. "discrete-gaussian",
            "skellam": every member adds a share before it masks, so that the sum is private
            before anybody sees it.
        min_cohort: Fewest members that a member hides among.
        dropout: Largest share of members that may vanish in a round.
        corrupt: Largest share that may work with the server; their noise does not count.
        semi_honest: Trust the server to follow the protocol: no signatures, no confirmation.
        bare_sums: Accept sums without noise shares although the model has rows (of categories)
            that only some members change, which name those members.
        drill: Share of members that leave at a random moment of every simulated round.
    """

    noise: Literal["none", "discrete-gaussian", "skellam"] = "none"
    min_cohort: int = 3
    dropout: float = 0.1
    corrupt: float = 0.1
    semi_honest: bool = False
    bare_sums: bool = False
    drill: float = 0.0


class Federated(Section, frozen=True):
    """How a study is trained without pooling the data.

    Rounds are `training.steps` and the cohort's rate is `training.sampling_rate`: what decides
    the guarantee is stated once.

    Attributes:
        placement: Where noise is added and whom it protects. "cross-device": a client is a
            person, the whole update is clipped, noise on the sum. "cross-silo": a client is a
            site with many people, each person is clipped inside it. "local": each client's
            update is private on its own.
        algorithm: How updates become a model.
        server_learning_rate: η_g.
        mu: Of FedProx, and of the personal model's pull.
        momentum: Of FedAvgM.
        beta1: Of FedAdagrad, FedAdam, FedYogi.
        beta2: Of FedAdam, FedYogi.
        tau: Of FedAdagrad, FedAdam, FedYogi.
        local_learning_rate: η_l of the clients' SGD.
        epochs: Passes over a client's windows in a round.
        batch: Windows a local step.
        local_momentum: ρ of the clients' SGD.
        local_steps: Private steps that a site takes in a round of placement "cross-silo", each
            with noise of its own and each one of `training.steps`. 1: one step for all sites
            together, with noise on their sum.
        sites: Every site and its public number of people: all of them take part, also one without
            anybody, and the numbers count where `local_steps` is above 1. Empty takes the sites
            from the data, as the claim then says, at equal numbers.
        weighting: How much a client counts; "windows" only without a guarantee.
        weight_cap: Of "capped".
        rule: How updates are aggregated; others than "mean" only without a guarantee.
        hostile_share: Share of hostile clients that "trimmed", "krum" and "multi-krum" bear.
        norm_bound: Of "norm-bound".
        compression: What travels.
        share: Of coordinates, for "top-k" and "random-k".
        bits: Of "quantise".
        rank: Of "low-rank" and of the personal adapter.
        personal: What a client keeps to itself.
        local_names: Prefixes of the tensors of a local head.
        engine: How cohorts are trained; "auto" picks the fastest exact one.
        threads: Of the compiled kernel.
        quorum: Fewest updates for a round without a guarantee.
        secagg: Secure aggregation; None sends updates in clear.
    """

    placement: Literal["cross-device", "cross-silo", "local"] = "cross-device"
    algorithm: Literal[
        "fedavg",
        "fedprox",
        "scaffold",
        "fednova",
        "fedavgm",
        "fedadagrad",
        "fedadam",
        "fedyogi",
    ] = "fedavg"
    server_learning_rate: float = 1.0
    mu: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    local_learning_rate: float = 0.1
    epochs: int = 1
    batch: int = 8
    local_momentum: float = 0.0
    local_steps: int = 1
    sites: dict[str, int] = msgspec.field(default_factory=dict)
    weighting: Literal["windows", "uniform", "capped"] = "uniform"
    weight_cap: float = 32.0
    rule: Literal["mean", "median", "trimmed", "krum", "multi-krum", "norm-bound"] = "mean"
    hostile_share: float = 0.2
    norm_bound: float = 1.0
    compression: Literal["none", "top-k", "random-k", "quantise", "low-rank"] = "none"
    share: float = 0.01
    bits: int = 4
    rank: int = 2
    personal: Literal["none", "head", "adapter", "fine-tune"] = "none"
    local_names: tuple[str, ...] = ("head",)
    engine: Literal["auto", "kernel", "batched", "loop"] = "auto"
    threads: int = 1
    quorum: int = 1
    secagg: SecureSum | None = None


def settings_of(study: Study) -> Federated:
    """The study's `[federated]` part, checked together with its privacy.

    Raises:
        UsageError: SQ-620 for a field that does not exist or has the wrong type or range,
            SQ-621 for a combination that no guarantee or algorithm covers, SQ-627 for a setting
            that has no effect here.
    """
    given: dict[str, Any] = study.federated or {}
    try:
        settings = msgspec.convert(given, Federated)
    except msgspec.ValidationError as problem:
        raise UsageError(620, f"[federated]: {problem}", where="federated") from None
    check_ranges(settings)
    _check_rounds(study, settings)
    if settings.secagg is not None:
        _check_secagg(study, settings, settings.secagg)
    if study.privacy.mode != "none":
        _check_guarantee(study, settings)
    elif settings.placement == "local":
        raise UsageError(
            621,
            "placement 'local' adds noise at each client and needs privacy; set privacy.mode = "
            "'dp' or another placement",
            where="federated.placement",
        )
    check_algorithm(settings)
    check_effects(study, settings, given)
    return settings


def _check_rounds(study: Study, settings: Federated) -> None:
    """Refuse several private steps in a round, or fixed cohorts, where nothing covers them."""
    private, silo = study.privacy.mode != "none", settings.placement == "cross-silo"
    several, size = settings.local_steps > 1, study.training.lot_size
    rules = [
        (
            not several or (private and silo),
            "local_steps",
            "are private steps inside a site: they need placement 'cross-silo' and privacy.mode = "
            "'dp'; without a guarantee use 'epochs' and 'batch'",
        ),
        (
            not several or study.training.steps % settings.local_steps == 0,
            "local_steps",
            "must divide training.steps, which counts every private step",
        ),
        (
            not several or (study.privacy.adaptive is None and settings.secagg is None),
            "local_steps",
            "clip by a fixed bound and add each site's own noise; remove privacy.adaptive and "
            "federated.secagg, or set local_steps = 1",
        ),
        (
            not size or not private or settings.placement == "cross-device",
            "placement",
            "draws people by coins of their own; remove training.lot_size, or use 'cross-device'",
        ),
        (
            not size or settings.secagg is None,
            "secagg",
            "charges members for coins; remove training.lot_size",
        ),
    ]
    for good, field, why in rules:
        if not good:
            raise UsageError(621, f"{field} {why}", where=f"federated.{field}")


def _check_guarantee(study: Study, settings: Federated) -> None:
    """Refuse what has no proven sensitivity."""
    silo = settings.placement == "cross-silo"
    plain_only = "has no known sensitivity; use it with privacy.mode = 'none' only"
    rules = [
        (settings.weighting != "windows", "weighting", "an unbounded weight " + plain_only),
        (settings.rule == "mean", "rule", f"rule {settings.rule!r} " + plain_only),
        (
            settings.algorithm not in ("scaffold", "fednova"),
            "algorithm",
            f"{settings.algorithm} reads more of each client than its clipped update, which "
            + plain_only,
        ),
        (
            study.unit.kind == "person",
            "placement",
            "federated training protects people; set unit.kind = 'person'",
        ),
        (
            not silo or settings.personal == settings.compression == "none",
            "placement",
            "sites send exact clipped sums in placement 'cross-silo': compression and "
            "personalisation have no place there",
        ),
        (
            not silo or bool(study.data.group),
            "placement",
            "placement 'cross-silo' needs data.group, the column that names a person's site",
        ),
        (
            settings.placement != "local" or study.training.sampling_rate == 1.0,
            "placement",
            "in placement 'local' the server sees who answers, so sampling amplifies nothing; "
            "set training.sampling_rate = 1.0",
        ),
        (
            settings.placement != "local" or settings.weighting == "uniform",
            "weighting",
            "placement 'local' sends no counts; set weighting = 'uniform'",
        ),
        (
            settings.placement != "local" or study.privacy.adaptive is None,
            "placement",
            "placement 'local' clips at the client by a fixed bound; remove privacy.adaptive",
        ),
        (
            study.privacy.clipping == "flat" or silo,
            "placement",
            "whole updates are clipped by one norm; set privacy.clipping = 'flat'",
        ),
    ]
    for good, field, why in rules:
        if not good:
            raise UsageError(621, why, where=f"federated.{field}")


def _check_secagg(study: Study, settings: Federated, secagg: SecureSum) -> None:
    """Refuse what cannot be summed in secret, and what a secret sum would hardly hide."""
    noisy, private = secagg.noise != "none", study.privacy.mode != "none"
    estimates = any(f.estimate for f in study.data.features.values()) or any(
        c.estimate for c in study.data.categories.values()
    )
    rules = [
        (settings.placement != "local", "placement", "hides nothing more in placement 'local'"),
        (
            settings.algorithm not in ("scaffold", "fednova") and settings.rule == "mean",
            "algorithm",
            "opens sums only, and this algorithm or rule reads each update",
        ),
        (
            settings.compression in ("none", "random-k"),
            "compression",
            "adds words of the same coordinates; use compression = 'random-k' or 'none'",
        ),
        (
            settings.weighting != "windows",
            "weighting",
            "sums weights of a public range; use weighting = 'capped'",
        ),
        (not noisy or private, "noise", "takes noise shares with privacy.mode = 'dp' only"),
        (
            not noisy or study.privacy.adaptive is None,
            "noise",
            "noises the sum and no count; remove privacy.adaptive or set noise = 'none'",
        ),
        (
            not noisy or not estimates,
            "noise",
            "is planned before any data are read; declare ranges and vocabularies publicly",
        ),
        (
            noisy or secagg.bare_sums or not study.data.categories,
            "noise",
            "hides little here: rows of categories change only where a member has that category, "
            "so a bare sum names members. Set noise = 'discrete-gaussian', or accept it with "
            "bare_sums = true",
        ),
        (0 <= secagg.drill <= secagg.dropout, "drill", "survives a drill of at most 'dropout'"),
    ]
    for good, name, why in rules:
        if not good:
            place = f"federated.{name}" if hasattr(settings, name) else f"federated.secagg.{name}"
            raise UsageError(624, f"[federated.secagg] {why}", where=place)


def work_of(settings: Federated) -> alg.LocalWork:
    """The clients' local work."""
    return alg.LocalWork(
        settings.local_learning_rate,
        settings.epochs,
        settings.batch,
        momentum=settings.local_momentum,
    )


def algorithm_of(settings: Federated, population: int) -> alg.Algorithm:
    """The algorithm named; `population` is the public number of enrolled clients."""
    rate = settings.server_learning_rate
    adaptive = {"beta1": settings.beta1, "tau": settings.tau}
    made: dict[str, alg.Algorithm] = {
        "fedavg": alg.FedAvg(rate),
        "fedprox": alg.FedProx(rate, settings.mu),
        "scaffold": alg.Scaffold(population, rate),
        "fednova": alg.FedNova(rate),
        "fedavgm": alg.FedAvgM(rate, settings.momentum),
        "fedadagrad": alg.FedAdagrad(rate, **adaptive),
        "fedadam": alg.FedAdam(rate, beta2=settings.beta2, **adaptive),
        "fedyogi": alg.FedYogi(rate, beta2=settings.beta2, **adaptive),
    }
    return made[settings.algorithm]


def rule_of(settings: Federated) -> alg.Rule | None:
    """The robust rule named; None for the algorithm's own weighted mean."""
    share = settings.hostile_share
    match settings.rule:
        case "median":
            return alg.CoordinateMedian()
        case "trimmed":
            return alg.TrimmedMean(share)
        case "krum":
            return alg.Krum(share)
        case "multi-krum":
            return alg.Krum(share, keep=1_000_000)
        case "norm-bound":
            return alg.NormBound(settings.norm_bound)
        case _:
            return None


def weighting_of(settings: Federated) -> alg.Weighting:
    """The weighting named."""
    match settings.weighting:
        case "windows":
            return alg.ByWindows()
        case "capped":
            return alg.Capped(settings.weight_cap)
        case _:
            return alg.Uniform()


def codec_of(settings: Federated) -> codecs.Codec | None:
    """The codec named; None for plain tensors."""
    match settings.compression:
        case "top-k":
            return codecs.TopK(settings.share)
        case "random-k":
            return codecs.RandomK(settings.share)
        case "quantise":
            return codecs.Quantise(settings.bits)
        case "low-rank":
            return codecs.LowRank(settings.rank)
        case _:
            return None


def shared_of(settings: Federated, layout: Layout) -> NDArray[np.bool_] | None:
    """Coordinates that clients share, `(size,)`; None for all."""
    personal = personal_of(settings, layout)
    return personal.shared() if isinstance(personal, LocalHead) else None


def personal_of(settings: Federated, layout: Layout) -> Personal | None:
    """What clients keep to themselves."""
    match settings.personal:
        case "head":
            return LocalHead(layout, settings.local_names)
        case "adapter":
            return Adapter(layout, settings.rank)
        case "fine-tune":
            return FineTune(layout, settings.mu)
        case _:
            return None
