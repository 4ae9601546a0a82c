"""Sensitivity of matrix mechanisms: how far one unit moves C·x over a whole run.

A matrix mechanism releases C·G + Z, so its privacy is that of *one* Gaussian whose sensitivity
is the largest ‖C·x‖ over the participation patterns a unit may have.
Source: Choquette-Choo et al. 2023 (2211.06530), sections 3 and 4.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import fft

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


def square_root(steps: int) -> np.ndarray:
    """First column of the square root of the prefix-sum matrix, `[step]`: C(2k, k)/4^k.

    Optimal among all factorisations up to a constant, and free of tuning.
    Source: Fichtenberger, Henzinger & Upadhyay 2023 (2202.11205), section 3.
    """
    k = np.arange(1.0, steps)
    return np.concatenate(([1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))))


def prefix_error(
    coefficients: np.ndarray, *, participations: int = 1, separation: int = 1
) -> tuple[float, float]:
    """(largest, mean) squared error of the running sums, for noise of variance 1 per sensitivity.

    Releasing C·G + Z and multiplying by B = A·C⁻¹, with A the prefix sums, leaves the noise B·Z:
    step i has the squared norm of B's row i, times the squared sensitivity of C. This compares
    strategies; it has no part in their privacy.

    Args:
        coefficients: First column of C, as for `toeplitz_sensitivity`.
        participations: How often a unit takes part at most.
        separation: Least number of steps between two participations.

    Raises:
        UsageError: SQ-219 if the coefficients leave the theorem's assumptions.

    Source: Choquette-Choo et al. 2023 (2211.06530), section 2.
    """
    norm = toeplitz_sensitivity(coefficients, participations=participations, separation=separation)
    if norm == 0.0:
        raise UsageError(219, "a strategy of zeros releases nothing; its first value must be > 0")
    squared = norm * norm
    rows = np.cumsum(np.cumsum(_reciprocal(np.asarray(coefficients, dtype=float))) ** 2)
    return squared * float(rows[-1]), squared * float(rows.mean())


def tree_error(leaves: int) -> float:
    """Largest squared error of the running sums from a binary tree, every node noised.

    A running sum adds one node for each binary digit 1 of its length, and each unit touches one
    node per level. Source: Dwork et al. 2010; Chan, Shi & Song 2011.
    """
    most = max(number.bit_count() for number in range(1, leaves + 1))
    return tree_sensitivity(leaves) ** 2 * most


def _reciprocal(series: np.ndarray) -> np.ndarray:
    """Coefficients of 1 over a power series, by Newton's iteration with fast transforms."""
    found = np.array([1.0 / series[0]])
    while found.size < series.size:
        size = min(2 * found.size, series.size)
        length = fft.next_fast_len(2 * size + found.size, real=True)
        spectrum = fft.rfft(found, length)
        product = fft.irfft(fft.rfft(series[:size], length) * spectrum, length)[:size]
        correction = -product
        correction[0] += 2.0
        found = fft.irfft(fft.rfft(correction, length) * spectrum, length)[:size]
    return found
