"""Distributed noise: speed, error and ε beside the central Gaussian.

python benchmarks/secagg/noise.py
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sequester import accounting, secagg
from sequester.core.rng import Keystream, fresh_key, public_generator
from sequester.secagg import sampler
from sequester.secagg.encoding import decode, encode
from sequester.secagg.masks import Words
from sequester.secagg.rotation import rotate

WORDS = 1 << 20


def clock(function, repeats: int = 7) -> float:
    """The smallest CPU time of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def speed() -> None:
    """Milliseconds for 2²⁰ coordinates."""
    stream = Keystream(fresh_key(), run="bench", purpose="noise")
    vector = public_generator(0).normal(size=WORDS).astype(np.float32)
    bits = clock(lambda: stream.bytes(0, 8 * WORDS))
    print(f"AES bits for 2^20 draws (limit): {bits * 1e3:.1f} ms")
    for deviation in (1.0, 50.0, 800.0):
        table = sampler.discrete_gaussian(deviation)
        seconds = clock(lambda t=table: t.draw(WORDS, stream, 0))
        print(
            f"discrete Gaussian, sigma {deviation:5.0f}: {seconds * 1e3:5.1f} ms, "
            f"{WORDS / seconds / 1e6:.0f} M/s, {seconds / bits:.1f}x the limit, "
            f"distance {table.distance:.1e}"
        )
    print(f"rotation: {clock(lambda: rotate(vector, b'r' * 32)) * 1e3:.1f} ms")
    plan = secagg.plan(50, WORDS, noise_multiplier=1.0)
    seconds = clock(lambda: encode(plan.encoding, vector, rotation=b"r" * 32, stream=stream))
    print(f"clip, rotate, round, noise, checksum: {seconds * 1e3:.1f} ms per 2^20 coordinates")


def accuracy() -> None:
    """Error of the opened sum over the central Gaussian's, and ε likewise."""
    print("\n   n        d   z  noise               bits  share    error/central  eps/central")
    for members, length, multiplier in (
        (10, 100_000, 1.0), (50, 100_000, 1.0), (200, 100_000, 1.0), (50, 100_000, 4.0),
        (50, 10_000, 1.0), (20, 1_000_000, 1.0),
    ):  # fmt: skip
        for noise in ("discrete-gaussian", "skellam"):
            plan = secagg.plan(
                members, length, noise_multiplier=multiplier, noise=noise, corrupt=0, dropout=0
            )
            update = public_generator(1).normal(size=length)
            update /= np.linalg.norm(update)  # Everybody sends the same: the worst case for wraps.
            encoding = plan.encoding
            total = Words.zeros(encoding.words, 4, encoding.bits)
            for _ in range(members):
                stream = Keystream(fresh_key(), run="bench", purpose="noise")
                total.add(encode(encoding, update, rotation=b"r" * 32, stream=stream).words)
            opened = decode(encoding, total, members, rotation=b"r" * 32)
            error = np.linalg.norm(opened.total - members * update)
            central = multiplier * np.sqrt(length)
            rounds = 20
            same = accounting.epsilon(accounting.ZCDP(rounds / (2 * multiplier**2)), 1e-6)
            ratio = plan.epsilon(1e-6, rounds) / same
            print(
                f"{members:4d} {length:8d} {multiplier:3.0f}  {noise:18s}  {encoding.bits:3d} "
                f"{encoding.noise_share:7.1f} {error / central:12.4f} {ratio:13.4f}"
            )


if __name__ == "__main__":
    speed()
    accuracy()
