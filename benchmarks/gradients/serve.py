"""One row in one process: it does as it is told, one step at a time.

Rows of a table are timed in turn, step by step, so that a machine that slows down slows all of
them. A row reads commands from standard input and answers each with one line of JSON:

    step         one training step               → cpu, wall (ms)
    memory       peak since before the first step → extra_mb
    check FILE   clipped mean gradient at the first weights, without noise, into FILE (.npz)

This file imports nothing but numpy, so that every peer's environment can run it.
"""

import gc
import json
import sys
import time

import numpy as np


def memory(key):
    """A field of /proc/self/status in MB."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    return float("nan")


def answer(**values):
    print(json.dumps(values), flush=True)


def serve(step, gradient, note=""):
    """Answer commands until the input ends.

    Args:
        step: One training step; any result is ignored.
        gradient: The row's mean gradient at the first weights, by parameter name.
        note: How the row is made, for the table.
    """
    gc.collect()
    base, before = memory("VmRSS"), memory("VmHWM")
    answer(ready=True, note=note)
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        if command == "step":
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            answer(cpu=1e3 * cpu, wall=1e3 * wall)
        elif command == "memory":
            # Making the data may have peaked higher than any step: then what is held now counts.
            peak = memory("VmHWM")
            answer(extra_mb=round((peak if peak > before else memory("VmRSS")) - base))
        elif command == "check":
            np.savez(path, **{name: np.asarray(value) for name, value in gradient().items()})
            answer(saved=path)
