"""Many compositions at once, exact to a relative error even where δ is 10⁻³⁰.

The loss distribution is tilted by e^(θ·loss) before the Fourier transform and tilted back
after it. With θ at the saddle point the mass that decides δ sits in the middle of the
transform, so rounding is relative to δ instead of to 1. A plain transform has an absolute
error of about T·10⁻¹⁶, which is how other libraries come to report ε below the truth.

Every error is bounded and added: rounding of the transform and of the power (a posteriori,
from the transform itself), mass that wraps around (Chernoff), mass at infinity.
Proof: proofs/tilted_fft.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from sequester.accounting.pmf import EPS, Pmf, Summary

MOST_POINTS = 2**22
# Of the δ in question, e^−20 may lie outside the window; it is bounded and added.
_CUT = 20.0
_RARE = 14.0
_STAGE = 8.0 * EPS  # rounding per butterfly stage, over three times the worst case
_NEGLIGIBLE = -55.0


@dataclass(frozen=True)
class Tilted:
    """The composed loss, seen from one tilt: certified δ at any ε, tight near its saddle."""

    losses: np.ndarray  # [loss] increasing
    tail_p: np.ndarray  # [loss] Σ over losses ≥ this one of mass, over e^scale
    tail_q: np.ndarray  # [loss] the same of mass·e^(reference − loss)
    scale: float
    reference: float
    extra: float  # mass at infinity and beyond the window
    shift: float

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """Upper bound on δ at each ε, shape `(epsilons,)`; 1 where this tilt sees nothing."""
        wanted = np.asarray(epsilons, dtype=float) - self.shift
        k = np.searchsorted(self.losses, wanted, side="right")
        known = (wanted >= self.losses[0]) & (k < self.losses.size)
        k = np.minimum(k, self.losses.size - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            value = self.tail_p[k] - np.exp(wanted - self.reference) * self.tail_q[k]
            value = np.maximum(value, 0.0) + 1e-12 * self.tail_p[k]
            total = value * math.exp(min(self.scale, 700.0)) + self.extra
        beyond = wanted >= self.losses[-1]
        total = np.where(known & np.isfinite(total), total, np.where(beyond, self.extra, 1.0))
        return np.minimum(total, 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 whose certified δ is at most `delta`."""
        if delta <= self.extra:
            return math.inf
        low, high = 0, self.losses.size - 1
        at_nodes = self.losses + self.shift
        if float(self.delta(at_nodes[-1:])[0]) > delta:
            return math.inf
        while low < high:
            middle = (low + high) // 2
            if float(self.delta(at_nodes[middle : middle + 1])[0]) <= delta:
                high = middle
            else:
                low = middle + 1
        if low == 0:
            return max(0.0, float(at_nodes[0]))
        # δ falls continuously between the two nodes; halving keeps the safe side.
        left, right = float(at_nodes[low - 1]), float(at_nodes[low])
        for _ in range(44):
            middle_value = 0.5 * (left + right)
            if float(self.delta(np.array([middle_value]))[0]) <= delta:
                right = middle_value
            else:
                left = middle_value
        return max(0.0, right)


def total_cumulants(summaries: list[tuple[Summary, int]], thetas: np.ndarray) -> np.ndarray:
    """Upper bounds on the composition's cumulant at each θ > 0."""
    total = np.zeros(len(thetas))
    for summary, count in summaries:
        total += count * summary.cumulants(thetas)
    return total


def window(
    summaries: list[tuple[Summary, int]], theta: float, level: float, least: float
) -> tuple[float, float, float]:
    """(lowest, highest) loss the transform must hold, and log of the mass above.

    Args:
        summaries: The composition, coarsely.
        theta: The tilt.
        level: Log of the δ that matters: what lies above the window is e^−20 of it.
        least: The smallest ε that will be asked for; a larger one allows a smaller window.
    """
    steps = np.exp(np.linspace(math.log(1e-3), math.log(1e5), 48))
    here = float(total_cumulants(summaries, np.array([theta]))[0])
    above = total_cumulants(summaries, theta + steps)
    top = float(np.min((above - level + _CUT) / (theta + steps)))
    beyond = float(np.min(above - (theta + steps) * top))
    # Wrapping only ever adds to δ; two conditions on the width keep what it adds at e^−14.
    # From below, a loss arrives with its mass times e^(−θ·width). From above, tilted mass
    # counts where it lands above ε, so it must be rare beyond top + (ε − bottom).
    scarce = _RARE + max(0.0, here - theta * least - level)
    rare = float(np.min((above - here + scarce) / steps))
    width = max(rare - least, (_CUT - level) / theta, top - least)
    return top - width, top, beyond


def compose(
    pmfs: list[tuple[Pmf, int]],
    theta: float,
    span: tuple[float, float, float],
) -> Tilted:
    """The loss of all `pmfs`, each taken `count` times, tilted by `theta`.

    Args:
        pmfs: Losses on one grid, with their counts.
        theta: The tilt, > 0; the order of the best Rényi bound minus 1 is a good one.
        span: From `window`, in nats.

    Source: tilting as in importance sampling and the Esscher transform; see proofs/.
    """
    step = pmfs[0][0].step
    bottom = math.floor(span[0] / step) - 1
    size = fft.next_fast_len(max(math.ceil(span[1] / step) + 2 - bottom, 16), real=True)
    log_size = math.log2(size) + 1.0
    log_modulus, growth = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    spectra: list[tuple[np.ndarray, int]] = []
    offset, log_total = 0, 0.0
    for pmf, count in pmfs:
        spectrum, centre, cumulant, error = _spectrum(pmf, theta, size)
        error += _STAGE * log_size
        square = spectrum.real**2 + spectrum.imag**2 + 1e-300
        log_modulus += (0.5 * count) * np.log(square)
        growth += count * (np.log1p(error / np.sqrt(square)) + 16.0 * EPS)
        spectra.append((spectrum, count))
        offset += count * (pmf.first + centre)
        log_total += count * cumulant
    # Most frequencies are powered to nothing; their whole contribution is bounded below.
    kept = np.flatnonzero(log_modulus + growth > _NEGLIGIBLE)
    modulus = np.exp(log_modulus[kept])
    noise = math.exp(_NEGLIGIBLE)
    noise += 2.0 * float((modulus * np.expm1(growth[kept])).sum()) / size
    noise += _STAGE * log_size * 2.0 * float(modulus.sum()) / size
    phase = sum((count * np.angle(one[kept]) for one, count in spectra), np.zeros(kept.size))
    powered = np.zeros(size // 2 + 1, dtype=complex)
    powered[kept] = modulus * (np.cos(phase) + 1j * np.sin(phase))
    composed = fft.irfft(powered, size)
    index = bottom + np.arange(size)
    tilted_mass = np.maximum(composed[(index - offset) % size], 0.0) + noise
    shift = sum(count * pmf.shift for pmf, count in pmfs)
    slack = sum(count * pmf.growth for pmf, count in pmfs)
    kept_mass = sum(count * math.log1p(-pmf.infinite) for pmf, count in pmfs)
    extra = -math.expm1(kept_mass) * (1.0 + 1e-9) + math.exp(min(0.0, span[2]))
    extra *= math.exp(min(slack, 700.0))
    return _untilt(index * step, tilted_mass, theta, log_total + slack, (extra, shift))


def _spectrum(pmf: Pmf, theta: float, size: int) -> tuple[np.ndarray, int, float, float]:
    """Transform of the tilted mass, centred; its centre, cumulant and bound on its rounding."""
    positive = pmf.mass > 0.0
    index = np.flatnonzero(positive)
    exponents = np.log(pmf.mass[positive])
    tilt = theta * pmf.losses[positive]
    magnitude = np.abs(exponents) + np.abs(tilt)
    exponents = exponents + tilt
    largest = float(exponents.max())
    cumulant = largest + math.log(float(np.exp(exponents - largest).sum()))
    mass = np.exp(exponents - cumulant)
    rounding = 2.0 * EPS * float((mass * (magnitude + abs(cumulant) + 4.0)).sum())
    centre = round(float((mass * index).sum()))
    places = (index - centre) % size
    folded: np.ndarray = np.zeros(size)
    if pmf.mass.size <= size:
        folded[places] = mass
    else:
        folded = np.bincount(places, mass, size)
    return fft.rfft(folded), centre, cumulant, rounding


def _untilt(
    losses: np.ndarray,
    tilted_mass: np.ndarray,
    theta: float,
    log_total: float,
    rest: tuple[float, float],
) -> Tilted:
    """Tail sums of mass and of mass·e^(−loss), on a scale that neither over- nor underflows."""
    reference = float(losses[np.argmax(tilted_mass)])
    first = int(np.searchsorted(losses, reference - 300.0 / (theta + 1.0)))
    losses, tilted_mass = losses[first:], tilted_mass[first:]
    away = losses - reference
    scale = log_total - theta * reference
    # The scale's own rounding is relative to its terms.
    scale += 4.0 * EPS * (abs(log_total) + abs(theta * reference) + 1.0)
    mass = tilted_mass * np.exp(-theta * away)
    tail_p = np.cumsum(mass[::-1])[::-1]
    tail_q = np.cumsum((mass * np.exp(-away))[::-1])[::-1]
    return Tilted(losses, tail_p, tail_q, scale, reference, *rest)
