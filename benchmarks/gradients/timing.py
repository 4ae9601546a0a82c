"""One row in one fresh process: CPU time, wall time and peak memory of a training step."""

import gc
import json
import statistics
import time


def memory(key):
    """A field of /proc/self/status in MB."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    return float("nan")


def measure(step, seconds=6.0, least=3):
    """Run `step` for about `seconds`; print one JSON line with medians in ms."""
    gc.collect()
    base = memory("VmRSS")
    begin = time.perf_counter()
    step()
    first = time.perf_counter() - begin
    step()
    wall, cpu, begin = [], [], time.perf_counter()
    while len(wall) < least or time.perf_counter() - begin < seconds:
        a, b = time.perf_counter(), time.process_time()
        step()
        cpu.append(time.process_time() - b)
        wall.append(time.perf_counter() - a)
    print(
        json.dumps(
            {
                "wall": round(1e3 * statistics.median(wall), 1),
                "cpu": round(1e3 * statistics.median(cpu), 1),
                "first": round(1e3 * first, 1),
                "extra_mb": round(memory("VmHWM") - base),
                "steps": len(wall),
            }
        )
    )
