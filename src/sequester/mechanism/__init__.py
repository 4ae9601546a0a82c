"""From a lot's clipped sum to a release, the plan behind it and the claim after it."""

from sequester.mechanism.adaptive import AdaptiveClipping
from sequester.mechanism.claim import Claim, Conditions, LedgerRow
from sequester.mechanism.noise import NoiseStream
from sequester.mechanism.plan import UNITS, Plan
from sequester.mechanism.position import Position
from sequester.mechanism.release import Released, release

__all__ = [
    "UNITS",
    "AdaptiveClipping",
    "Claim",
    "Conditions",
    "LedgerRow",
    "NoiseStream",
    "Plan",
    "Position",
    "Released",
    "release",
]
