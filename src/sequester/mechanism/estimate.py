"""Ranges, means and vocabularies found privately, each one Gaussian release over people.

For studies that cannot declare them publicly. A person's whole contribution is one vector of
bounded L2 norm, however many records they have. Proofs: `proofs/private_estimates.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from sequester.core.errors import UsageError
from sequester.mechanism.noise import NoiseStream
from sequester.mechanism.release import met, on_grid

_BINS = 64
_GRID = 2.0**-24


@dataclass(frozen=True)
class Column:
    """Values of one column and who owns them; private.

    Attributes:
        values: float64 `(records,)`, NaN where missing.
        owner: int `(records,)`, in `0..people-1`.
        lower: Public lower bound.
        upper: Public upper bound.
        log: Work on `log(1 + value - lower)`.
    """

    values: np.ndarray
    owner: np.ndarray
    lower: float
    upper: float
    log: bool = False

    def to_unit(self) -> np.ndarray:
        """Values clamped to the public bounds and mapped to [0, 1]."""
        inside = np.clip(self.values, self.lower, self.upper) - self.lower
        width = self.upper - self.lower
        unit: np.ndarray = np.log1p(inside) / math.log1p(width) if self.log else inside / width
        return unit

    def from_unit(self, share: float) -> float:
        """The inverse of `to_unit` for one number."""
        width = self.upper - self.lower
        inside = math.expm1(share * math.log1p(width)) if self.log else share * width
        return self.lower + inside


def noisy(
    sums: np.ndarray,
    sensitivity: float,
    multiplier: float,
    stream: NoiseStream,
    step: int,
    *,
    question: str = "",
) -> np.ndarray:
    """A private vector: rounded to a grid, plus Gaussian noise of `multiplier · sensitivity`.

    The noise is bound to the sums, so that a repeated step meets other sums with other noise.

    Args:
        sums: float64, any shape; a sum over people.
        sensitivity: L2 bound on one person's share of it.
        multiplier: Noise over sensitivity; the event is `Gaussian(multiplier)`.
        stream: Where the noise comes from.
        step: A step of `stream` nobody has drawn.
        question: What the sums answer; the noise is bound to it, too.
    """
    grid = sensitivity * _GRID
    std = multiplier * (sensitivity + grid * math.sqrt(sums.size))
    counts = on_grid(torch.from_numpy(np.asarray(sums, dtype=np.float64)), grid)
    return add_noise(counts.numpy(), grid, std, stream, step, question=question)


def add_noise(
    counts: np.ndarray,
    grid: float,
    std: float,
    stream: NoiseStream,
    step: int,
    *,
    question: str,
) -> np.ndarray:
    """`grid · counts` plus rounded Gaussian noise of `std`; `counts` int64, any shape."""
    meets = met(torch.from_numpy(counts), grid, std, question=question)
    noise = on_grid(stream.draw(step, counts.size, meets=meets) * std, grid).numpy()
    released: np.ndarray = (counts + noise.reshape(counts.shape)).astype(np.float64) * grid
    return released


def ranges(
    columns: Mapping[str, Column],
    *,
    people: int,
    multiplier: float,
    stream: NoiseStream,
    step: int,
    tail: float = 0.02,
) -> dict[str, tuple[float, float]]:
    """Ranges that hold all but about `tail` of the mass on either side; one `Gaussian` in all.

    Every person spreads a weight of 1 per column over 64 public bins in proportion to their
    values, so their vector has L2 norm ≤ √columns. The quantiles of the noisy histogram are
    post-processing; bins whose noise swamps them are ignored.

    Args:
        columns: By name.
        people: How many people there are.
        multiplier: Noise multiplier.
        stream: Noise.
        step: Its step.
        tail: Mass cut off on either side.
    """
    histograms = np.stack([_histogram(column, people) for column in columns.values()])
    sensitivity = math.sqrt(len(columns))
    asked = _question("ranges", columns)
    released = noisy(histograms, sensitivity, multiplier, stream, step, question=asked)
    # Four deviations: of 64 empty bins hardly one passes by chance.
    floor = 4.0 * multiplier * sensitivity
    found = {}
    for (name, column), counts in zip(columns.items(), released, strict=True):
        kept = np.where(counts > floor, counts, 0.0)
        if kept.sum() <= 0:
            found[name] = (column.lower, column.upper)
            continue
        below = np.cumsum(kept) / kept.sum()
        first = int(np.searchsorted(below, tail, side="right"))
        last = int(np.searchsorted(below, 1.0 - tail, side="left"))
        found[name] = (
            column.from_unit(first / _BINS),
            column.from_unit(min(last + 1, _BINS) / _BINS),
        )
    return found


def _question(kind: str, columns: Mapping[str, Column]) -> str:
    """What is asked of `columns`, in words that no other question has."""
    asked = [(name, c.lower, c.upper, c.log) for name, c in columns.items()]
    return f"{kind} {asked}"


def _histogram(column: Column, people: int) -> np.ndarray:
    """Sum over people of each one's share of values per bin, `(64,)`."""
    known = ~np.isnan(column.values)
    owner = column.owner[known]
    place = np.minimum((column.to_unit()[known] * _BINS).astype(np.int64), _BINS - 1)
    own = np.bincount(owner, minlength=people)[owner]
    return np.bincount(place, weights=1.0 / own, minlength=_BINS)


def means(
    columns: Mapping[str, Column],
    *,
    people: int,
    multiplier: float,
    stream: NoiseStream,
    step: int,
    population: int,
) -> dict[str, float]:
    """The mean over people of each one's own mean, inside the public bounds; one `Gaussian`.

    Each person gives, per column, their mean mapped to [-½, ½] (0 without a value), divided by
    the declared population: a person who is absent counts as the middle of the range.
    """
    sums = []
    for column in columns.values():
        known = ~np.isnan(column.values)
        owner = column.owner[known]
        own = np.bincount(owner, minlength=people)[owner]
        sums.append(float(((column.to_unit()[known] - 0.5) / own).sum()))
    sensitivity = 0.5 * math.sqrt(len(columns))
    asked = _question("means", columns)
    released = noisy(np.array(sums), sensitivity, multiplier, stream, step, question=asked)
    released /= population
    return {
        name: column.from_unit(min(1.0, max(0.0, float(share) + 0.5)))
        for (name, column), share in zip(columns.items(), released, strict=True)
    }


def vocabulary(
    words: Sequence[str],
    owner: np.ndarray,
    *,
    multiplier: float,
    failure: float,
    stream: NoiseStream,
    step: int,
    most: int = 16,
) -> tuple[str, ...]:
    """Words that many people have, ascending; a word of few people never shows.

    Every person gives `1/√k` to each of their `k ≤ most` first words in alphabetical order
    (a choice that depends on that person alone), so their vector has L2 norm ≤ 1. A word
    is released if its noisy weight exceeds a threshold that a word of one person alone
    passes with probability below `failure` over all of that person's words.
    Source: Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin 2020 (ICML), theorem 5.1.

    Args:
        words: One per record; "" for missing.
        owner: int `(records,)`.
        multiplier: Noise multiplier; the event is `Gaussian(multiplier)`.
        failure: δ that is added to the Gaussian's, 0 < failure < 1.
        stream: Noise.
        step: Its step.
        most: Largest number of words one person contributes.

    Raises:
        UsageError: SQ-239 unless 0 < failure < 1 and most ≥ 1.
    """
    if not 0.0 < failure < 1.0 or most < 1:
        raise UsageError(
            239, f"a private vocabulary needs 0 < failure < 1 and most ≥ 1, got {failure}, {most}"
        )
    pairs = sorted({(int(o), w) for o, w in zip(owner, words, strict=True) if w})
    weights: dict[str, int] = {}
    start = 0
    while start < len(pairs):
        stop = start
        while stop < len(pairs) and pairs[stop][0] == pairs[start][0]:
            stop += 1
        own = [word for _, word in pairs[start : min(stop, start + most)]]
        for word in own:
            # Whole grid counts, rounded down: sums are exact and nobody exceeds norm 1. The
            # number of candidates is private, so nothing else may depend on it.
            weights[word] = weights.get(word, 0) + int(1.0 / (_GRID * math.sqrt(len(own))))
        start = stop
    candidates = sorted(weights)
    counts = np.array([weights[word] for word in candidates], dtype=np.int64)
    asked = f"words {candidates}"
    released = add_noise(counts, _GRID, multiplier, stream, step, question=asked)
    limit = threshold(multiplier, failure, most) + _GRID
    return tuple(w for w, weight in zip(candidates, released, strict=True) if weight > limit)


def threshold(std: float, failure: float, most: int) -> float:
    """The weight that none of a lone person's words passes, but with probability `failure`."""
    counts = np.arange(1, most + 1)
    # P(one word stays below)^k ≥ 1 - failure; log1p keeps tiny failures exact.
    each = -np.expm1(np.log1p(-failure) / counts)
    return float(np.max(1.0 / np.sqrt(counts) + std * -ndtri(each)))
