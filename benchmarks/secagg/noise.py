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
    chunks = range(WORDS // sampler.CHUNK)
    bits = clock(lambda: [stream.bytes(0, 8 * sampler.CHUNK, rank=c) for c in chunks])
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


COORDINATES = 2_000_000
"""So many noised coordinates for each line: the error's own standard error is then 0.05 %."""


def one_sum(plan: secagg.RoundPlan, update: np.ndarray) -> float:
    """Euclidean error of one opened sum of equal updates (aligned: the worst case for wraps)."""
    encoding, rotation = plan.encoding, fresh_key()
    total = Words.zeros(encoding.words, 4, encoding.bits)
    for _ in range(plan.members):
        stream = Keystream(fresh_key(), run="bench", purpose="noise")
        total.add(encode(encoding, update, rotation=rotation, stream=stream).words)
    opened = decode(encoding, total, plan.members, rotation=rotation)
    return float(np.linalg.norm(opened.total - plan.members * update))


def accuracy() -> None:
    """Error of the opened sum over the central Gaussian's, and ε likewise, the exact one's."""
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
            update /= np.linalg.norm(update)
            squares = [one_sum(plan, update) ** 2 for _ in range(max(1, COORDINATES // length))]
            error = np.sqrt(np.mean(squares)) / (multiplier * np.sqrt(length))
            central = accounting.SelfComposed(accounting.Gaussian(multiplier), 20)
            ratio = plan.epsilon(1e-6, 20) / accounting.epsilon(central, 1e-6)
            print(
                f"{members:4d} {length:8d} {multiplier:3.0f}  {noise:18s}  {plan.encoding.bits:3d} "
                f"{plan.encoding.noise_share:7.1f} {error:12.4f} {ratio:13.4f}",
                flush=True,
            )


def compared() -> None:
    """Central, local and distributed noise at the same ε: error of the mean, bytes, who sees."""
    length, clip, epsilon, delta, rounds = 100_000, 1.0, 4.0, 1e-6, 20
    update = public_generator(1).normal(size=length)
    update /= np.linalg.norm(update)
    print(
        f"\nerror of the mean update (norm 1, d = {length:,}) at eps = {epsilon}, {rounds} rounds"
    )
    print("   n  way                     noise of the sum  error of the mean  bytes up  trusted")

    def needed(event_of) -> float:
        return accounting.calibrate.noise_for(event_of, epsilon, delta, adjacency="zero-out")

    def gaussian(z: float) -> accounting.Event:
        return accounting.SelfComposed(accounting.Gaussian(z), rounds)

    central = needed(gaussian)
    for members in (10, 100):
        rows = [
            ("central", central * clip, 4 * length, "server: every update"),
            ("local", 2 * central * clip * np.sqrt(members), 4 * length, "nobody"),
        ]
        for noise in ("discrete-gaussian", "skellam"):
            plan = secagg.plan(members, length, noise_multiplier=central, noise=noise, corrupt=0.1)
            spent = plan.epsilon(delta, rounds)
            # Shares counted on are fewer than those that arrive: 10 % drop, 10 % corrupt.
            error = one_sum(plan, update) / np.sqrt(length)
            rows.append((f"{noise}, eps {spent:.3f}", error, plan.upload_bytes, "10 % of members"))
        for way, error, sent, trusted in rows:
            mean = error * np.sqrt(length) / members
            print(f"{members:4d}  {way:32s} {error:8.3f} {mean:16.2f} {sent:14,}  {trusted}")


if __name__ == "__main__":
    speed()
    accuracy()
    compared()
