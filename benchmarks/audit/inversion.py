"""Gradient inversion of one 48-step window of a GRU: limit correlation ≥ 0.90 in ≤ 60 CPU s.

python benchmarks/audit/inversion.py
"""

import time

from tests.audit.test_inversion import TASK, network, window

from sequester.audit.inversion import Protection, invert, quality, seen


def main() -> None:
    lot, model = window(0, 48), network("gru", 48)
    for label, protection, iterations in (
        ("no protection", Protection(), 900),
        ("clipped to 1, noise 0.5", Protection(clip=1.0, noise_multiplier=0.5), 100),
    ):
        start = time.process_time()
        update = seen(model, TASK, lot, protection)
        found = invert(model, TASK, lot, update, iterations=iterations, restarts=1)
        error, correlation = quality(found.x, lot.x)
        spent = time.process_time() - start
        print(f"{label}: correlation {correlation:.3f}, error {error:.3f}, {spent:.0f} CPU s")


if __name__ == "__main__":
    main()
