"""The four workloads: random data of fixed shape, and the networks people use on it.

W1  GRU 6 → 128, mean over steps, 6 classes; 64 people × 16 windows × 64 steps
W2  causal transformer, 10,000 places, width 128, 2 layers, 4 heads; 64 people × 256 steps
W3  LSTM over places, 10,000 × 64 → 128 → 10,000; 64 people × 4 windows × 64 steps
W4  W1 with ragged people: 1 to 60 windows each, log-normal, 1,024 in all

W3-1, W3-4, W3-16: W3's network on one window of that many steps for each person, for the rows
native, pure and compiled.
"""

from dataclasses import dataclass

import numpy as np

PLACES = 10_000
CLIP = {"W1": 1.11, "W2": 4.0, "W3": 0.20, "W4": 1.0}  # near the median norm: half are clipped
SHORT = {"W3-1": 1, "W3-4": 4, "W3-16": 16}  # steps
CLIP |= dict.fromkeys(SHORT, 1.0)


@dataclass(frozen=True)
class Data:
    """`x` and `y` have one entry for each window; `counts` gives each person's windows."""

    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray


def data(workload: str, people: int = 64, seed: int = 0) -> Data:
    """The same numbers for every implementation."""
    r = np.random.default_rng(seed)
    if workload in ("W1", "W4"):
        counts = np.full(people, 16) if workload == "W1" else ragged(r, people, 16 * people)
        windows = int(counts.sum())
        scale = np.repeat(np.exp(r.standard_normal(people) * 0.5), counts)
        x = r.standard_normal((windows, 64, 6)) * scale[:, None, None]
        y = np.repeat(r.integers(0, 6, people), counts)
        return Data(x.astype(np.float32), y.astype(np.int64), counts)
    windows, steps = {"W2": (1, 256), "W3": (4, 64)}.get(workload) or (1, SHORT[workload])
    tokens = np.empty((people, windows, steps + 1), np.int64)
    for p in range(people):
        own = r.integers(0, PLACES, 4 + p % 64)
        tokens[p] = own[r.integers(0, len(own), (windows, steps + 1))]
    tokens = tokens.reshape(people * windows, steps + 1)
    return Data(tokens[:, :-1].copy(), tokens[:, 1:].copy(), np.full(people, windows))


def ragged(r: np.random.Generator, people: int, total: int) -> np.ndarray:
    """Log-normal numbers of windows in 1..60 which add up to `total`."""
    counts = np.clip(np.round(r.lognormal(2.2, 1.0, people)), 1, 60).astype(np.int64)
    while counts.sum() != total:
        i = r.integers(people)
        counts[i] = np.clip(counts[i] + np.sign(total - counts.sum()), 1, 60)
    return counts
