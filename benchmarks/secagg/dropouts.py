"""Every pattern of dropouts in every phase for 3 to 6 members, and random ones to 1,000.

    python -m benchmarks.secagg.dropouts 3 4 5 6     # 216, 1,296, 7,776 and 46,656 patterns
    python -m benchmarks.secagg.dropouts 200 500 1000

A pattern gives each member the phase in which it leaves, or none. Up to six members all
patterns run, above three random ones within the plan's dropout fraction. Each round either
opens the exact sum of those whose vectors arrived or, exactly when too few are left, nothing.
"""

from __future__ import annotations

import itertools
import sys
import time

from tests.secagg.rounds import is_exact, play

from sequester import secagg
from sequester.core.errors import SequesterError
from sequester.core.rng import public_generator
from sequester.secagg.graph import Threats, full_threshold
from sequester.secagg.policy import Policy
from sequester.secagg.simulator import PHASES


def every_pattern(members: int) -> tuple[int, int]:
    """(exact sums, rounds that opened nothing) over all 6ⁿ patterns."""
    threshold = full_threshold(members, Threats(0.0, 0.0))
    exact = refused = 0
    for pattern in itertools.product([None, *PHASES], repeat=members):
        drops = {m: p for m, p in enumerate(pattern) if p}
        left = min(members - sum(PHASES.index(p) <= at for p in drops.values()) for at in range(5))
        try:
            session, vectors, done = play(range(members), drops, threshold=threshold, length=2)
        except SequesterError:
            if left >= threshold:
                raise
            refused += 1
        else:
            if left < threshold or not is_exact(session, vectors, done):
                raise SystemExit(f"wrong outcome for {drops}")
            exact += 1
    return exact, refused


def random_patterns(members: int) -> tuple[int, int]:
    """Three rounds in which up to a tenth leaves, at any phase."""
    plan = secagg.plan(members, 64, dropout=0.1, corrupt=0.05)
    draw = public_generator(members)
    for _ in range(3):
        leaving = draw.permutation(members)[: int(draw.integers(0, members // 10 + 1))]
        drops = {int(m): PHASES[int(draw.integers(0, 5))] for m in leaving}
        session, vectors, done = play(
            range(members), drops, degree=plan.degree, threshold=plan.threshold, length=64,
            min_cohort=plan.min_cohort, min_survivors=plan.min_survivors,
            policy=Policy(2, 0.1, 0.05, degree=plan.degree),
        )  # fmt: skip
        if not is_exact(session, vectors, done):
            raise SystemExit(f"wrong sum for {drops}")
    return 3, 0


def main() -> None:
    """Print a line for each size."""
    for members in [int(argument) for argument in sys.argv[1:]] or [3, 4, 5, 6]:
        start = time.monotonic()
        run = every_pattern if members <= 6 else random_patterns
        exact, refused = run(members)
        print(
            f"{members:5d} members: {exact} exact, {refused} opened nothing, 0 wrong "
            f"({time.monotonic() - start:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
