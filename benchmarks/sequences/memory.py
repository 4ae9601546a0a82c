"""Memory of reading files larger than a stated budget, in every shape that takes more than a sort.

    python -m benchmarks.sequences.memory [--millions 12 24] [--budget 512] [--shapes flat …]

Each row is a fresh process. `MB` is its peak resident memory above what it held after its
imports, `whole` the same for reading everything into memory where that is asked for. `inspect`
is the peak of its own memory (files that are mapped, which the system can drop, left out) while
it then inspects what was read, with points of a common and of a rare kind. Constant memory shows
as the same MB for both sizes, but for what grows with the people.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from benchmarks.sequences.reading import peak
from sequester.sequences import People, Schema, Time
from sequester.sequences.inspection import inspect
from sequester.sequences.points import Points
from sequester.sequences.singling import singled_out

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


class Own:
    """The most memory of its own that this process holds meanwhile, looked at every 5 ms."""

    def __enter__(self) -> "Own":
        self.most, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, own())


def own() -> int:
    """Bytes of resident memory that belong to no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def once(path: Path, shape: str, budget: int) -> None:
    """Read and inspect in this process; print seconds, peak memory and records as JSON."""
    before, before_own, start = peak(), own(), time.perf_counter()
    memory = budget << 20 if budget else None
    people = People.read(path, SHAPES[shape], memory=memory, spill=path.parent)
    found = {"seconds": time.perf_counter() - start, "bytes": peak() - before}
    start = time.perf_counter()
    with Own() as held:
        for column in (people.columns[0], people.columns[-1]):
            inspect(people, singled_out(Points(people, {column: 0.0})))
    found |= {"inspect": time.perf_counter() - start, "inspect_bytes": held.most - before_own}
    print(json.dumps(found | {"records": people.records}))


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
    heads = ("shape", "rows", "records", "file MB", "MB", "s", "inspect MB", "s", "whole MB")
    print("{:<8} {:>11} {:>11} {:>8} {:>6} {:>7} {:>10} {:>7} {:>9}".format(*heads))
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
                    f"{found['seconds']:7.1f} {found['inspect_bytes'] / 1e6:10.0f} "
                    f"{found['inspect']:7.1f} {whole:9.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
