"""Sensitivity of matrix mechanisms: how far one unit moves C·x over a whole run.

A matrix mechanism releases C·G + Z, so its privacy is that of *one* Gaussian whose sensitivity
is the largest ‖C·x‖ over the participation patterns a unit may have.
Source: Choquette-Choo et al. 2023 (2211.06530), sections 3 and 4.
"""

from __future__ import annotations

import math

import numpy as np

from sequester.core.errors import UsageError


def toeplitz_sensitivity(
    coefficients: np.ndarray, *, participations: int = 1, separation: int = 1
) -> float:
    """Sensitivity of the lower-triangular Toeplitz matrix with first column `coefficients`.

    For non-negative, non-increasing coefficients the worst pattern takes part as early as it
    can, every `separation` steps. Source: Kalinin & Lampert 2024 (2405.13763), theorem 2.

    Args:
        coefficients: First column `[step]`, non-negative and non-increasing.
        participations: How often a unit takes part at most.
        separation: Least number of steps between two participations.

    Raises:
        UsageError: SQ-219 if the coefficients leave the theorem's assumptions.
    """
    column = np.asarray(coefficients, dtype=float)
    if column.ndim != 1 or column.size == 0 or not np.all(np.isfinite(column)):
        raise UsageError(219, "coefficients must be a non-empty vector of finite numbers")
    if np.any(column < 0.0) or np.any(np.diff(column) > 1e-12 * column[0]):
        raise UsageError(
            219,
            "the closed form needs non-negative, non-increasing coefficients; use "
            "matrix_sensitivity for others",
        )
    steps = column.size
    total = np.zeros(steps)
    for start in range(0, min(participations * separation, steps), separation):
        total[start:] += column[: steps - start]
    return float(np.linalg.norm(total)) * (1.0 + 1e-12)


def matrix_sensitivity(
    strategy: np.ndarray, *, participations: int = 1, separation: int = 1
) -> float:
    """Upper bound for any strategy matrix C, exact if C has no negative entry in CᵀC.

    Maximises Σ|CᵀC|ᵢⱼ over patterns by dynamic programming over the last two participations'
    rows: an upper bound because each participation is paired with its own worst partners.

    Args:
        strategy: C `[row, step]`.
        participations: How often a unit takes part at most.
        separation: Least number of steps between two participations.

    Source: Choquette-Choo et al. 2023 (2306.08153), algorithm for b-min-sep.
    """
    matrix = np.asarray(strategy, dtype=float)
    if matrix.ndim != 2 or not np.all(np.isfinite(matrix)):
        raise UsageError(219, "a strategy is a finite matrix [row, step]")
    gram = np.abs(matrix.T @ matrix)
    # Row i's best total over patterns that contain i is at most its best over all patterns.
    row_totals = np.array([_best_pattern(row, participations, separation) for row in gram])
    squared = _best_pattern(row_totals, participations, separation)
    return math.sqrt(squared) * (1.0 + 1e-12)


def _best_pattern(values: np.ndarray, participations: int, separation: int) -> float:
    """Largest sum of at most `participations` values that lie `separation` apart."""
    steps = values.size
    best = np.zeros(steps + separation)
    for _ in range(min(participations, -(-steps // separation))):
        after = np.zeros(steps + separation)
        for step in range(steps - 1, -1, -1):
            after[step] = max(after[step + 1], values[step] + best[step + separation])
        best = after
    return float(best[0])


def tree_sensitivity(leaves: int, participations: int = 1, separation: int = 1) -> float:
    """Sensitivity of binary-tree aggregation over `leaves` steps, all nodes noised.

    One participation touches one node per level. Several touch shared nodes near the root:
    a node over `width` leaves is met at most ⌈width/separation⌉ times.
    """
    height = max(0, (leaves - 1).bit_length())
    squared = 0
    for level in range(height + 1):
        width = 2**level
        per_node = min(participations, -(-width // separation))
        full, rest = divmod(participations, per_node)
        squared += full * per_node**2 + rest**2
    return math.sqrt(squared)
