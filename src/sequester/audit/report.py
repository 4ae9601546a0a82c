"""An audit in the words and fields of `audit.json` and of the command line."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sequester import __version__
from sequester.audit.mechanism.canaries import FEWEST
from sequester.audit.mechanism.evidence import LEVEL, MechanismAudit
from sequester.audit.mechanism.tiers import ANY, ESTIMATE, Tier
from sequester.audit.membership.roc import Attack, measure
from sequester.audit.run import RunAudit

SCHEMA = "sequester/audit/1"


def public_fields(audit: RunAudit) -> dict[str, Any]:
    """What may be told outside: from canaries, from public numbers, or about invented people."""
    found = audit.mechanism
    if audit.simulated or found is None:
        return _fields(audit)
    final = found.view == "final"  # people moved these weights, and nobody was charged
    told = replace(found, tiers=(), curve_refuted=False) if final else found
    fields = _fields(replace(audit, mechanism=told))
    # Exact p-values would tell how many people there are, whose number is declared, not counted.
    for check in fields["battery"]["checks"]:
        check["p_value"] = float(f"{check['p_value']:.1g}")
    if final:
        fields["sentences"].append(
            "What the final weights give away was kept by whoever holds the data: people moved "
            "them."
        )
    return fields


def _fields(audit: RunAudit) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "sha256": audit.digests,
        "epsilon_claimed": audit.claimed,
        "delta": audit.delta,
        "epsilon_recomputed": audit.recomputed,
        "unchecked": list(audit.unchecked),
        "mechanism_tested": audit.mechanism is not None,
        "epsilon_lower": _lower(audit),
        "epsilon_lower_tier": ANY,
        "status": "private" if audit.protected else "NOT PRIVATE",
        "consistent": audit.consistent,
        "mechanism_consistent": audit.mechanism_consistent if audit.protected else None,
        "attacks": [],
        "tiers": [],
        "battery": None,
        "sentences": [],
    }
    if audit.mechanism is not None:
        fields |= _mechanism_fields(audit.mechanism)
    if audit.untested:
        fields["sentences"].append(_untested(audit))
    if not audit.protected:
        fields["sentences"].append(_NOBODY)
    fields["sentences"] += [f"NOT CHECKED: {what}." for what in audit.unchecked]
    if audit.simulated:
        fields["attacks"] += [attack_fields(attack) for attack in audit.membership]
    else:
        fields["sentences"].append(
            "Membership attacks on the people themselves were kept by whoever holds the data: "
            "their results are computed on private records."
        )
        if audit.above_caps:  # that much everybody must know, and no figure with it
            fields["sentences"].append("What was kept contradicts the claim.")
    return fields


def refused_fields(digests: dict[str, str], code: int) -> dict[str, Any]:
    """What everybody is told of a claim that was refused before anything was attacked."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "sha256": digests,
        "consistent": False,
        "mechanism_tested": False,
        "epsilon_lower": None,
        "attacks": [],
        "tiers": [],
        "battery": None,
        "sentences": [f"The claim was refused before anything was attacked: SQ-{code}."],
    }


def private_fields(audit: RunAudit) -> dict[str, Any]:
    """Everything, for the operator alone."""
    fields = _fields(audit)
    if not audit.simulated:
        fields["attacks"] += [attack_fields(attack) for attack in audit.membership]
    fields["above_caps"] = list(audit.above_caps)
    if audit.caps is not None:
        fields["caps"] = {
            "auc": audit.caps.auc,
            "advantage": audit.caps.advantage,
            "tpr_at_fpr": {f"{rate:g}": cap for rate, cap in audit.caps.tpr_at_fpr.items()},
        }
    return fields


def attack_fields(attack: Attack) -> dict[str, Any]:
    """One attack's figures with their 95 % intervals, and its curve for a logarithmic plot."""
    return {
        "name": attack.name,
        "auc": attack.auc.value,
        "auc_interval": [attack.auc.low, attack.auc.high],
        "advantage": attack.advantage,
        "tpr_at_fpr": {f"{rate:g}": found.value for rate, found in attack.tpr_at_fpr.items()},
        "tpr_interval": {
            f"{rate:g}": [found.low, found.high] for rate, found in attack.tpr_at_fpr.items()
        },
        "members": attack.members,
        "others": attack.others,
        "roc": {"fpr": list(attack.fpr), "tpr": list(attack.tpr)},
    }


def text(audit: RunAudit) -> str:
    """What the operator reads."""
    lines = [f"claimed: ε = {audit.claimed:.4g} at δ = {audit.delta:g}"]
    if audit.mechanism is not None:
        lines += _mechanism_sentences(audit.mechanism)
    if audit.untested:
        lines.append(_untested(audit))
    if audit.caps is not None and audit.membership:
        lines.append(f"the claim allows any attack AUC ≤ {audit.caps.auc:.3f}; found (private):")
    lines += [
        f"  {attack.name}: AUC {attack.auc.value:.3f} "
        f"[{attack.auc.low:.3f}, {attack.auc.high:.3f}], "
        f"TPR {attack.tpr_at_fpr[0.01].value:.3f} at FPR 1 %"
        for attack in audit.membership
    ]
    lines += [f"ABOVE ITS CAP: {what}" for what in audit.above_caps]
    if audit.recomputed > audit.claimed * (1 + 1e-6):
        lines.append(f"THE CLAIM IS TOO LOW: its events amount to ε = {audit.recomputed:.4g}")
    lines += [f"NOT CHECKED: {what}" for what in audit.unchecked]
    lines.append(_verdict(audit))
    return "\n".join(lines)


def _mechanism_fields(found: MechanismAudit) -> dict[str, Any]:
    attacks = []
    if found.tiers:
        attacks = [attack_fields(measure("canaries", found.scores.inside, found.scores.outside))]
    return {
        "attacks": attacks,
        "tiers": [_tier_fields(tier, found.claimed) for tier in found.tiers],
        "canaries_can_tell": found.canaries_can_tell,
        "curve_refuted": found.curve_refuted,
        "battery": {
            "level": found.battery.level,
            "alarm": found.battery.alarm,
            "smallest_noise_error": found.battery.smallest,
            "checks": [
                {"name": check.name, "p_value": check.p_value, "means": check.meaning}
                for check in found.battery.checks
            ],
        },
        "canaries": found.canaries,
        "canaries_inside": found.inside,
        "steps": found.steps,
        "epsilon_of_these_steps": found.claimed,
        "seed": found.seed,
        "seconds": round(found.seconds, 2),
        "sentences": _mechanism_sentences(found),
    }


def _tier_fields(tier: Tier, claimed: float) -> dict[str, Any]:
    return {
        "name": tier.name,
        "epsilon_lower": tier.epsilon,
        "alarm": tier.alarm,
        "ceiling": None if math.isinf(tier.ceiling) else tier.ceiling,
        "reach": None if math.isinf(tier.reach) else tier.reach,
        "estimate": tier.point,
        "verdict": tier.verdict(claimed),
        "assumes": tier.assumes,
    }


def _mechanism_sentences(found: MechanismAudit) -> list[str]:
    sentences = [
        f"Tested with {found.canaries} canaries ({found.inside} took part) in {found.steps} real "
        f"{found.what}, which claim ε = {found.claimed:.4g}, against an attacker who sees "
        f"{found.sees} (seed {found.seed})."
        if found.canaries
        else f"NOT TESTED WITH CANARIES: fewer than {FEWEST} fit into this model or its people. "
        f"The noise of {found.steps} real steps, which claim ε = {found.claimed:.4g}, was."
    ]
    for tier in found.tiers:
        if tier.name == ESTIMATE:
            sentences.append(f"Estimate, not a bound: ε ≈ {tier.point:.3g}.")
            continue
        verdict = {
            "exceeds": "contradicts the claim",
            "consistent": "does not contradict it",
            "cannot tell": "cannot tell: a perfect attack would prove no more than is claimed",
        }[tier.verdict(found.claimed)]
        sentences.append(
            f"Assuming {tier.assumes}: found ε ≥ {tier.epsilon:.3g}, could not have found more "
            f"than ε = {tier.ceiling:.3g}; {verdict}."
        )
    failed = ", ".join(f"{check.name} ({check.meaning})" for check in found.battery.failed)
    sentences.append(
        f"{len(found.battery.checks)} tests of noise and sampling at a level of "
        f"{LEVEL / 2:.1%} together: " + (f"FAILED {failed}." if failed else "no alarm.")
    )
    sentences.append(
        f"These tests could not have found noise that is less than {found.battery.smallest:.2%} "
        "too small, with a chance of four in five."
    )
    if found.curve_refuted:
        sentences.append("The canaries contradict the claimed trade-off curve.")
    return sentences


_NOBODY = (
    "NOT PRIVATE: this run was trained without noise, or with noise from a test seed that anybody "
    "can take off. Nothing that was found protects anybody."
)


def _untested(audit: RunAudit) -> str:
    return (
        f"THE MECHANISM WAS NOT TESTED, neither with canaries nor its noise: {audit.untested}. A "
        "fault in it would not have been found."
    )


def _verdict(audit: RunAudit) -> str:
    """The last line; it says that all is well only of what was looked at."""
    if audit.contradicted:
        return "THE CLAIM IS CONTRADICTED"
    if not audit.protected:
        return _NOBODY
    if audit.mechanism is not None and audit.mechanism.canaries_can_tell:
        return "nothing found contradicts the claim"
    if audit.mechanism is not None:
        return (
            "the noise and the released model do not contradict the claim; the canaries cannot "
            "tell: they could not have proved more than is claimed"
        )
    return "the released model does not contradict the claim; nothing else was tested"


def _lower(audit: RunAudit) -> float | None:
    """What any mechanism's tier proved; None where no canary tested it."""
    if audit.mechanism is None or not audit.mechanism.canaries:
        return None
    return next((tier.epsilon for tier in audit.mechanism.tiers if tier.name == ANY), 0.0)
