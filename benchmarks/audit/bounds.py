"""Power of each tier and its time beside jax-privacy's on the same counts.

    python benchmarks/audit/bounds.py

The peer's seconds are those stored with its vectors; ours are measured here.
"""

import json
import time
from pathlib import Path

import numpy as np

from sequester.audit.mechanism import bounds
from sequester.audit.mechanism.bounds import Guesses
from sequester.audit.mechanism.gaussian import mu_of_epsilon
from sequester.audit.mechanism.scores import Scores, register
from sequester.audit.mechanism.tiers import all_tiers

VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "audit_bounds.json"


def main() -> None:
    print("share of a true ε that each tier proves (median of 21; δ = 1e-5)")
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        for canaries in (1000, 10_000):
            mu = mu_of_epsilon(epsilon, 1e-5)
            registration = register(mu, canaries, 1e-5)
            found: dict[str, list[float]] = {}
            for seed in range(21):
                rng = np.random.Generator(np.random.Philox(seed))
                coins = rng.integers(0, 2, canaries).astype(bool)
                scores = Scores(coins * mu + rng.normal(size=canaries), coins)
                for tier in all_tiers(scores, registration, 1e-5):
                    found.setdefault(tier.name, []).append(tier.epsilon / epsilon)
            row = ", ".join(f"{name} {np.median(v):.2f}" for name, v in found.items())
            print(f"  ε {epsilon:g}, {canaries} canaries: {row}")
    print("f-DP bound: ours, jax-privacy, ratio (limit 0.05 s at 10,000 canaries)")
    for case in json.loads(VECTORS.read_text())["cases"]:
        made = case["true_positives"] + case["false_positives"]
        guesses = Guesses(case["canaries"], made, case["true_positives"])
        start = time.process_time()
        bounds.one_run_fdp(guesses, case["delta"])
        ours, peer = time.process_time() - start, case["one_run_fdp_seconds"]
        print(f"  {case['canaries']:6d} canaries: {ours:.4f} s, {peer:.4f} s, {peer / ours:.0f} x")


if __name__ == "__main__":
    main()
