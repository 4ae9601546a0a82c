"""Every planted fault at ε 2 and 8 over seeds, and alarms on correct runs.

    python benchmarks/audit/zoo.py [SEEDS] [CORRECT]

Limits: all caught; at most 1 alarm in 50 correct runs; the whole zoo (10 seeds) in 2 minutes on
2 cores, that is 240 CPU seconds.
"""

import sys
import time

from tests.audit.zoo import FAULTS, subject, without_invariants

from sequester.audit.mechanism.evidence import audit_mechanism


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    correct = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    start, missed, audits = time.process_time(), 0, 0
    for name, fault in FAULTS.items():
        caught = by_canaries = 0
        for epsilon in (2.0, 8.0):
            for seed in range(seeds):
                with without_invariants(), fault.plant():
                    canaries = 200 if fault.people > 50 else 20
                    found = audit_mechanism(fault.subject(epsilon), canaries=canaries, seed=seed)
                caught += found.alarm
                by_canaries += bool(found.exceeded) or found.curve_refuted
                audits += 1
        missed += 2 * seeds - caught
        print(
            f"{name:42s} caught {caught}/{2 * seeds}, by canaries alone {by_canaries}", flush=True
        )
    spent = time.process_time() - start
    print(f"{missed} missed; {audits} audits in {spent:.0f} CPU s, {spent / audits:.2f} each")
    alarms = sum(
        audit_mechanism(subject((2.0, 8.0)[seed % 2]), canaries=200, seed=1000 + seed).alarm
        for seed in range(correct)
    )
    print(f"{alarms} alarms in {correct} correct runs (limit 1 in 50)")


if __name__ == "__main__":
    main()
