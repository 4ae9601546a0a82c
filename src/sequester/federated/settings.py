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
from sequester.federated.combinations import check_combinations
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
    check_combinations(study, settings)
    check_algorithm(settings)
    check_effects(study, settings, given)
    return settings


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


CHOICES = ("algorithm", "weighting", "rule", "compression", "personal")


def detail_of(settings: Federated, fields: tuple[str, ...] = CHOICES) -> dict[str, object]:
    """What a card says of these choices, with the numbers that belong to what was chosen."""
    numbers: dict[str, tuple[str, ...]] = {
        "top-k": ("share",),
        "random-k": ("share",),
        "quantise": ("bits",),
        "low-rank": ("rank",),
        "adapter": ("rank",),
        "fine-tune": ("mu",),
        "fedprox": ("mu",),
        "fedavgm": ("momentum",),
        "fedadagrad": ("beta1", "tau"),
        "fedadam": ("beta1", "beta2", "tau"),
        "fedyogi": ("beta1", "beta2", "tau"),
        "capped": ("weight_cap",),
        "trimmed": ("hostile_share",),
        "krum": ("hostile_share",),
        "multi-krum": ("hostile_share",),
        "norm-bound": ("norm_bound",),
    }
    chosen = {field: getattr(settings, field) for field in fields}
    told = {n: getattr(settings, n) for value in chosen.values() for n in numbers.get(value, ())}
    if settings.local_momentum:
        told["local_momentum"] = settings.local_momentum
    return chosen | {name.replace("_", " "): value for name, value in told.items()}


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
