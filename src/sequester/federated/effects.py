"""What a `[federated]` part may hold: numbers that mean something, and nothing without an effect.

A setting that a placement or an algorithm never reads would be told on the card as if it had been
used. So each field below has a range, and a condition under which it changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sequester.core.errors import UsageError
from sequester.training.study import Study, Training

if TYPE_CHECKING:
    from sequester.federated.settings import Federated

_LARGE = 1e6
# Smallest and largest value; "(" and ")" leave the end out. Beyond 10⁶ no study is meant.
RANGES: dict[str, tuple[str, float, float, str]] = {
    "server_learning_rate": ("(", 0.0, _LARGE, "]"),
    "mu": ("[", 0.0, _LARGE, "]"),
    "momentum": ("[", 0.0, 1.0, ")"),
    "beta1": ("[", 0.0, 1.0, ")"),
    "beta2": ("[", 0.0, 1.0, ")"),
    "tau": ("(", 0.0, _LARGE, "]"),
    "local_learning_rate": ("(", 0.0, _LARGE, "]"),
    "epochs": ("[", 1, _LARGE, "]"),
    "batch": ("[", 1, _LARGE, "]"),
    "local_momentum": ("[", 0.0, 1.0, ")"),
    "local_steps": ("[", 1, _LARGE, "]"),
    "weight_cap": ("(", 0.0, _LARGE, "]"),
    "hostile_share": ("[", 0.0, 0.5, ")"),
    "norm_bound": ("(", 0.0, _LARGE, "]"),
    "share": ("(", 0.0, 1.0, "]"),
    "bits": ("[", 1, 16, "]"),
    "rank": ("[", 1, _LARGE, "]"),
    "threads": ("[", 1, 1024, "]"),
    "quorum": ("[", 1, 1e9, "]"),
    "secagg.min_cohort": ("[", 1, 1e9, "]"),
    "secagg.dropout": ("[", 0.0, 1.0, ")"),
    "secagg.corrupt": ("[", 0.0, 1.0, ")"),
    "secagg.drill": ("[", 0.0, 1.0, ")"),
}

_CENTRAL = (
    "optimizer",
    "learning_rate",
    "momentum",
    "weight_decay",
    "schedule",
    "warmup",
    "average",
    "micro_batch",
    "checkpoint_every",
)


def check_ranges(settings: Federated) -> None:
    """Refuse numbers outside their range, infinite ones and NaN.

    Raises:
        UsageError: SQ-620, naming the field, its range and what was given.
    """
    for name, (opening, least, most, closing) in RANGES.items():
        part, field = (settings.secagg, name.split(".")[1]) if "." in name else (settings, name)
        if part is None:
            continue
        value = getattr(part, field)
        above = value >= least if opening == "[" else value > least
        below = value <= most if closing == "]" else value < most
        if not (above and below and math.isfinite(value)):
            raise UsageError(
                620,
                f"federated.{name} must lie in {opening}{least:g}, {most:g}{closing}, got {value}",
                where=f"federated.{name}",
            )
    if any(people < 1 for people in settings.sites.values()):
        raise UsageError(
            620, "every site of federated.sites has at least one person", where="federated.sites"
        )


def check_algorithm(settings: Federated) -> None:
    """Refuse what would silently leave an algorithm without what makes it that algorithm.

    Raises:
        UsageError: SQ-621.
    """
    normalised = settings.algorithm in ("scaffold", "fednova")
    if normalised and settings.rule != "mean":
        raise UsageError(
            621,
            f"{settings.algorithm} is a way to average: with rule {settings.rule!r} nothing of it "
            "would be left but FedAvg. Set rule = 'mean' or another algorithm",
            where="federated.rule",
        )
    if settings.algorithm == "scaffold" and settings.compression != "none":
        raise UsageError(
            621,
            "scaffold computes its control variates from whole deltas; what compression leaves "
            "out would be taken for gradient and feed on itself. Set compression = 'none' or "
            "another algorithm",
            where="federated.compression",
        )


def check_effects(study: Study, settings: Federated, given: Mapping[str, Any]) -> None:
    """Refuse what changes nothing here.

    Args:
        study: All of it.
        settings: Its `[federated]` part, defaults filled in.
        given: That part as it was written: only what somebody wrote can mislead anybody. A value
            that does nothing wherever it stands (`quorum = 1`, `rule = "mean"`) may stand.

    Raises:
        UsageError: SQ-627, naming the field and where it would have an effect; SQ-620 for sites
            whose people are not the population.
    """
    neutral: dict[str, Any] = {"epochs": 1, "local_momentum": 0.0, "quorum": 1, "threads": 1}
    neutral |= {"weighting": "uniform", "engine": "auto", "sites": {}}
    for name, (works, where) in _conditions(study, settings).items():
        if works or name not in given or getattr(settings, name) == neutral.get(name):
            continue
        raise UsageError(
            627,
            f"federated.{name} has no effect here: it works with {where}. Remove it, or change "
            "what it needs",
            where=f"federated.{name}",
        )
    if settings.algorithm == "fedprox" and _sums(study, settings):
        raise UsageError(
            627,
            "algorithm 'fedprox' has no effect here: sites send gradients and leave no model to "
            "pull back. Use 'fedavg' or a server optimiser",
            where="federated.algorithm",
        )
    _check_central(study)
    _check_sizes(study, settings)


def _check_central(study: Study) -> None:
    """Refuse what only central training reads."""
    defaults = Training()
    fields: dict[str, bool] = {
        f"training.{name}": getattr(study.training, name) != getattr(defaults, name)
        for name in _CENTRAL
    }
    fields["privacy.count_clipped"] = not study.privacy.count_clipped
    for field, given in fields.items():
        if given:
            raise UsageError(
                627,
                f"{field} belongs to central training and has no effect in rounds; remove it. Step "
                "lengths are federated.server_learning_rate and local_learning_rate, optimisers "
                "federated.algorithm; every round is saved, and nobody is counted against a fixed "
                "bound",
                where=field,
            )
    size, rate = study.training.lot_size, study.training.sampling_rate
    if size and rate not in (defaults.sampling_rate, size / study.data.population):
        raise UsageError(
            627,
            "training.sampling_rate has no effect beside training.lot_size, which says how many "
            "people each round takes; remove one of them",
            where="training.sampling_rate",
        )


def _check_sizes(study: Study, settings: Federated) -> None:
    """Refuse public sizes of sites that are not those of the population."""
    declared, population = sum(settings.sites.values()), study.data.population
    if declared and declared != population:
        raise UsageError(
            620,
            f"the people of federated.sites are {declared} together and data.population is "
            f"{population}; both are public, so let them agree",
            where="federated.sites",
        )


def _sums(study: Study, settings: Federated) -> bool:
    """Whether sites clip each of their people, so that clients never train by themselves."""
    return study.privacy.mode != "none" and settings.placement == "cross-silo"


def _conditions(study: Study, settings: Federated) -> dict[str, tuple[bool, str]]:
    """For each field: whether it is read in this study, and where it would be."""
    private = study.privacy.mode != "none"
    devices = not _sums(study, settings)
    several = settings.local_steps > 1
    trains = "clients that train by themselves, not sites that clip each of their people"
    algorithm, rule, compression = settings.algorithm, settings.rule, settings.compression
    adaptive = algorithm in ("fedadagrad", "fedadam", "fedyogi")
    return {
        "mu": (
            algorithm == "fedprox" or settings.personal == "fine-tune",
            "algorithm = 'fedprox' or personal = 'fine-tune'",
        ),
        "momentum": (
            algorithm == "fedavgm",
            "algorithm = 'fedavgm' (the clients' own is local_momentum)",
        ),
        "beta1": (adaptive, "algorithm = 'fedadagrad', 'fedadam' or 'fedyogi'"),
        "beta2": (algorithm in ("fedadam", "fedyogi"), "algorithm = 'fedadam' or 'fedyogi'"),
        "tau": (adaptive, "algorithm = 'fedadagrad', 'fedadam' or 'fedyogi'"),
        "local_learning_rate": (
            devices or several,
            "clients that train by themselves, or sites with local_steps above 1",
        ),
        "epochs": (devices, trains),
        "batch": (devices, trains),
        "local_momentum": (devices, trains),
        "sites": (not devices, "placement 'cross-silo' under a guarantee"),
        "weighting": (
            devices and rule in ("mean", "norm-bound"),
            "rule 'mean' or 'norm-bound' over " + trains,
        ),
        "weight_cap": (settings.weighting == "capped", "weighting = 'capped'"),
        "hostile_share": (
            rule in ("trimmed", "krum", "multi-krum"),
            "rule = 'trimmed', 'krum' or 'multi-krum'",
        ),
        "norm_bound": (rule == "norm-bound", "rule = 'norm-bound'"),
        "share": (
            compression in ("top-k", "random-k"),
            "compression = 'top-k' or 'random-k'",
        ),
        "bits": (compression == "quantise", "compression = 'quantise'"),
        "rank": (
            compression == "low-rank" or settings.personal == "adapter",
            "compression = 'low-rank' or personal = 'adapter'",
        ),
        "local_names": (settings.personal == "head", "personal = 'head'"),
        "engine": (devices, trains),
        "threads": (
            devices and settings.engine in ("auto", "kernel"),
            "engine 'auto' or 'kernel' for " + trains,
        ),
        "quorum": (
            not private,
            "privacy.mode = 'none': under a guarantee who answers must not decide what is released",
        ),
    }
