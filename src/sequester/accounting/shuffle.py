"""How much a shuffled loader leaks at least: the reason why no amplification is claimed for it.

Chua et al. 2024 (2403.17673, 2411.04205): in each epoch a known adversarial data set makes one
random batch's sum 2 with the person and 1 without (in units of the bound, all other batches 0).
The largest batch sum is a statistic anybody could compute; its privacy loss is a *lower* bound
on ε. The upper bound is that of `Shuffled`.
"""

from __future__ import annotations

import numpy as np
from scipy import fft
from scipy.special import log_ndtr

from sequester.accounting import checks
from sequester.core.values import check_delta

_STEP = 2.0**-10
# What the transform's rounding may have added to δ; far above its size, far below any δ here.
_ROUNDING = 1e-11


def lower_bound(noise_multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """An ε that shuffled batches certainly exceed at `delta` (zero-out), 0 if none is found.

    The statistic is cut into bins (post-processing, which cannot raise ε) and the losses are
    rounded down. Useful for δ ≥ 10⁻⁹.

    Raises:
        UsageError: SQ-201, 208 or 209.
    """
    sigma = checks.positive(noise_multiplier, "noise_multiplier")
    count = checks.count(batches, "batches", least=1)
    times = checks.count(epochs, "epochs", least=1)
    target = check_delta(delta)
    edges = np.linspace(-9.0 * sigma, 2.0 + 9.0 * sigma, 6001)
    with_person, without = (_bins(edges, sigma, count, shift) for shift in (2.0, 1.0))
    seen = (with_person > 1e-18) & (without > 0.0)
    losses = np.log(with_person[seen]) - np.log(without[seen])
    index = np.floor(losses / _STEP).astype(np.int64)
    first = int(index.min())
    one = np.bincount(index - first, with_person[seen])
    size = fft.next_fast_len(times * one.size, real=True)
    total = fft.irfft(fft.rfft(one, size) ** times, size)
    grid = (first * times + np.arange(size)) * _STEP

    def certainly(epsilon: float) -> float:
        above = grid > epsilon
        return float((total[above] * -np.expm1(epsilon - grid[above])).sum()) - _ROUNDING

    low, high = 0.0, float(grid[-1])
    if certainly(low) <= target:
        return 0.0
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        if certainly(middle) > target:
            low = middle
        else:
            high = middle
    return low


def _bins(edges: np.ndarray, sigma: float, batches: int, shift: float) -> np.ndarray:
    """P(largest of one N(shift, σ²) and batches − 1 of N(0, σ²) in each bin), ends included."""
    log_cdf = log_ndtr((edges - shift) / sigma) + (batches - 1) * log_ndtr(edges / sigma)
    cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
    # Near 1 differences cancel; complements keep the upper tail's relative accuracy.
    rest = np.concatenate([[1.0], -np.expm1(log_cdf), [0.0]])
    mass: np.ndarray = np.where(rest[:-1] < 0.5, rest[:-1] - rest[1:], np.diff(cdf))
    positive: np.ndarray = np.maximum(mass, 0.0)
    return positive
