"""`python -m benchmarks.gradients.scaling`: lots of 64 to 4,096 people, time a person and memory.

A step's time should be linear in people and its memory constant: people are taken in chunks.
One process for each size; CPU time of one thread, the second of two steps (the first of 4,096).
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.gradients.process import Process

SIZES = (64, 256, 1024, 4096)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradients.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", nargs="?", default="W1", choices=["W1", "W2", "W3", "W4"])
    workload, name = parser.parse_args().workload, "compiled"
    base = None
    print(f"| {workload}, people | CPU ms a step | ms a person | × 64 people | extra MB |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for people in SIZES:
            with Process(name, workload, 1, people, Path(folder)) as row:
                took = row.ask("step")["cpu"]
                if people < SIZES[-1]:
                    took = row.ask("step")["cpu"]
                each, extra = took / people, row.ask("memory")["extra_mb"]
            base = base or each
            print(f"| {people:,} | {took:.0f} | {each:.2f} | {each / base:.2f} | {extra} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
