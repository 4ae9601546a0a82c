"""Write what jax-privacy's auditing says about seeded scores: `tests/vectors/audit_bounds.json`.

Runs in an environment of its own with jax-privacy and dp-accounting (JAX itself is not needed):

    python -m venv peer && peer/bin/pip install --no-deps jax-privacy==2.0.0 dp-accounting==0.6.0
    peer/bin/pip install numpy scipy attrs absl-py mpmath
    peer/bin/python benchmarks/audit/peer_vectors.py tests/vectors/audit_bounds.json
"""

import importlib.metadata
import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
from scipy import optimize, stats

LEVEL = 0.05


def load_peer():
    """The auditing module by its file: the package's own __init__ wants JAX."""
    files = importlib.metadata.files("jax-privacy")
    path = next(f.locate() for f in files if str(f) == "jax_privacy/auditing.py")
    spec = importlib.util.spec_from_file_location("peer_auditing", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_auditing"] = module
    spec.loader.exec_module(module)
    return module


def gaussian_mu(epsilon: float, delta: float) -> float:
    def gap(mu: float) -> float:
        tail = epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2)
        return stats.norm.cdf(-epsilon / mu + mu / 2) - np.exp(tail) - delta

    return optimize.brentq(gap, 1e-6, 60, xtol=1e-15)


def case(peer, epsilon: float, canaries: int, delta: float) -> dict:
    seed = int(canaries + epsilon)
    mu = gaussian_mu(epsilon, delta)
    generator = np.random.Generator(np.random.Philox(seed))
    coins = generator.integers(0, 2, canaries).astype(bool)
    scores = coins * mu + generator.normal(size=canaries)
    auditor = peer.CanaryScoreAuditor(scores[coins], scores[~coins])
    threshold = mu / 2 + 0.8
    hits, wrong = int((scores[coins] >= threshold).sum()), int((scores[~coins] >= threshold).sum())
    at = peer.Explicit(threshold)
    start = time.process_time()
    fdp = peer._epsilon_one_run_fdp(1e-9, canaries, hits + wrong, hits, LEVEL, delta)
    fdp_seconds = time.process_time() - start
    found = {
        "seed": seed,
        "canaries": canaries,
        "delta": delta,
        "epsilon": epsilon,
        "mu": mu,
        "threshold": threshold,
        "true_positives": hits,
        "false_positives": wrong,
        "inside": int(coins.sum()),
        "one_run": peer._epsilon_one_run(0, canaries, hits + wrong, hits, LEVEL, delta),
        "one_run_fdp": fdp,
        "one_run_fdp_seconds": fdp_seconds,
        "clopper_pearson": auditor.epsilon_clopper_pearson(LEVEL, delta, threshold_strategy=at),
        "clopper_pearson_two_sided": auditor.epsilon_clopper_pearson(
            LEVEL, delta, one_sided=False, threshold_strategy=at
        ),
        "gaussian_dp": auditor.epsilon_from_gdp(LEVEL, delta, eps_tol=1e-12),
        "thresholds": [
            [int(fn), int(tn)]
            for fn, tn in zip(auditor._fn_counts, auditor._tn_counts, strict=True)
        ],
        "auc": auditor.attack_auroc(),
    }
    if canaries <= 1000:
        found["one_run_default"] = auditor.epsilon_one_run(LEVEL, delta)
    return {k: v if isinstance(v, int | list) else float(v) for k, v in found.items()}


def main() -> None:
    peer = load_peer()
    find = optimize.brentq
    # The peer stops at 1e-6; the vectors shall be exact.
    peer.scipy.optimize.brentq = lambda f, a, b, xtol=None: find(f, a, b, xtol=1e-12, rtol=1e-14)
    cases = [
        case(peer, epsilon, canaries, delta)
        for epsilon in (1.0, 2.0, 4.0, 8.0)
        for canaries in (100, 1000, 10000)
        for delta in (1e-5, 1e-3)
    ]
    version = importlib.metadata.version("jax-privacy")
    curve = importlib.metadata.version("dp-accounting")
    vectors = {
        "provenance": f"jax-privacy {version} (jax_privacy/auditing.py, Apache-2.0) with "
        f"dp-accounting {curve}; root tolerance tightened to 1e-12; numpy Philox seeds; written "
        "by benchmarks/audit/peer_vectors.py",
        "confidence": 1 - LEVEL,
        "cases": cases,
    }
    Path(sys.argv[1]).write_text(json.dumps(vectors, indent=1) + "\n")
    for one in cases:
        print({k: v for k, v in one.items() if k != "thresholds"})


if __name__ == "__main__":
    main()
