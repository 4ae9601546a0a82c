"""Thousands of seeded storms: `python -m benchmarks.federated.network.storm --seeds 2000`.

Prints how often each fault was met, and the first seed that broke an invariant, if one did. A seed
is reproduced with `--first SEED --seeds 1`.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.federated.network.storm import Storm
from tests.federated.network.weather import check, survive
from tests.federated.network.world import make_study, write_sites

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    met: Counter[str] = Counter()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        data = write_sites(Path(name) / "data", people=10)
        study = make_study(data, training={"steps": ROUNDS})
        for seed in range(given.first, given.first + given.seeds):
            folder = Path(name) / str(seed)
            storm = Storm(seed, folder / "nodes", data)
            with pytest.MonkeyPatch.context() as patch:
                try:
                    check(storm, survive(storm, study, folder / "run", patch), ROUNDS)
                except BaseException:
                    print(f"seed {seed} broke; it met {', '.join(storm.seen[:50])}")
                    raise
            met.update(storm.seen)
            shutil.rmtree(folder)
    spent = time.process_time() - began
    for fault, count in sorted(met.items(), key=lambda item: -item[1]):
        print(f"{count:7d}  {fault}")
    print(f"{given.seeds} seeds, {sum(met.values())} faults, {spent:.0f} CPU s: every sum held")


if __name__ == "__main__":
    main()
