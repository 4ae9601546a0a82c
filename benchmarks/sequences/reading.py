"""Time and memory of reading people: ours, ours on disk, and pandas doing the least there is.

    python -m benchmarks.sequences.reading [--records 3000000]

Each figure is of a fresh process: seconds of the work alone, and peak memory above what the
process held after its imports. pandas reads the file with text identifiers, parses the times
and sorts; it checks nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

WAYS = ("pandas", "ours", "ours, on disk")
MEMORY = 512 << 20  # bytes that reading through the disk is given


def write(folder: Path, records: int) -> list[Path]:
    """The same simulated log as CSV and Parquet, in the order of time: people interleaved."""
    rng = np.random.default_rng(0)
    people = rng.integers(0, max(records // 200, 1), records)
    seconds = 1_700_000_000 + np.sort(rng.integers(0, 10**7, records))
    stamps = seconds.astype("datetime64[s]")
    names = np.char.add("person-", np.arange(people.max() + 1).astype(str))
    table = pa.table(
        {
            "person": pa.array(names).take(pa.array(people)),
            "time": pa.array(np.datetime_as_string(stamps)),
            "value": rng.normal(size=records).round(4),
            "place": pa.array(["home", "work", "gym", "shop"]).take(
                pa.array(rng.integers(0, 4, records))
            ),
        }
    )
    pacsv.write_csv(table, folder / "log.csv")
    pq.write_table(table, folder / "log.parquet", row_group_size=1 << 18)
    return [folder / "log.csv", folder / "log.parquet"]


def peak() -> int:
    """Peak resident bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def once(way: str, path: Path) -> None:
    """Read in this process; print seconds and peak memory as JSON."""
    import pandas as pd

    from sequester.sequences import People, Schema, Time

    schema = Schema(
        time=Time(formats=("%Y-%m-%dT%H:%M:%S",)), numeric=("value",), categorical=("place",)
    )
    before, start = peak(), time.perf_counter()
    if way == "pandas":
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(
            path, dtype={"person": str}
        )  # fmt: skip
        frame["time"] = pd.to_datetime(frame["time"], format="%Y-%m-%dT%H:%M:%S")
        records = len(frame.sort_values(["person", "time"], kind="stable"))
    else:
        memory = MEMORY if "disk" in way else None
        records = People.read(path, schema, memory=memory, spill=path.parent).records
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": peak() - before, "records": records}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--once", nargs=2, metavar=("WAY", "PATH"))
    given = parser.parse_args()
    if given.once:
        once(given.once[0], Path(given.once[1]))
        return
    print(f"{'file':<8} {'how':<14} {'s':>6} {'records/s':>11} {'MB':>6} {'ratio to pandas':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for path in write(Path(folder), given.records):
            base = 0.0
            for way in WAYS:
                done = subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "benchmarks.sequences.reading",
                        "--once",
                        way,
                        str(path),
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found = json.loads(done.stdout)
                base = base or found["seconds"]
                print(
                    f"{path.suffix[1:]:<8} {way:<14} {found['seconds']:6.2f} "
                    f"{found['records'] / found['seconds']:11,.0f} {found['bytes'] / 1e6:6.0f} "
                    f"{found['seconds'] / base:16.2f}"
                )


if __name__ == "__main__":
    main()
