"""CPU seconds of uniqueness beside the limits, and who is unique in a real city.

python -m benchmarks.audit.uniqueness
"""

import time

import numpy as np
import pandas as pd
from benchmarks.training.studies import shared

from sequester.audit.uniqueness import Points, Trajectories, uniqueness

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


def new_york() -> None:
    """Share of people whom four points of a visit make unique, with its 95 % interval."""
    file = shared("data", "real", "foursquare_nyc", "data.parquet")
    if not file.is_file():
        print("foursquare_nyc: SKIPPED, the data are not here")
        return
    table = pd.read_parquet(file)
    owner = pd.factorize(table["person"])[0].astype(np.int64)
    week = table["time"].dt.day_of_week.to_numpy().astype(np.int64) * 24
    seconds = (week + table["time"].dt.hour.to_numpy().astype(np.int64)) * 3600
    places = table["lat"].to_numpy(), table["lon"].to_numpy()
    moves = Trajectories(owner, seconds, *places, int(owner.max()) + 1)
    for degrees, hours in ((0.01, 168), (0.1, 24)):
        found = uniqueness(moves.points(degrees, cycle=hours), known=(4,), draws=400)[0]
        print(
            f"foursquare_nyc, {found.people} people, 4 points at {degrees} degrees and hour of "
            f"{hours}: {found.unique:.3f} [{found.low:.3f}, {found.high:.3f}]"
        )


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
    new_york()


if __name__ == "__main__":
    main()
