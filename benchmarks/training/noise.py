"""Speed of the private noise against `torch.randn`, on one thread.

    python -m benchmarks.training.noise

Prints normals per second of the stream (AES-256-CTR and Box-Muller in float64), of the bare
keystream (the limit), and of torch's generators, which are not secret. Goal: 0.25 × torch.randn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from sequester.core.rng import Keystream, fresh_key
from sequester.mechanism import NoiseStream

COUNT = 2_600_000


def speed(work: Callable[[], object]) -> float:
    """Millions of normals per second of process time, the median of 9."""
    seconds = []
    for _ in range(9):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return COUNT / statistics.median(seconds) / 1e6


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    stream = NoiseStream.from_system("benchmark")
    keys = Keystream(fresh_key(), "benchmark", "limit")
    found = {
        "torch.randn float32": speed(lambda: torch.randn(COUNT)),
        "torch.randn float64": speed(lambda: torch.randn(COUNT, dtype=torch.float64)),
        "AES-256-CTR bytes alone": speed(lambda: keys.bytes(0, 8 * COUNT)),
        "ours": speed(lambda: stream.draw(stream.next_step, COUNT, meets=b"")),
    }
    base = found["torch.randn float32"]
    print("generator                  M normals/s   x torch.randn")
    for name, value in found.items():
        print(f"{name:26} {value:11.1f}   {value / base:.2f}")


if __name__ == "__main__":
    main()
