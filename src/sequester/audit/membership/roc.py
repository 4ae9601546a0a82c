"""How well scores tell members from others, with intervals, beside what ε allows.

Low false-positive rates are what matters: an attack that is sure of a few people is a breach,
whatever its average (Carlini et al. 2022, S&P, section IV).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, rel_entr
from scipy.stats import rankdata

from sequester.accounting import Tradeoff
from sequester.audit.mechanism.bounds import binomial_upper
from sequester.core.errors import UsageError

Floats = NDArray[np.float64]
LOW_RATES = (0.001, 0.01)
LEVEL = 0.01
"""Chance that a run which keeps its claim has any figure of any attack above a cap."""


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Attack:
    """What one attack achieved.

    Attributes:
        name: Which attack.
        auc: Area under the ROC curve.
        advantage: Largest TPR − FPR over thresholds; optimistic, as the threshold is chosen on
            the same people.
        tpr_at_fpr: True-positive rate at a false-positive rate of 0.1 % and 1 %.
        members: People who took part.
        others: People who did not.
        fpr: False-positive rates of the curve, logarithmically spaced, for drawing.
        tpr: True-positive rates at `fpr`.
    """

    name: str
    auc: Interval
    advantage: float
    tpr_at_fpr: dict[float, Interval]
    members: int
    others: int
    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


def measure(name: str, members: Floats, others: Floats) -> Attack:
    """Compare the scores of members and others; higher means "member".

    Args:
        name: Of the attack.
        members: `(members,)`.
        others: `(others,)`.

    Raises:
        UsageError: SQ-820 if a side is empty or a score is not finite.
    """
    inside, outside = np.asarray(members, float), np.asarray(others, float)
    if not len(inside) or not len(outside):
        raise UsageError(820, "membership needs people on both sides: members and held-out people")
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise UsageError(820, "a membership score is not finite; the model's losses are not either")
    false, true = _curve(inside, outside)
    rates = np.geomspace(1e-3, 1.0, 41)
    return Attack(
        name=name,
        auc=_auc(inside, outside),
        advantage=float((true - false).max()),
        tpr_at_fpr={rate: _tpr_at(rate, inside, outside) for rate in LOW_RATES},
        members=len(inside),
        others=len(outside),
        fpr=tuple(rates.tolist()),
        tpr=tuple(float(_highest(rate, false, true)) for rate in rates),
    )


@dataclass(frozen=True)
class Caps:
    """The most that a claim leaves to any attack, whatever it knows.

    Attributes:
        auc: Area under the claimed trade-off curve.
        advantage: Largest TPR − FPR.
        tpr_at_fpr: Largest TPR at each low FPR.
        curve: The claimed trade-off curve.
    """

    auc: float
    advantage: float
    tpr_at_fpr: dict[float, float]
    curve: Tradeoff = field(repr=False)

    @classmethod
    def of(cls, curve: Tradeoff) -> Caps:
        """Caps of a claimed curve; the area by trapezoids above it, so never too small."""
        rates = np.concatenate(
            [[0.0], np.geomspace(1e-6, 0.05, 500), np.linspace(0.05, 1, 2000)[1:]]
        )
        # Between two rates the curve, which is concave, stays below its value at the right one.
        highest = np.array([curve.tpr(float(rate)) for rate in rates])
        area = float((np.diff(rates) * highest[1:]).sum())
        return cls(
            auc=min(1.0, area),
            advantage=curve.advantage,
            tpr_at_fpr={rate: curve.tpr(rate) for rate in LOW_RATES},
            curve=curve,
        )

    def exceeded_by(self, attack: Attack, *, attacks: int = 1) -> tuple[str, ...]:
        """Figures of `attack` that the claim does not allow: each is a failure.

        All figures of all attacks together exceed their caps with a chance of at most `LEVEL`
        if the claim is true (Bonferroni), for any number of people.

        Args:
            attack: What was found.
            attacks: How many attacks are compared with these caps.
        """
        level = LEVEL / (attacks * (1 + len(LOW_RATES)))
        found = ["auc"] if self._area_exceeded(attack, level) else []
        found += [
            f"tpr at fpr {rate:g}" for rate in LOW_RATES if self._rate_exceeded(rate, attack, level)
        ]
        return tuple(found)

    def _area_exceeded(self, attack: Attack, level: float) -> bool:
        """Chernoff's bound for a mean over disjoint pairs (Hoeffding 1963, section 5)."""
        area, cap = attack.auc.value, self.auc
        if area <= cap:
            return False
        if cap <= 0.0:
            return True
        divergence = float(rel_entr(area, cap) + rel_entr(1 - area, 1 - cap))
        return min(attack.members, attack.others) * divergence >= -math.log(level)

    def _rate_exceeded(self, rate: float, attack: Attack, level: float) -> bool:
        """Compare at the largest false-positive rate that the threshold may really have.

        The threshold is the others' order statistic of rank `allowed + 1`, above which a share
        Beta(allowed + 1, others − allowed) of all others lies: Clopper–Pearson's upper limit.
        """
        hits = round(attack.tpr_at_fpr[rate].value * attack.members)
        low = 1 - binomial_upper(attack.members - hits, attack.members, level / 2)
        allowed = _allowed(rate, attack.others)
        return low > self.curve.tpr(binomial_upper(allowed, attack.others, level / 2))


def _curve(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Rates at every threshold, from "nobody" to "everybody"."""
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    false = 1 - np.searchsorted(np.sort(outside), cuts) / len(outside)
    true = 1 - np.searchsorted(np.sort(inside), cuts) / len(inside)
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def _highest(rate: float, false: Floats, true: Floats) -> float:
    return float(true[int(np.searchsorted(false, rate, side="right")) - 1])


def _auc(inside: Floats, outside: Floats) -> Interval:
    """By ranks, ties counted half; variance by DeLong et al. 1988 (Biometrics 44)."""
    first, second = len(inside), len(outside)
    both = rankdata(np.concatenate([inside, outside]))
    placed = (both[:first] - rankdata(inside)) / second
    passed = 1 - (both[first:] - rankdata(outside)) / first
    area = float(placed.mean())
    variance = sum(float(v.var(ddof=1)) / len(v) if len(v) > 1 else 0.25 for v in (placed, passed))
    reach = float(ndtri(0.975)) * math.sqrt(variance)
    return Interval(area, max(0.0, area - reach), min(1.0, area + reach))


def _allowed(rate: float, others: int) -> int:
    """How many of the others a threshold of at most `rate` may call members."""
    return math.floor(rate * others + 1e-9)


def _tpr_at(rate: float, inside: Floats, outside: Floats) -> Interval:
    """TPR at the largest threshold rate not above `rate`; Clopper–Pearson of the members.

    With fewer than `1/rate` others the threshold lies above all of them, and the true
    false-positive rate is only known to be small: the interval is then wide, and says so.
    """
    threshold = np.sort(outside)[::-1][_allowed(rate, len(outside))]
    hits = int((inside > threshold).sum())
    high = binomial_upper(hits, len(inside), 0.025)
    low = 1 - binomial_upper(len(inside) - hits, len(inside), 0.025)
    if len(outside) * rate < 1.0:
        low = 0.0
    return Interval(hits / len(inside), low, high)
