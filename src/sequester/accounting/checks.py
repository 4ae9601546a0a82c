"""Checks of the numbers that enter the accountant: anything doubtful is refused, never guessed.

NaN is the dangerous one: every comparison with it is false, so a check must be written as
"accept if in range", never as "refuse if out of range".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sequester.core.errors import UsageError

ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")
ACCOUNTANTS = ("pld", "rdp")


def real(value: Any, name: str) -> float:
    """A finite float.

    Raises:
        UsageError: SQ-209 for anything else, booleans and NaN included.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise UsageError(209, f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UsageError(209, f"{name} must be a finite number, got {value}")
    return number


def noise_multiplier(value: Any, name: str = "noise_multiplier") -> float:
    """A noise multiplier, finite and ≥ 0; 0 is allowed because ε = ∞ is an honest answer.

    Raises:
        UsageError: SQ-206 otherwise.
    """
    try:
        number = real(value, name)
    except UsageError as refusal:
        raise UsageError(206, refusal.message) from None
    if not number >= 0.0:
        raise UsageError(206, f"{name} must be ≥ 0, got {number}; larger is more private")
    return number


def rate(value: Any, name: str = "sampling_rate") -> float:
    """A probability in [0, 1].

    Raises:
        UsageError: SQ-207 otherwise.
    """
    try:
        number = real(value, name)
    except UsageError as refusal:
        raise UsageError(207, refusal.message) from None
    if not 0.0 <= number <= 1.0:
        raise UsageError(207, f"{name} is a probability in [0, 1], got {number}")
    return number


def count(value: Any, name: str, *, least: int = 0) -> int:
    """A whole number ≥ `least`; floats are refused even if whole.

    Raises:
        UsageError: SQ-208 otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(208, f"{name} must be a whole number ≥ {least}, got {value!r}")
    return int(value)


def positive(value: Any, name: str) -> float:
    """A finite number > 0.

    Raises:
        UsageError: SQ-209 otherwise.
    """
    number = real(value, name)
    if not number > 0.0:
        raise UsageError(209, f"{name} must be > 0, got {number}")
    return number


def delta_or_zero(value: Any) -> float:
    """δ in [0, 1); 0 asks for pure differential privacy.

    Raises:
        UsageError: SQ-201 otherwise.
    """
    try:
        number = real(value, "delta")
    except UsageError as refusal:
        raise UsageError(201, refusal.message) from None
    if not 0.0 <= number < 1.0:
        raise UsageError(201, f"delta must lie strictly between 0 and 1, got {number}")
    return number


def adjacency(value: str) -> str:
    """One of the three neighbouring relations.

    Raises:
        UsageError: SQ-210 otherwise.
    """
    if value not in ADJACENCIES:
        raise UsageError(210, f"adjacency must be one of {', '.join(ADJACENCIES)}, got {value!r}")
    return value


def accountant(value: str) -> str:
    """One of the accountants.

    Raises:
        UsageError: SQ-213 otherwise.
    """
    if value not in ACCOUNTANTS:
        raise UsageError(213, f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {value!r}")
    return value
