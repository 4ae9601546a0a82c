"""CPU seconds of uniqueness beside the limits, and beside scikit-mobility's measured cost.

python benchmarks/audit/uniqueness.py
"""

import time

import numpy as np

from sequester.audit.uniqueness import Points, uniqueness

# scikit-mobility 1.3.1, LocationTimeAttack, one 4-point instance against 1,000 x 1,000.
PEER_SECONDS_PER_INSTANCE = 6.2


def town(people: int, records: int, places: int = 2000, hours: int = 672):
    rng = np.random.Generator(np.random.Philox(0))
    homes = rng.integers(0, places, (people, 6))
    owner = np.repeat(np.arange(people), records)
    usual = homes[owner, rng.integers(0, 6, len(owner))]
    anywhere = rng.integers(0, places, len(owner))
    place = np.where(rng.random(len(owner)) < 0.8, usual, anywhere)
    return owner, place, rng.integers(0, hours, len(owner))


def main() -> None:
    print("people  records  queries   CPU s  limit  per query   scikit-mobility / ours")
    for people, records, draws, limit in ((1000, 1000, 100, 1.5), (100_000, 200, 5, 20.0)):
        owner, place, hour = town(people, records)
        start = time.process_time()
        points = Points.of_keys(owner, [place, hour], people)
        uniqueness(points, known=(1, 2, 3, 4, 5, 6), draws=draws)
        spent = time.process_time() - start
        queries = people * draws
        ratio = f"{PEER_SECONDS_PER_INSTANCE * queries / spent:.0f}" if people == 1000 else "-"
        each = f"{1e6 * spent / queries:.1f} us"
        row = f"{people:6d}  {records:7d}  {queries:7d}  {spent:6.2f}  {limit:5.1f}  {each:>9}"
        print(f"{row}   {ratio}")


if __name__ == "__main__":
    main()
