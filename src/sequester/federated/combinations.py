"""Which parts of a `[federated]` section go together: what a guarantee or a sum covers.

Proof of what is left: `proofs/federated_placements.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequester.core.errors import UsageError
from sequester.training.setup import estimated
from sequester.training.study import Study

if TYPE_CHECKING:
    from sequester.federated.settings import Federated, SecureSum

WEIGHT_ONE = 1 << 16
"""A weight of 1 as a masked coordinate holds it."""


def check_combinations(study: Study, settings: Federated) -> None:
    """Refuse what no guarantee, no sum or no server may be asked for.

    Raises:
        UsageError: SQ-621, or SQ-624 for what cannot be summed in secret.
    """
    _check_rounds(study, settings)
    if settings.secagg is not None:
        _check_secagg(study, settings, settings.secagg)
    if study.privacy.mode != "none":
        _check_guarantee(study, settings)
        _check_trust(study, settings)
    elif settings.placement == "local":
        raise UsageError(
            621,
            "placement 'local' adds noise at each client and needs privacy; set privacy.mode = "
            "'dp' or another placement",
            where="federated.placement",
        )


def trusts_server(settings: Federated) -> bool:
    """Whether a guarantee of this placement takes an honest server for granted."""
    noisy = settings.secagg is not None and settings.secagg.noise != "none"
    return not (settings.placement == "local" or settings.local_steps > 1 or noisy)


def _check_trust(study: Study, settings: Federated) -> None:
    """Refuse what needs everybody's data in one place, where no server is trusted with them."""
    if trusts_server(settings):
        return
    rules = [
        (
            estimated(study),
            "data",
            "estimates are found from everybody's records in one place",
            "declare ranges, means and vocabularies publicly, without 'estimate'",
        ),
        (
            study.data.holdout.protection == "privatised",
            "data.holdout.protection",
            "a privatised figure of merit sums what the model says of held-out people in one place",
            "set protection = 'public' and hold out people who need none",
        ),
    ]
    for asked, where, what, instead in rules:
        if asked:
            raise UsageError(
                621,
                f"{what}, and this placement's guarantee holds against the server too; {instead}, "
                "or choose a placement that trusts the server",
                where=where,
            )


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
        (
            noisy or settings.weighting != "capped" or settings.weight_cap <= WEIGHT_ONE,
            "weight_cap",
            f"rounds weights to whole {WEIGHT_ONE:,}ths, so that small ones would be nought; set "
            f"weight_cap to {WEIGHT_ONE:,} or less",
        ),
        (not noisy or private, "noise", "takes noise shares with privacy.mode = 'dp' only"),
        (
            not noisy or study.privacy.adaptive is None,
            "noise",
            "noises the sum and no count; remove privacy.adaptive or set noise = 'none'",
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
