"""What each row's program is told: imports nothing, since some must know before they import."""

import argparse


def arguments(about):
    """`WORKLOAD ROW THREADS [PEOPLE]`, for programs that `process` starts."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=["W1", "W2", "W3", "W4", "W3-1", "W3-4", "W3-16"])
    parser.add_argument("row")
    parser.add_argument("threads", type=int)
    parser.add_argument("people", type=int, nargs="?", default=64)
    return parser.parse_args()
