"""Every planted fault at ε 2 and 8 over ten seeds, and alarms on fifty correct runs.

    python -m benchmarks.audit.zoo [SEEDS] [CORRECT]

Limits: all caught by canaries or battery; at most 1 alarm in 50 correct runs; the whole zoo with
ten seeds in 120 s on two cores (two worker processes); one audit at most 15 s.
"""

import multiprocessing
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import torch
from tests.audit.zoo import FAULTS, canaries_for, subject, without_invariants

from sequester.audit.mechanism.evidence import audit_mechanism

WORKERS, EPSILONS, CORRECT_SEED = 2, (2.0, 8.0), 1000


def audit(job: tuple[str, float, int]) -> tuple[str, bool, bool, float]:
    """Name, whether anything alarmed, whether the canaries did, CPU seconds."""
    name, epsilon, seed = job
    start = time.process_time()
    if not name:
        found = audit_mechanism(subject(epsilon), canaries=200, seed=CORRECT_SEED + seed)
    else:
        fault = FAULTS[name]
        with without_invariants(), fault.plant():
            found = audit_mechanism(fault.subject(epsilon), canaries=canaries_for(fault), seed=seed)
    return (
        name,
        found.alarm,
        bool(found.exceeded) or found.curve_refuted,
        (time.process_time() - start),
    )


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    correct = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    jobs = list(product(FAULTS, EPSILONS, range(seeds)))
    jobs += [("", EPSILONS[seed % 2], seed) for seed in range(correct)]
    caught: Counter[str] = Counter()
    by_canaries: Counter[str] = Counter()
    slowest, busy, start = 0.0, 0.0, time.perf_counter()
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(WORKERS, fork, torch.set_num_threads, (1,)) as pool:
        for done, found in enumerate(pool.map(audit, jobs, chunksize=5)):
            name, alarm, exceeded, seconds = found
            if done % (2 * seeds) == 0:
                print(f"  {done} audits after {time.perf_counter() - start:.0f} s", flush=True)
            caught[name] += alarm
            by_canaries[name] += exceeded
            slowest, busy = max(slowest, seconds), busy + seconds
    spent = time.perf_counter() - start
    each = 2 * seeds
    for name in FAULTS:
        print(f"{name:42s} caught {caught[name]}/{each}, by canaries alone {by_canaries[name]}")
    missed = sum(each - caught[name] for name in FAULTS)
    print(f"{missed} missed of {each * len(FAULTS)} (limit 0)")
    print(f"{caught['']} alarms in {correct} correct runs (limit 1 in 50)")
    print(
        f"{len(jobs)} audits in {spent:.0f} s with {WORKERS} workers, {busy:.0f} CPU s (limit for "
        f"ten seeds: 120 s on two free cores, 240 CPU s); slowest {slowest:.1f} CPU s (limit 15)"
    )


if __name__ == "__main__":
    main()
