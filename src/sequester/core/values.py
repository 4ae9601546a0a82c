"""Numbers about privacy that may only err on the safe side."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from sequester.core.errors import UsageError


def check_delta(delta: float) -> float:
    """Return δ if 0 < δ < 1.

    Raises:
        UsageError: SQ-201 otherwise (NaN included).
    """
    if not 0.0 < delta < 1.0:
        raise UsageError(
            201, f"delta must lie strictly between 0 and 1, got {delta}; 1e-5 or less is usual"
        )
    return float(delta)


def check_epsilon(epsilon: float) -> float:
    """Return ε if it is a number ≥ 0 (∞ allowed: it is an honest answer).

    Raises:
        UsageError: SQ-202 otherwise.
    """
    if math.isnan(epsilon) or epsilon < 0:
        raise UsageError(202, f"epsilon must be ≥ 0, got {epsilon}")
    return float(epsilon)


def round_up(value: float, digits: int = 4) -> float:
    """Round to `digits` significant digits, never below `value`: for what is shown of ε and δ."""
    if value == 0 or not math.isfinite(value):
        return value
    # The shortest decimal that reads back as `value`: 44.7 stays 44.7, and nothing falls below it.
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = float(exact.quantize(step, rounding=ROUND_CEILING))
    return rounded if rounded >= value else math.nextafter(rounded, math.inf)
