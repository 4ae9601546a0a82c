"""Connecting the dots: from a dominating pair to a pessimistic loss on a grid.

A cell holds the outcomes whose loss lies between two grid points; its P-mass goes to the two
points so that its Q-mass is kept as well. The privacy profile of the result interpolates the
true one linearly in e^ε between grid points, hence lies above it.
Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022 (2207.04380). Here built from cell
masses instead of second differences, with every rounding error pushed to the larger loss.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, ndtri

from sequester.accounting.parts import (
    AtomPair,
    BlendPair,
    LaplacePair,
    MixturePair,
    NearPair,
    Pair,
)
from sequester.accounting.pmf import EPS, Pmf, blend, mirror
from sequester.accounting.renyi import Components

MOST_CELLS = 2**21


def discretise(pair: Pair, step: float, tail: float) -> Pmf:
    """The loss of `pair` on the grid of `step`; at most about `tail` is sent to infinity."""
    if isinstance(pair, MixturePair):
        return _mixture(pair, step, tail)
    if isinstance(pair, LaplacePair):
        return _laplace(pair, step)
    if isinstance(pair, AtomPair):
        return _atoms(pair, step)
    if isinstance(pair, BlendPair):
        return blend(pair.weights, [discretise(one, step, tail) for one in pair.pairs])
    if isinstance(pair, NearPair):
        pmf = discretise(pair.pair, step, tail)
        shift, growth = pmf.shift + 2.0 * pair.slack, pmf.growth + pair.slack
        return replace(pmf, shift=shift, growth=growth)
    return mirror(discretise(pair.pair, step, tail))


def loss_range(pair: Pair, tail: float) -> tuple[float, float]:
    """Smallest and largest loss that `discretise` puts on the grid."""
    if isinstance(pair, NearPair):
        return loss_range(pair.pair, tail)
    if isinstance(pair, MixturePair):
        low, high = _span(pair, tail)
        losses = _loss(pair, np.array([low, high]))
        return float(losses[0]), float(losses[1])
    if isinstance(pair, LaplacePair):
        return _laplace_range(pair)
    if isinstance(pair, AtomPair):
        p, q = np.array(pair.upper), np.array(pair.lower)
        both = (p > 0.0) & (q > 0.0)
        losses = np.log(p[both]) - np.log(q[both])
        return float(losses.min()), float(losses.max())
    if isinstance(pair, BlendPair):
        ranges = [loss_range(one, tail) for one in pair.pairs]
        return min(r[0] for r in ranges), max(r[1] for r in ranges)
    high = loss_range(pair.pair, tail)[1]
    return -high, high


# --- mixtures of Gaussians -------------------------------------------------------------------


def _span(pair: MixturePair, tail: float) -> tuple[float, float]:
    """The outcomes between which all but `tail` of P lies on either side."""
    reach = -float(ndtri(max(tail, 1e-300))) * pair.sigma
    shifts = [shift for shift, weight in pair.upper if weight > 0.0]
    # What lies below the lowest grid point is rounded up to it, so a coarser cut is safe.
    low = min(shifts) - min(reach, 9.0 * pair.sigma)
    return low, max(shifts) + reach


def _log_mix(components: Components, x: np.ndarray, sigma: float) -> np.ndarray:
    """Log density over that of N(0, sigma²)."""
    scale = 1.0 / (sigma * sigma)
    total: np.ndarray | None = None
    for shift, weight in components:
        if weight > 0.0:
            term = math.log(weight) + (shift * scale) * (x - shift / 2.0)
            total = term if total is None else np.logaddexp(total, term)
    if total is None:
        raise ValueError("a mixture without weight")
    return total


def _loss(pair: MixturePair, x: np.ndarray) -> np.ndarray:
    loss: np.ndarray = _log_mix(pair.upper, x, pair.sigma) - _log_mix(pair.lower, x, pair.sigma)
    return loss


def _slope(components: Components, x: np.ndarray, sigma: float) -> np.ndarray:
    """Derivative of the log mixture: the mean shift given x, over sigma²."""
    total, mean = np.zeros_like(x), np.zeros_like(x)
    log_all = _log_mix(components, x, sigma)
    for shift, weight in components:
        if weight > 0.0:
            term = math.log(weight) + shift / sigma**2 * (x - shift / 2.0)
            share = np.exp(term - log_all)
            total += share
            mean += shift * share
    slope: np.ndarray = mean / total / sigma**2
    return slope


def _two_point_inverse(losses: np.ndarray, rate: float, sigma: float) -> np.ndarray:
    """X at which log(1−q+q·e^((2x−1)/2σ²)) equals each loss; −∞ where it never does."""
    if rate >= 1.0:
        return sigma * sigma * losses + 0.5
    floor = math.log1p(-rate)
    above = losses - floor
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.log(np.expm1(np.clip(above, 0.0, 30.0)))
        large = above + np.log1p(-np.exp(-np.maximum(above, 1.0)))
        exponent = floor - math.log(rate) + np.where(above > 30.0, large, small)
    return np.where(above > 0.0, sigma * sigma * exponent + 0.5, -np.inf)


def _inverse(pair: MixturePair, losses: np.ndarray, tail: float) -> tuple[np.ndarray, float]:
    """Outcomes at which the loss takes each value, and the largest error in the loss."""
    bound = 64.0 * EPS * (1.0 + float(np.abs(losses).max()))
    if pair.lower == ((0.0, 1.0),) and _is_coin(pair.upper, 1.0):
        return _two_point_inverse(losses, pair.upper[-1][1], pair.sigma), bound
    if pair.upper == ((0.0, 1.0),) and _is_coin(pair.lower, -1.0):
        # The reversed pair: its loss at x is minus the removal's at −x.
        return -_two_point_inverse(-losses, pair.lower[-1][1], pair.sigma), bound
    return _newton_inverse(pair, losses, tail)


def _is_coin(components: Components, shift: float) -> bool:
    if len(components) == 1:
        return components[0] == (shift, 1.0)
    return len(components) == 2 and components[0][0] == 0.0 and components[1][0] == shift


def _newton_inverse(pair: MixturePair, losses: np.ndarray, tail: float) -> tuple[np.ndarray, float]:
    low, high = _span(pair, tail)
    margin = 0.25 * (high - low)
    table_x = np.linspace(low - margin, high + margin, 4097)
    table_loss = np.maximum.accumulate(_loss(pair, table_x))
    x = np.interp(losses, table_loss, table_x)
    inside = (losses > table_loss[0]) & (losses < table_loss[-1])
    cell = np.clip(np.searchsorted(table_loss, losses) - 1, 0, table_x.size - 2)
    left, right = table_x[cell], table_x[cell + 1]
    for _ in range(5):
        slope = _slope(pair.upper, x, pair.sigma) - _slope(pair.lower, x, pair.sigma)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = x - (_loss(pair, x) - losses) / slope
        x = np.where(np.isfinite(moved), np.clip(moved, left, right), x)
    # Flat stretches cannot be inverted to the last digit; what is left over is charged.
    error = np.abs(_loss(pair, x) - losses)[inside]
    shift = float(error.max(initial=0.0)) + 64.0 * EPS * (1.0 + float(np.abs(losses).max()))
    x = np.where(losses <= table_loss[0], -np.inf, np.where(losses >= table_loss[-1], np.inf, x))
    return x, shift


def _gaussian_cells(
    components: Components, edges: np.ndarray, sigma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mass of a mixture in (−∞, e₀), [e₀, e₁), …, [eₙ, ∞), and a bound on its rounding."""
    mass, error = np.zeros(edges.size + 1), np.zeros(edges.size + 1)
    for shift, weight in components:
        u = (edges - shift) / sigma
        below, above = ndtr(u), ndtr(-u)
        cell = np.where(u[:-1] > 0.0, above[:-1] - above[1:], below[1:] - below[:-1])
        mass += weight * np.concatenate([below[:1], np.maximum(cell, 0.0), above[-1:]])
        square = np.where(np.isfinite(u), np.minimum(u * u, 1e4), 0.0)
        edge = (8.0 + 2.0 * square) * EPS * np.minimum(below, above)
        edge = np.concatenate([[0.0], edge, [0.0]])
        error += weight * (edge[:-1] + edge[1:])
    return mass, error + 4.0 * EPS * mass


def _mixture(pair: MixturePair, step: float, tail: float) -> Pmf:
    low, high = loss_range(pair, tail)
    first, last = math.floor(low / step), math.ceil(high / step)
    grid = np.arange(first, last + 1) * step
    edges, shift = _inverse(pair, grid, tail)
    p, p_error = _gaussian_cells(pair.upper, edges, pair.sigma)
    q, q_error = _gaussian_cells(pair.lower, edges, pair.sigma)
    return _connect(first, step, (p, p_error), (q, q_error), shift)


def _connect(
    first: int,
    step: float,
    upper: tuple[np.ndarray, np.ndarray],
    lower: tuple[np.ndarray, np.ndarray],
    shift: float,
) -> Pmf:
    """Split cell masses to their end points; the lowest tail goes up, the highest to infinity."""
    (p, p_error), (q, q_error) = upper, lower
    inner, inner_q = p[1:-1], q[1:-1]
    losses = (first + np.arange(inner.size)) * step
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.exp(losses)
        excess = inner - growth * inner_q
        excess += p_error[1:-1] + growth * q_error[1:-1]
        excess += (shift + EPS * (4.0 + np.abs(losses))) * inner
    total = inner + p_error[1:-1]
    # Where e^loss overflows the comparison is meaningless: take the larger loss.
    right = np.where(np.isfinite(excess), excess / -math.expm1(-step), total)
    right = np.clip(right, 0.0, total)
    mass = np.zeros(inner.size + 1)
    mass[:-1] += total - right
    mass[1:] += right
    mass[0] += p[0] + p_error[0]
    return Pmf(first, mass, float(p[-1] + p_error[-1]), step, shift)


# --- Laplace ---------------------------------------------------------------------------------


def _laplace_range(pair: LaplacePair) -> tuple[float, float]:
    q, b = pair.rate, pair.scale
    keep = math.log1p(-q) if q < 1.0 else -math.inf
    low = float(np.logaddexp(keep, math.log(q) - 1.0 / b))
    high = float(np.logaddexp(keep, math.log(q) + 1.0 / b))
    return (-high, -low) if pair.reverse else (low, high)


def _laplace_cells(shift: float, edges: np.ndarray, scale: float) -> np.ndarray:
    u = (edges - shift) / scale
    below = np.where(u < 0.0, 0.5 * np.exp(np.minimum(u, 0.0)), 1.0)
    above = np.where(u > 0.0, 0.5 * np.exp(np.minimum(-u, 0.0)), 1.0)
    below, above = np.where(u < 0.0, below, 1.0 - above), np.where(u > 0.0, above, 1.0 - below)
    cell = np.where(u[:-1] > 0.0, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], np.maximum(cell, 0.0), above[-1:]])


def _laplace(pair: LaplacePair, step: float) -> Pmf:
    q, b = pair.rate, pair.scale
    low, high = _laplace_range(pair)
    first, last = math.floor(low / step) - 1, math.ceil(high / step) + 1
    grid = np.arange(first, last + 1) * step
    sign = -1.0 if pair.reverse else 1.0
    # Removal's loss log(1−q+q·e^ℓ) with ℓ = (2x−1)/b on [0, 1] and constant outside.
    line = _two_point_inverse(sign * grid, q, 1.0) - 0.5
    edges = np.where(
        line <= -1.0 / b, -np.inf, np.where(line >= 1.0 / b, np.inf, (b * line + 1) / 2)
    )
    if pair.reverse:
        edges = -edges
        shift_of = -1.0
    else:
        shift_of = 1.0
    plain = _laplace_cells(0.0, edges, b)
    mixed = (1.0 - q) * plain + q * _laplace_cells(shift_of, edges, b)
    p, other = (plain, mixed) if pair.reverse else (mixed, plain)
    error = 16.0 * EPS * (1.0 + 1.0 / b)
    bound = 64.0 * EPS * (1.0 + max(abs(low), abs(high)))
    return _connect(first, step, (p, error * p), (other, error * other), bound)


# --- atoms -----------------------------------------------------------------------------------


def _atoms(pair: AtomPair, step: float) -> Pmf:
    p, q = np.array(pair.upper), np.array(pair.lower)
    lost = pair.lost + float(p[(p > 0.0) & (q == 0.0)].sum())
    both = (p > 0.0) & (q > 0.0)
    p, q = p[both], q[both]
    losses = np.log(p) - np.log(q)
    bound = 64.0 * EPS * (1.0 + float(np.abs(losses).max()))
    index = np.floor(losses / step).astype(np.int64)
    first, size = int(index.min()), int(index.max() - index.min()) + 2
    above = np.clip(losses - index * step + bound, 0.0, step)
    share = np.clip(np.expm1(-above) / math.expm1(-step) * (1.0 + 8.0 * EPS), 0.0, 1.0)
    p = p * (1.0 + 16.0 * EPS)
    mass = np.bincount(index - first + 1, p * share, size)
    mass += np.bincount(index - first, p * (1.0 - share), size)
    return Pmf(first, mass, lost, step, bound)
