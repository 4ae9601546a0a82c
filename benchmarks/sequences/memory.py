"""Memory of reading files larger than a stated budget, in every shape that takes more than a sort.

    python -m benchmarks.sequences.memory [--millions 12 24] [--budget 512] [--shapes flat …]

Each row is a fresh process. `MB` is its peak resident memory above what it held after its
imports, `whole` the same for reading everything into memory where that is asked for. Constant
memory shows as the same MB for both sizes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from benchmarks.sequences.reading import peak
from sequester.sequences import People, Schema, Time

ISO = "%Y-%m-%dT%H:%M:%S"
FLAT = Schema(time=Time(formats=(ISO,)), numeric=("value",), categorical=("place",))
SHAPES = {
    "flat": FLAT,
    "mean": replace(FLAT, repeats="mean"),
    "static": replace(FLAT, numeric=("value", "age"), static=("age",), site="site"),
    "clock": replace(FLAT, time=Time(kind="clock")),
    "long": Schema(
        time=Time(formats=(ISO,)),
        parameter="place",
        value="value",
        numeric=("home", "work", "gym", "shop"),
        repeats="mean",
    ),
    "jsonl": FLAT,
}
COLUMNS = {"static": ["person", "time", "value", "place", "age", "site"]}
BLOCK = 1_000_000  # records written at a time


def write(path: Path, shape: str, millions: float) -> None:
    """A log in the order of time, people interleaved; 200 records a person."""
    rng = np.random.default_rng(0)
    records = round(millions * 1e6)
    everybody = records // 200
    places = np.array(["home", "work", "gym", "shop"])
    with path.open("wb") as stream:
        for start in range(0, records, BLOCK):
            rows = min(BLOCK, records - start)
            person = rng.integers(0, everybody, rows)
            second = 1_700_000_000 + 2 * np.arange(start, start + rows)
            if shape in {"mean", "long"}:  # moments that several records share
                second = 1_700_000_000 + 40_000 * (np.arange(start, start + rows) // 40_000)
            if shape == "clock":  # half an hour between a person's records, on average
                second = np.arange(start, start + rows) * 1800 // everybody
            stamps = np.datetime_as_string(second.astype("datetime64[s]"))
            if shape == "clock":
                stamps = np.array([stamp[11:] for stamp in stamps])
            table = pa.table(
                {
                    "person": np.char.add("person-", person.astype(str)),
                    "time": stamps,
                    "value": rng.normal(size=rows).round(4),
                    "place": places[rng.integers(0, 4, rows)],
                    "age": 20 + person % 60,
                    "site": np.array(["north", "south"])[person % 2],
                }
            ).select(COLUMNS.get(shape, ["person", "time", "value", "place"]))
            if shape == "jsonl":
                lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
                stream.write(lines.encode())
            else:
                pacsv.write_csv(table, stream, pacsv.WriteOptions(include_header=not start))


def once(path: Path, shape: str, budget: int) -> None:
    """Read in this process; print seconds, peak memory and records as JSON."""
    before, start = peak(), time.perf_counter()
    memory = budget << 20 if budget else None
    people = People.read(path, SHAPES[shape], memory=memory, spill=path.parent)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": peak() - before, "records": people.records}))


def measured(path: Path, shape: str, budget: int) -> dict[str, float]:
    """The figures of one reading, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sequences.memory", "--once", str(path), shape]
    command += ["--budget", str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--millions", type=float, nargs="+", default=[12, 24])
    parser.add_argument("--budget", type=int, default=512, help="MiB")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--whole", action="store_true", help="read into memory as well")
    parser.add_argument("--files", type=Path, help="a folder that keeps the files")
    parser.add_argument("--write", action="store_true", help="only write the files")
    parser.add_argument("--once", nargs=2, metavar=("PATH", "SHAPE"))
    given = parser.parse_args()
    if given.once:
        once(Path(given.once[0]), given.once[1], given.budget)
        return
    print(f"budget {given.budget} MiB")
    heads = ("shape", "rows", "records", "file MB", "MB", "s", "whole MB")
    print("{:<8} {:>11} {:>11} {:>8} {:>6} {:>7} {:>9}".format(*heads))
    for shape in given.shapes:
        for millions in given.millions:
            with tempfile.TemporaryDirectory() as folder:
                name = f"{shape}-{millions:g}.{'jsonl' if shape == 'jsonl' else 'csv'}"
                path = (given.files or Path(folder)) / name
                if not path.exists():
                    write(path, shape, millions)
                if given.write:
                    continue
                found = measured(path, shape, given.budget)
                whole = measured(path, shape, 0)["bytes"] / 1e6 if given.whole else float("nan")
                print(
                    f"{shape:<8} {millions * 1e6:11,.0f} {found['records']:11,.0f} "
                    f"{path.stat().st_size / 1e6:8,.0f} {found['bytes'] / 1e6:6.0f} "
                    f"{found['seconds']:7.1f} {whole:9.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
