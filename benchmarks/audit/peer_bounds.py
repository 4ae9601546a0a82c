"""What jax-privacy's defaults prove on the scores of `benchmarks/audit/bounds.py`.

    peer/bin/python benchmarks/audit/peer_bounds.py

In the environment of `peer_vectors.py`. Ours registers the numbers of guesses and the threshold
by simulating the claim; the peer's defaults try every threshold and divide the level among them.
"""

import time

import numpy as np
from peer_vectors import LEVEL, gaussian_mu, load_peer

SEEDS, DELTA = 5, 1e-5


def main() -> None:
    peer = load_peer()
    bounds = {
        "any mechanism": peer.CanaryScoreAuditor.epsilon_one_run,
        "f-DP": peer.CanaryScoreAuditor.epsilon_one_run_fdp,
        "independent trials": peer.CanaryScoreAuditor.epsilon_clopper_pearson,
        "Gaussian-DP": peer.CanaryScoreAuditor.epsilon_from_gdp,
    }
    print(f"share of a true ε = 4 that the peer's defaults prove (median of {SEEDS}), CPU s each")
    for canaries in (1000, 10_000):
        found: dict[str, list[float]] = {}
        seconds: dict[str, float] = {}
        for seed in range(SEEDS):
            rng = np.random.Generator(np.random.Philox(seed))
            coins = rng.integers(0, 2, canaries).astype(bool)
            scores = coins * gaussian_mu(4.0, DELTA) + rng.normal(size=canaries)
            auditor = peer.CanaryScoreAuditor(scores[coins], scores[~coins])
            for name, bound in bounds.items():
                start = time.process_time()
                found.setdefault(name, []).append(float(bound(auditor, LEVEL, DELTA)) / 4.0)
                seconds[name] = time.process_time() - start
        row = ", ".join(f"{n} {np.median(v):.2f} ({seconds[n]:.1f} s)" for n, v in found.items())
        print(f"  {canaries} canaries: {row}", flush=True)


if __name__ == "__main__":
    main()
